// Kernels that look along rows or columns: reductions, softmax, losses, normalization.
#include <fmt/format.h>

#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {
namespace {

using namespace kernels;

struct Size {
  std::int64_t rows, columns;
  std::string text() const { return fmt::format("{}x{}", rows, columns); }
};

/// `prepare` gets the tensors of its own, and the size.
template <class Prepare>
Problem problem(std::string name, Size size, const char* source, Prepare prepare) {
  return {std::move(name), size.text(), source,
          [=](Device device) { return prepare(Tensors(device), size); }};
}

// ---- reductions ---------------------------------------------------------------------------------

constexpr const char* reduce = "kernels/cuda/reduce.cu";

Problem sum_rows_of(Size size) {
  return problem("sum_rows", size, reduce, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), out = t.written({s.columns});
    return t.work([=] { sum_rows(x, out); });
  });
}

std::vector<Problem> reductions() {
  const Size size{256, 1024};
  std::vector<Problem> all;
  all.push_back(problem("sum", size, reduce, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), out = t.written({});
    return t.work([=] { sum(x, out); });
  }));
  for (const Size& of : {size, Size{128, 10}}) all.push_back(sum_rows_of(of));
  all.push_back(problem("sum_cols", size, reduce, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), out = t.written({s.rows});
    return t.work([=] { sum_cols(x, out); });
  }));
  all.push_back(problem("argmax", size, reduce, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), out = t.written({s.rows}, DType::i64);
    return t.work([=] { argmax(x, out); });
  }));
  all.push_back(problem("find_nonfinite", size, reduce, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), flag = t.both({}, DType::i32);
    return t.work([=] { find_nonfinite(x, flag); });
  }));
  return all;
}

// ---- softmax and losses -------------------------------------------------------------------------

/// Logits of a small classifier; rows of a few accesses; rows for a whole block; for several.
const std::vector<Size> row_sizes = {{128, 10}, {64, 1024}, {4, 16384}, {2, 32768}};

constexpr const char* softmax_source = "kernels/cuda/softmax.cu";
constexpr const char* loss_source = "kernels/cuda/loss.cu";

Problem softmax_of(Size size) {
  return problem("softmax", size, softmax_source, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), out = t.written({s.rows, s.columns});
    return t.work([=] { softmax(x, out); });
  });
}

Problem log_softmax_backward_of(Size size) {
  return problem("log_softmax_backward", size, softmax_source, [](Tensors t, Size s) {
    const Tensor dy = t.read({s.rows, s.columns}), y = t.read({s.rows, s.columns});
    const Tensor dx = t.written({s.rows, s.columns});
    return t.work([=] { log_softmax_backward(dy, y, dx, false); });
  });
}

Problem cross_entropy_of(Size size) {
  return problem("cross_entropy", size, loss_source, [](Tensors t, Size s) {
    const Tensor logits = t.read({s.rows, s.columns}), labels = t.indices(s.rows, s.columns);
    const Tensor loss = t.written({}), saved = t.written({s.rows, s.columns});
    return t.work([=] { cross_entropy(logits, labels, loss, saved); });
  });
}

std::vector<Problem> softmax_problems() {
  std::vector<Problem> all;
  for (const Size& size : row_sizes) all.push_back(softmax_of(size));
  for (const Size& size : row_sizes) all.push_back(log_softmax_backward_of(size));
  return all;
}

std::vector<Problem> losses() {
  constexpr const char* source = loss_source;
  std::vector<Problem> all;
  for (const Size& size : row_sizes) all.push_back(cross_entropy_of(size));
  all.push_back(problem("cross_entropy_backward", {64, 1024}, source, [](Tensors t, Size s) {
    const Tensor dloss = t.read({}), saved = t.read({s.rows, s.columns});
    const Tensor dlogits = t.written({s.rows, s.columns});
    return t.work([=] { cross_entropy_backward(dloss, saved, dlogits, false); });
  }));
  all.push_back(problem("mse", {64, 1024}, source, [](Tensors t, Size s) {
    const Tensor x = t.read({s.rows, s.columns}), y = t.read({s.rows, s.columns});
    const Tensor loss = t.written({});
    return t.work([=] { mse(x, y, loss); });
  }));
  all.push_back(problem("mse_backward", {64, 1024}, source, [](Tensors t, Size s) {
    const Tensor dloss = t.read({}), x = t.read({s.rows, s.columns});
    const Tensor y = t.read({s.rows, s.columns}), dx = t.written({s.rows, s.columns});
    return t.work([=] { mse_backward(dloss, x, y, dx, false); });
  }));
  return all;
}

// ---- normalization ------------------------------------------------------------------------------

std::vector<Problem> batch_norm_of(Size size) {
  constexpr const char* source = "kernels/cuda/batch_norm.cu";
  constexpr DType f64 = DType::f64;
  return {problem("batch_statistics", size, source,
                  [](Tensors t, Size s) {
                    const Tensor x = t.read({s.rows, s.columns});
                    const Tensor mean = t.written({s.columns}, f64);
                    const Tensor m2 = t.written({s.columns}, f64);
                    return t.work([=] { batch_statistics(x, mean, m2); });
                  }),
          problem("batch_inverse_std", size, source,
                  [](Tensors t, Size s) {
                    const Tensor m2 = t.read({s.columns}, f64), out = t.written({s.columns}, f64);
                    return t.work([=] { batch_inverse_std(m2, 1024, 1e-5, out); });
                  }),
          problem("batch_normalize", size, source,
                  [](Tensors t, Size s) {
                    const Tensor x = t.read({s.rows, s.columns});
                    const Tensor mean = t.read({s.columns}, f64), std = t.read({s.columns}, f64);
                    const Tensor weight = t.read({s.columns}), bias = t.read({s.columns});
                    const Tensor out = t.written({s.rows, s.columns});
                    return t.work([=] { batch_normalize(x, mean, std, weight, bias, out); });
                  }),
          problem("batch_norm_sums", size, source,
                  [](Tensors t, Size s) {
                    const Tensor dy = t.read({s.rows, s.columns}), x = t.read({s.rows, s.columns});
                    const Tensor mean = t.read({s.columns}, f64), std = t.read({s.columns}, f64);
                    const Tensor sum_dy = t.written({s.columns}, f64);
                    const Tensor sum_dy_xhat = t.written({s.columns}, f64);
                    return t.work([=] { batch_norm_sums(dy, x, mean, std, sum_dy, sum_dy_xhat); });
                  }),
          problem("batch_norm_dx", size, source, [](Tensors t, Size s) {
            const Tensor dy = t.read({s.rows, s.columns}), x = t.read({s.rows, s.columns});
            const Tensor mean = t.read({s.columns}, f64), std = t.read({s.columns}, f64);
            const Tensor weight = t.read({s.columns}), mean_dy = t.read({s.columns}, f64);
            const Tensor mean_dy_xhat = t.read({s.columns}, f64);
            const Tensor dx = t.written({s.rows, s.columns});
            return t.work(
                [=] { batch_norm_dx(dy, x, mean, std, weight, mean_dy, mean_dy_xhat, dx, false); });
          })};
}

std::vector<Problem> batch_norm() { return batch_norm_of({1024, 256}); }

/// Rows for a warp, for a whole block, and too long for its registers.
const std::vector<Size> normalized_sizes = {{256, 256}, {4, 16384}, {2, 32768}};

std::vector<Problem> row_norm() {
  constexpr const char* source = "kernels/cuda/row_norm.cu";
  constexpr DType f64 = DType::f64;
  std::vector<Problem> all;
  for (const Size& size : normalized_sizes) {
    all.push_back(problem("row_normalize", size, source, [](Tensors t, Size s) {
      const Tensor x = t.read({s.rows, s.columns});
      const Tensor weight = t.read({s.columns}), bias = t.read({s.columns});
      const Tensor out = t.written({s.rows, s.columns});
      const Tensor mean = t.written({s.rows}, f64), std = t.written({s.rows}, f64);
      return t.work([=] { row_normalize(x, weight, bias, {}, out, mean, std); });
    }));
    all.push_back(problem("row_norm_dx", size, source, [](Tensors t, Size s) {
      const Tensor dy = t.read({s.rows, s.columns}), x = t.read({s.rows, s.columns});
      const Tensor mean = t.read({s.rows}, f64), std = t.read({s.rows}, f64);
      const Tensor weight = t.read({s.columns}), dx = t.written({s.rows, s.columns});
      return t.work([=] { row_norm_dx(dy, x, mean, std, weight, {}, dx, false); });
    }));
  }
  all.push_back(problem("row_norm_dweight", {1024, 256}, source, [](Tensors t, Size s) {
    const Tensor dy = t.read({s.rows, s.columns}), x = t.read({s.rows, s.columns});
    const Tensor mean = t.read({s.rows}, f64), std = t.read({s.rows}, f64);
    const Tensor dweight = t.written({s.columns});
    return t.work([=] { row_norm_dweight(dy, x, mean, std, dweight, false); });
  }));
  return all;
}

}  // namespace

std::vector<Problem> row_problems() {
  std::vector<Problem> all;
  for (const auto part : {reductions, softmax_problems, losses, batch_norm, row_norm})
    for (Problem& problem : part()) all.push_back(std::move(problem));
  return all;
}

std::vector<Problem> measured_problems() {
  const Size logits{128, 10}, square{1024, 1024};
  std::vector<Problem> all = batch_norm_of(square);
  std::erase_if(all, [](const Problem& one) { return one.name != "batch_inverse_std"; });
  for (const Size& size : {logits, square}) {
    all.push_back(softmax_of(size));
    all.push_back(log_softmax_backward_of(size));
    all.push_back(cross_entropy_of(size));
  }
  return all;
}

}  // namespace lockstep::counts
