#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

void check_range(std::string_view where, std::string_view name, double value, Range range) {
  check<UsageError>(std::isfinite(value) && value >= range.low && value < range.high,
                    "[{}] {} must be in {}{}, {}), got {}", where, name,
                    std::isfinite(range.low) ? '[' : '(', range.low, range.high, value);
}

std::array<Option, 6> SgdRule::list(const SgdOptions& o) {
  return {{
      {"lr", o.lr, not_negative},
      {"momentum", o.momentum, not_negative},
      {"dampening", o.dampening, any_number},
      {"weight_decay", o.weight_decay, not_negative},
      {"nesterov", o.nesterov},
      {"maximize", o.maximize},
  }};
}

void SgdRule::check_together(const SgdOptions& o) {
  check<UsageError>(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                    "[SGD] nesterov needs momentum > 0 and dampening 0, got {} and {}", o.momentum,
                    o.dampening);
}

std::array<Option, 8> AdamRule::list(const AdamOptions& o) {
  return {{
      {"lr", o.lr, not_negative},
      {"beta1", o.beta1, share},
      {"beta2", o.beta2, share},
      {"eps", o.eps, not_negative},
      {"weight_decay", o.weight_decay, not_negative},
      {"amsgrad", o.amsgrad},
      {"maximize", o.maximize},
      {"decoupled", o.decoupled},
  }};
}

std::array<Option, 7> RmspropRule::list(const RmspropOptions& o) {
  return {{
      {"lr", o.lr, not_negative},
      {"alpha", o.alpha, share},
      {"eps", o.eps, not_negative},
      {"weight_decay", o.weight_decay, not_negative},
      {"momentum", o.momentum, not_negative},
      {"centered", o.centered},
      {"maximize", o.maximize},
  }};
}

std::array<Option, 5> LionRule::list(const LionOptions& o) {
  return {{
      {"lr", o.lr, not_negative},
      {"beta1", o.beta1, share},
      {"beta2", o.beta2, share},
      {"weight_decay", o.weight_decay, not_negative},
      {"maximize", o.maximize},
  }};
}

template class Grouped<SgdRule>;
template class Grouped<AdamRule>;
template class Grouped<AdamWRule>;
template class Grouped<RmspropRule>;
template class Grouped<LionRule>;

}  // namespace lockstep::optim
