#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {
namespace {

void validate(const AdamOptions& o) {
  check_range("Adam", "lr", o.lr, 0, infinity);
  check_range("Adam", "beta1", o.beta1, 0, 1);
  check_range("Adam", "beta2", o.beta2, 0, 1);
  check_range("Adam", "eps", o.eps, 0, infinity);
  check_range("Adam", "weight_decay", o.weight_decay, 0, infinity);
}

}  // namespace

Adam::Adam(std::vector<Parameter> parameters, Options options)
    : Adam({{std::move(parameters), options}}, false) {}

Adam::Adam(std::vector<Group<Options>> groups, bool decoupled)
    : Optimizer(all_of(groups)),
      decoupled_(decoupled),
      groups_(std::move(groups)),
      states_(groups_.size()) {
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    validate(groups_[k].options);
    for (const Parameter& parameter : groups_[k].parameters) {
      const Tensor& value = parameter.value();
      states_[k].first.push_back(Tensor::zeros(value.shape(), value.dtype(), value.device()));
      states_[k].second.push_back(Tensor::zeros(value.shape(), value.dtype(), value.device()));
      states_[k].steps.push_back(Tensor::zeros({}, DType::i64, value.device()));
    }
    states_[k].items.reserve(groups_[k].parameters.size());
  }
}

std::uint64_t Adam::options_digest() const {
  Fnv1a digest;
  digest.add(decoupled_ ? "AdamW" : "Adam");
  for (const auto& [parameters, o] : groups_)
    add(digest, {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay});
  return digest.value();
}

std::string Adam::options_text() const {
  std::string text;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Options& o = groups_[i].options;
    text += fmt::format(
        "{0}'s lr {1}\n{0}'s beta1 {2}\n{0}'s beta2 {3}\n{0}'s eps {4}\n{0}'s weight_decay {5}\n",
        name_of_group(decoupled_ ? "AdamW" : "Adam", i, groups_.size()), o.lr, o.beta1, o.beta2,
        o.eps, o.weight_decay);
  }
  return text;
}

void Adam::check_options() const {
  check_members("Adam", groups_, all());
  for (const auto& group : groups_) validate(group.options);
}

void Adam::update() {
  depends_on_options(groups_);
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, o] = groups_[k];
    auto& [first, second, steps, items] = states_[k];
    items.clear();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (!takes_part(parameter)) continue;
      items.push_back({parameter.value(), parameter.gradient_slot(), first[i], second[i], steps[i],
                       fingerprint(parameter)});
    }
    kernels::adam_step(items, {.lr = o.lr,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .weight_decay = o.weight_decay,
                               .decoupled = decoupled_});
  }
}

std::vector<StateTensor> Adam::state_of(const Parameter& parameter) const {
  const auto [k, i] = find(groups_, parameter);
  if (k == groups_.size()) return {};
  const State& state = states_[k];
  return {{"mean", state.first[i]}, {"variance", state.second[i]}, {"step", state.steps[i]}};
}

}  // namespace lockstep::optim
