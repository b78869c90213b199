#pragma once
/// What the arguments of a collective must satisfy, the same for every communicator. `name` is the
/// name that the caller gave to the call; it is in the messages.

#include <cstdint>
#include <string_view>

#include "lockstep/dist/collectives/plan.h"

namespace lockstep::dist {

/// DTypeError unless elements of `data` can be added: u8 cannot.
void check_all_reduce(const Tensor& data, std::string_view name);
/// DTypeError for the same reason, or if the two differ; ShapeError unless `output` has the size of
/// this rank's part.
void check_reduce_scatter(const Tensor& input, const Tensor& output, int rank, int size,
                          std::string_view name);
void check_all_gather(const Tensor& input, const Tensor& output, int rank, int size,
                      std::string_view name);
/// CommError unless there is a rank `root`.
void check_broadcast(int root, int size, std::string_view name);
/// DeviceError if `tensor` is defined and not on the cpu.
void check_on_host(Operation operation, const Tensor& tensor, std::string_view name);

}  // namespace lockstep::dist
