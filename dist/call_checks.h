#pragma once
/// What the arguments of a collective must satisfy, the same for every communicator. `name` is the
/// name that the caller gave to the call; it is in the messages.

#include <cstdint>
#include <string_view>

#include "lockstep/dist/plan.h"

namespace lockstep::dist {

/// Which elements a communicator can add up.
enum class Sums : std::uint8_t {
  wide,    ///< f32, f64, i32 and i64
  narrow,  ///< f16 and bf16 too: in f32, rounded once
};

/// DTypeError unless elements of `data` can be added.
void check_all_reduce(const Tensor& data, std::string_view name, Sums sums = Sums::wide);
/// DTypeError for the same reason, or if the two differ; ShapeError unless `output` has the size of
/// this rank's part.
void check_reduce_scatter(const Tensor& input, const Tensor& output, int rank, int size,
                          std::string_view name, Sums sums = Sums::wide);
void check_all_gather(const Tensor& input, const Tensor& output, int rank, int size,
                      std::string_view name);
/// CommError unless there is a rank `root`.
void check_broadcast(int root, int size, std::string_view name);
/// DeviceError if `tensor` is defined and not on the cpu.
void check_on_host(Operation operation, const Tensor& tensor, std::string_view name);

}  // namespace lockstep::dist
