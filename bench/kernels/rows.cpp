#include <fmt/format.h>

#include "case.h"
#include "peers.h"

namespace bench {

double Size::numel() const {
  double result = 1;
  for (const std::int64_t n : dims) result *= static_cast<double>(n);
  return result;
}

std::string Size::text() const {
  const std::string text = fmt::format("{}", fmt::join(dims, "x"));
  if (dims.size() < 3) return text;
  return fmt::format("{} {}{}", text, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N');
}

std::vector<Row> all_rows(Scale scale) {
  std::vector<Row> rows;
  for (const auto part :
       {elementwise_rows, reduce_rows, batch_norm_rows, update_rows, product_rows, ladder_rows})
    for (Row& row : part(scale)) rows.push_back(std::move(row));
  return rows;
}

std::vector<Contender> peers_of(const std::string& kernel, const Case& work) {
  std::vector<Contender> result;
  const bool on_cpu = work.outputs[0].tensor.device().kind == Device::Kind::cpu;
  if (Run run = on_cpu ? eigen(kernel, work) : cub(kernel, work))
    result.push_back({on_cpu ? "Eigen" : "CUB", std::move(run)});
  return result;
}

std::vector<Contender> product_peers(const Product& product) {
  std::vector<Contender> result;
  const auto add = [&](std::string name, Run run) {
    if (run) result.push_back({std::move(name), std::move(run)});
  };
  if (product.out.device().kind == Device::Kind::cpu) {
    add("oneDNN", onednn_product(product));
    add("Eigen", eigen_product(product));
  } else {
    add("cuBLAS", cublas_product(product));
  }
  return result;
}

}  // namespace bench
