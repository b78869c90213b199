#include "lockstep/dist/collectives/differentiable.h"

#include <string>

#include "lockstep/autograd/rows.h"

namespace lockstep::dist {
namespace {

Tensor summed(std::string_view operation, const Tensor& x, Communicator& communicator,
              std::string_view name) {
  check<DTypeError>(is_differentiable(x.dtype()), "[{}] '{}' takes f32 or f64, got {}", operation,
                    name, x.dtype());
  const Tensor host = Tensor::empty(x.shape(), x.dtype());
  host.copy_from(x);
  communicator.all_reduce(host, name).wait();
  return host.to(x.device());
}

}  // namespace

// y_q = sum_r x_r on every rank q, and l = sum_q l_q(y_q):  dx_r = sum_q dy_q
Tensor all_reduce_varying(const Tensor& x, Communicator& communicator, std::string_view name) {
  static constexpr const char* operation = "all_reduce_varying";
  return record(operation, summed(operation, x.detach(), communicator, name), {shared(x)},
                [world = CommunicatorRef(communicator), name = std::string(name)](Gradients& g) {
                  const Tensor& dy = g.output();
                  const Tensor mine =
                      g.zero_weight() ? Tensor::zeros(dy.shape(), dy.dtype(), dy.device()) : dy;
                  Communicator& communicator =
                      world.get(fmt::format("[{}] '{}', backward", operation, name));
                  g.pass(0, summed(operation, mine, communicator, name + ", backward"));
                });
}

// y = sum_r x_r, and l = l(y), the same on every rank:  dx_r = dy
Tensor all_reduce_invariant(const Tensor& x, Communicator& communicator, std::string_view name) {
  constexpr const char* operation = "all_reduce_invariant";
  return record(operation, summed(operation, x.detach(), communicator, name), {shared(x)},
                [](Gradients& g) { g.pass(0, g.output()); });
}

}  // namespace lockstep::dist
