#include "lockstep/kernels/elementwise.h"

#include "lockstep/kernels/functors.h"

namespace lockstep::kernels {

std::string_view name_of(Unary op) {
  return visit(op, [](auto functor) { return decltype(functor)::name; });
}

std::string_view name_of(Binary op) {
  return visit(op, [](auto functor) { return decltype(functor)::name; });
}

bool saves_output(Unary op) {
  return visit(op, [](auto functor) { return decltype(functor)::saves_output; });
}

}  // namespace lockstep::kernels
