#include "lockstep/dist/collectives/call_checks.h"

namespace lockstep::dist {
namespace {

bool summable(DType dtype) { return dtype != DType::u8; }
constexpr std::string_view summable_dtypes = "f32, f64, i32, i64, f16 or bf16";

}  // namespace

void check_all_reduce(const Tensor& data, std::string_view name) {
  check<DTypeError>(summable(data.dtype()), "[all_reduce] '{}' takes {}, got {}", name,
                    summable_dtypes, data.dtype());
}

void check_reduce_scatter(const Tensor& input, const Tensor& output, int rank, int size,
                          std::string_view name) {
  check<DTypeError>(summable(input.dtype()) && input.dtype() == output.dtype(),
                    "[reduce_scatter] '{}' takes {} twice, got {} and {}", name, summable_dtypes,
                    input.dtype(), output.dtype());
  const std::int64_t part = partition(input.numel(), size, rank).size();
  check<ShapeError>(output.numel() == part,
                    "[reduce_scatter] '{}': output has {} elements, this rank's part of {} is {}",
                    name, output.numel(), input.numel(), part);
}

void check_all_gather(const Tensor& input, const Tensor& output, int rank, int size,
                      std::string_view name) {
  check<DTypeError>(input.dtype() == output.dtype(), "[all_gather] '{}': input is {}, output {}",
                    name, input.dtype(), output.dtype());
  const std::int64_t part = partition(output.numel(), size, rank).size();
  check<ShapeError>(input.numel() == part,
                    "[all_gather] '{}': input has {} elements, this rank's part of {} is {}", name,
                    input.numel(), output.numel(), part);
}

void check_broadcast(int root, int size, std::string_view name) {
  check<CommError>(root >= 0 && root < size, "[broadcast] '{}': root {} in a world of {}", name,
                   root, size);
}

void check_on_host(Operation operation, const Tensor& tensor, std::string_view name) {
  if (tensor.defined() && tensor.device() != Device{})
    fail<DeviceError>("[{}] '{}' lies on {}, this communicator reaches the cpu alone",
                      name_of(operation), name, tensor.device().to_string());
}

}  // namespace lockstep::dist
