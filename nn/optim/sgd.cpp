#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {
namespace {

void validate(const SGD::Options& o) {
  check_range("SGD", "lr", o.lr, 0, infinity);
  check_range("SGD", "momentum", o.momentum, 0, infinity);
  check_range("SGD", "weight_decay", o.weight_decay, 0, infinity);
  check<UsageError>(std::isfinite(o.dampening), "[SGD] dampening must be a number, got {}",
                    o.dampening);
  check<UsageError>(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                    "[SGD] nesterov needs momentum > 0 and dampening 0, got {} and {}", o.momentum,
                    o.dampening);
}

}  // namespace

SGD::SGD(std::vector<Parameter> parameters, Options options)
    : SGD(std::vector<Group<Options>>{{std::move(parameters), options}}) {}

SGD::SGD(std::vector<Group<Options>> groups)
    : Optimizer(all_of(groups)), groups_(std::move(groups)), states_(groups_.size()) {
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    validate(groups_[k].options);
    states_[k].momentum.resize(groups_[k].parameters.size());
    states_[k].items.reserve(groups_[k].parameters.size());
  }
}

std::uint64_t SGD::options_digest() const {
  Fnv1a digest;
  digest.add("SGD");
  for (const auto& [parameters, o] : groups_)
    add(digest, {o.lr, o.momentum, o.dampening, o.weight_decay, static_cast<double>(o.nesterov)});
  return digest.value();
}

std::string SGD::options_text() const {
  std::string text;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Options& o = groups_[i].options;
    text += fmt::format(
        "{0}'s lr {1}\n{0}'s momentum {2}\n{0}'s dampening {3}\n{0}'s weight_decay {4}\n"
        "{0}'s nesterov {5}\n",
        name_of_group("SGD", i, groups_.size()), o.lr, o.momentum, o.dampening, o.weight_decay,
        o.nesterov);
  }
  return text;
}

void SGD::check_options() const {
  check_members("SGD", groups_, all());
  for (const auto& group : groups_) validate(group.options);
}

void SGD::update() {
  depends_on_options(groups_);
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, o] = groups_[k];
    auto& [momentum, items] = states_[k];
    items.clear();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (!takes_part(parameter)) continue;
      const Tensor& value = parameter.value();
      const bool first = o.momentum != 0 && !momentum[i].defined();
      if (first) momentum[i] = Tensor::empty(value.shape(), value.dtype(), value.device());
      items.push_back(
          {value, parameter.gradient_slot(), momentum[i], first, fingerprint(parameter)});
    }
    kernels::sgd_step(items, {.lr = o.lr,
                              .momentum = o.momentum,
                              .dampening = o.dampening,
                              .weight_decay = o.weight_decay,
                              .nesterov = o.nesterov});
  }
}

std::vector<StateTensor> SGD::state_of(const Parameter& parameter) const {
  const auto [k, i] = find(groups_, parameter);
  if (k == groups_.size() || !states_[k].momentum[i].defined()) return {};
  return {{"momentum", states_[k].momentum[i]}};
}

void SGD::forget(const Parameter& parameter) {
  const auto [k, i] = find(groups_, parameter);
  if (k < groups_.size()) states_[k].momentum[i] = {};
}

}  // namespace lockstep::optim
