#include "lockstep/core/text/print.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

namespace lockstep {
namespace {

constexpr std::int64_t edge = 3;  // rows shown at each end of a dimension that is cut short
constexpr std::int64_t most_elements = 1000;
constexpr std::size_t line_width = 80;
constexpr std::int64_t dots = -1;  // in a list of rows: here some are left out

std::string spaces(std::size_t n) { return std::string(n, ' '); }

/// The rules are those of PyTorch's torch/_tensor_str.py, oddities included.
class Text {
 public:
  explicit Text(const Tensor& on_host)
      : x_(on_host), floating_(is_any_floating(x_.dtype())), cut_(x_.numel() > most_elements) {
    if (floating_)
      choose_style();
    else
      for_each_shown(0, 0, [&](std::int64_t i) { widen(number(i)); });
  }

  /// The elements from dimension `dim` on, of which `first` is the first row's number.
  std::string of(int dim, std::int64_t row, std::size_t indent) const {
    if (dim == x_.rank()) return fmt::format("{:>{}}", number(row), width_);
    const bool innermost = dim == x_.rank() - 1;
    const std::size_t per_line =
        innermost ? std::max<std::size_t>(1, (line_width - indent) / (width_ + 2)) : 1;
    const auto line_ends = static_cast<std::size_t>(std::max(1, x_.rank() - dim - 1));
    const std::string new_line = "," + std::string(line_ends, '\n') + spaces(indent + 1);
    std::string text = "[";
    std::size_t place = 0;
    for (const std::int64_t i : shown(dim)) {
      if (place > 0) text += place % per_line == 0 ? new_line : ", ";
      ++place;
      if (i == dots)
        text += innermost ? " ..." : "...";
      else
        text += of(dim + 1, row * x_.size(dim) + i, indent + 1);
    }
    return text + "]";
  }

 private:
  std::vector<std::int64_t> shown(int dim) const {
    const std::int64_t n = x_.size(dim);
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < n; ++i) {
      if (cut_ && n > 2 * edge && i == edge) {
        rows.push_back(dots);
        i = n - edge;
      }
      rows.push_back(i);
    }
    return rows;
  }

  template <class F>
  void for_each_shown(int dim, std::int64_t row, const F& f) const {
    if (dim == x_.rank()) return f(row);
    for (const std::int64_t i : shown(dim))
      if (i != dots) for_each_shown(dim + 1, row * x_.size(dim) + i, f);
  }

  double value(std::int64_t i) const {
    return visit_any(x_.dtype(),
                     [&](auto zero) { return static_cast<double>(x_.data<decltype(zero)>()[i]); });
  }

  void choose_style() {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    const auto counts = [](double x) { return std::isfinite(x) && x != 0; };
    for_each_shown(0, 0, [&](std::int64_t i) {
      const double x = value(i);
      if (!counts(x)) return;
      whole_ = whole_ && x == std::ceil(x);
      least = std::min(least, std::abs(x));
      most = std::max(most, std::abs(x));
    });
    scientific_ = most > 0 && (most / least > 1000 || most > 1e8 || least < 1e-4);
    for_each_shown(0, 0, [&](std::int64_t i) {
      if (counts(value(i))) widen(number(i));
    });
  }

  void widen(const std::string& text) { width_ = std::max(width_, text.size()); }

  std::string number(std::int64_t i) const {
    if (x_.dtype() == DType::i64) return std::to_string(x_.data<std::int64_t>()[i]);
    const double x = value(i);
    if (!floating_) return fmt::format("{:.0f}", x);
    if (std::isnan(x)) return "nan";  // without a sign
    if (scientific_) return fmt::format("{:.4e}", x);
    return whole_ ? fmt::format("{:#.0f}", x) : fmt::format("{:.4f}", x);
  }

  const Tensor& x_;
  bool floating_, cut_;
  bool whole_ = true, scientific_ = false;  // of a floating dtype
  std::size_t width_ = 1;
};

std::vector<std::string> suffixes_of(const Tensor& tensor) {
  std::vector<std::string> suffixes;
  if (tensor.device() != Device{})
    suffixes.push_back(fmt::format("device='{}'", tensor.device().to_string()));
  const bool empty = tensor.numel() == 0;
  if (empty && tensor.rank() != 1) suffixes.push_back(fmt::format("size={}", tensor.shape()));
  if (tensor.dtype() != DType::f32 && (empty || tensor.dtype() != DType::i64))
    suffixes.push_back(fmt::format("dtype={}", tensor.dtype()));
  return suffixes;
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "tensor(undefined)";
  const Tensor host = tensor.detach().to(Device{});
  std::string text = "tensor(";
  const std::size_t indent = text.size();
  text += host.numel() == 0 ? "[]" : Text(host).of(0, 0, indent);
  const std::size_t last = text.rfind('\n');
  std::size_t length = last == std::string::npos ? text.size() + 2 : text.size() - last + 1;
  for (const std::string& suffix : suffixes_of(tensor)) {
    const bool fits = length + suffix.size() + 2 <= line_width;
    text += fits ? ", " + suffix : ",\n" + spaces(indent) + suffix;
    length = fits ? length + suffix.size() + 2 : indent + suffix.size();
  }
  return text + ")";
}

std::ostream& write_text(std::ostream& out, std::string_view text) { return out << text; }

}  // namespace lockstep
