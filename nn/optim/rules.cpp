#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

void check_range(std::string_view where, std::string_view name, double value, Range range) {
  check<UsageError>(std::isfinite(value) && value >= range.low && value < range.high,
                    "[{}] {} must be in {}{}, {}), got {}", where, name,
                    std::isfinite(range.low) ? '[' : '(', range.low, range.high, value);
}

void SgdRule::visit(auto& o, const auto& visit) {
  visit("lr", o.lr, not_negative);
  visit("momentum", o.momentum, not_negative);
  visit("dampening", o.dampening, any_number);
  visit("weight_decay", o.weight_decay, not_negative);
  visit("nesterov", o.nesterov);
  visit("maximize", o.maximize);
}

void SgdRule::check_together(const SgdOptions& o) {
  check<UsageError>(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                    "[SGD] nesterov needs momentum > 0 and dampening 0, got {} and {}", o.momentum,
                    o.dampening);
}

void AdamRule::visit(auto& o, const auto& visit) {
  visit("lr", o.lr, not_negative);
  visit("beta1", o.beta1, share);
  visit("beta2", o.beta2, share);
  visit("eps", o.eps, not_negative);
  visit("weight_decay", o.weight_decay, not_negative);
  visit("amsgrad", o.amsgrad);
  visit("maximize", o.maximize);
  if constexpr (requires { o.decoupled; }) visit("decoupled", o.decoupled);
}

void RmspropRule::visit(auto& o, const auto& visit) {
  visit("lr", o.lr, not_negative);
  visit("alpha", o.alpha, share);
  visit("eps", o.eps, not_negative);
  visit("weight_decay", o.weight_decay, not_negative);
  visit("momentum", o.momentum, not_negative);
  visit("centered", o.centered);
  visit("maximize", o.maximize);
}

void LionRule::visit(auto& o, const auto& visit) {
  visit("lr", o.lr, not_negative);
  visit("beta1", o.beta1, share);
  visit("beta2", o.beta2, share);
  visit("weight_decay", o.weight_decay, not_negative);
  visit("maximize", o.maximize);
}

template class Grouped<SgdRule>;
template class Grouped<AdamRule>;
template class Grouped<AdamWRule>;
template class Grouped<RmspropRule>;
template class Grouped<LionRule>;

}  // namespace lockstep::optim
