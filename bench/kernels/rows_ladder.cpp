// Every rung of kernels/cuda/gemm/, beside cuBLAS at the same precision. In builds with CUDA's
// headers or the simulator's.
#include <type_traits>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/cuda/cublas.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/tools/predict/predict.h"
#include "lockstep/tools/predict/product.h"
#include "products.h"
#include "sizes.h"

namespace bench {
namespace {

using namespace lockstep;

template <class T>
kernels::GemmProblem<T> problem_of(const Product& p) {
  return kernels::problem_of<T>(p.a, p.b, {}, p.out, p.flags);
}

/// Rungs 1 and 2 would take seconds for the largest square.
std::vector<Size> sizes_for(int number, Scale scale) {
  std::vector<Size> result = squares(scale);
  if (!scale.quick && number <= 2) result.pop_back();
  for (const Size& size : layers(scale)) result.push_back(size);
  return result;
}

predict::Product product_of(const Size& size, DType dtype, bool tf32) {
  predict::Product product{size.dims[0], size.dims[1], size.dims[2], size.transpose_a,
                           size.transpose_b};
  if (tf32) product.precision = predict::Precision::tf32;
  if (dtype != DType::f32) product.precision = predict::Precision::bf16;
  product.result_bytes = product.bytes();
  return product;
}

/// operation(product, gpu) on the GPU of the table that the device is, if it is one.
template <class F>
auto prediction(DType dtype, bool tf32, F operation) {
  return [=](const Size& size, const std::string& device) -> std::optional<double> {
    for (const predict::Gpu& gpu : predict::gpus())
      if (device.find(gpu.name) != std::string::npos &&
          device.find(fmt::format(", {} multiprocessors", gpu.processors)) != std::string::npos)
        return predict::predict(operation(product_of(size, dtype, tf32), gpu), gpu).microseconds();
    return {};
  };
}

template <class T>
void add_rungs(std::vector<Row>& rows, Scale scale) {
  for (const kernels::cuda::Rung<T>& rung : kernels::cuda::rungs<T>()) {
    const DType dtype = dtype_of<T>();
    const std::string precision(rung.tf32 ? "tf32" : name_of(dtype));
    const auto prepare = [rung, dtype](const Size& size, Source& source) {
      const Product product = product_of(size, source, dtype, rung.tf32);
      return product_case(
          product, [=] { rung.run(problem_of<T>(product), cuda::queue_of(product.out).stream); });
    };
    const auto operation = [rung](const predict::Product& product, const predict::Gpu& gpu) {
      return product_on_rung(rung.number, product, gpu);
    };
    rows.push_back({fmt::format("gemm_{}_{}", rung.name, precision), sizes_for(rung.number, scale),
                    0, precision, prepare, prediction(dtype, rung.tf32, operation)});
  }
}

/// The rung that the library chooses, at the sizes of training.
template <class T>
void add_chosen(std::vector<Row>& rows, Scale scale, bool tf32) {
  const DType dtype = dtype_of<T>();
  const std::string precision(tf32 ? "tf32" : name_of(dtype));
  const auto prepare = [dtype, tf32](const Size& size, Source& source) {
    const Product product = product_of(size, source, dtype, tf32);
    return product_case(product, [=] {
      const cudaStream_t stream = cuda::queue_of(product.out).stream;
      if constexpr (std::is_same_v<T, float>)
        if (tf32) return kernels::cuda::gemm_tf32(problem_of<T>(product), stream);
      kernels::cuda::gemm(problem_of<T>(product), stream);
    });
  };
  rows.push_back({"gemm_chosen_" + precision, trained(scale), 0, precision, prepare,
                  prediction(dtype, tf32, predict::chosen_product)});
}

}  // namespace

std::vector<Row> ladder_rows(Scale scale) {
  std::vector<Row> rows;
  if (!scale.on_gpu) return rows;
  add_rungs<float>(rows, scale);
  add_rungs<BFloat16>(rows, scale);
  add_rungs<Half>(rows, scale);
  add_chosen<float>(rows, scale, false);
  add_chosen<float>(rows, scale, true);
  add_chosen<BFloat16>(rows, scale, false);
  return rows;
}

Run cublas_product(const Product& product) {
  if (!kernels::cuda::cublas_available()) return {};
  return [product] {
    visit_any_floating("cublas", product.out.dtype(), [&](auto zero) {
      kernels::cuda::cublas_gemm(problem_of<decltype(zero)>(product),
                                 cuda::queue_of(product.out).stream, product.tf32);
    });
  };
}

}  // namespace bench
