#include "lockstep/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/trace/results.h"

namespace lockstep::nn {

/// Walks a model depth first and keeps the path. A tensor that appears twice is met once, under its
/// first path; its other ones are aliases. Two buffers are one if they lie at the same place.
class Walk : public Visitor {
 public:
  std::function<void(const std::string& path, const std::string& first, Tensor* buffer)> on_alias =
      [](auto&&, auto&&, Tensor*) {};
  std::function<void(const std::string& path, Parameter&)> on_parameter = [](auto&&, auto&&) {};
  std::function<void(const std::string& path, Tensor&)> on_buffer = [](auto&&, auto&&) {};
  std::function<void(const std::string& path, Module&)> on_module = [](auto&&, auto&&) {};

  void visit(Module& module) {
    module.path_ = path_.substr(0, path_.empty() ? 0 : path_.size() - 1);
    on_module(module.path_, module);
    module.visit(*this);
  }
  void operator()(std::string_view name, Parameter& parameter) override {
    const std::string path = path_of(name);
    if (!parameter.defined()) return;
    const auto [seen, is_new] = seen_.emplace(std::pair(parameter.id(), std::int64_t{0}), path);
    is_new ? on_parameter(path, parameter) : on_alias(path, seen->second, nullptr);
  }
  void operator()(std::string_view name, Tensor& buffer) override {
    const std::string path = path_of(name);
    if (!buffer.defined()) return;
    if (buffer.numel() == 0) return on_buffer(path, buffer);
    const auto [seen, is_new] = seen_.emplace(std::pair(buffer.raw(), buffer.numel()), path);
    is_new ? on_buffer(path, buffer) : on_alias(path, seen->second, &buffer);
  }
  void operator()(std::string_view name, Module& child) override {
    const std::size_t length = path_.size();
    path_ = path_of(name) + ".";
    visit(child);
    path_.resize(length);
  }

 private:
  std::string path_of(std::string_view name) {
    std::string path = path_ + std::string(name);
    check<StateError>(paths_.insert(path).second, "[visit] names two parts '{}'", path);
    return path;
  }

  std::string path_;
  std::unordered_set<std::string> paths_;
  // The first path of a Parameter::id(), or of a buffer's memory and size.
  std::map<std::pair<const void*, std::int64_t>, std::string> seen_;
};

namespace {

/// The error in flight again, as an E that begins with the layer, unless an inner layer has done
/// that already.
template <class E>
[[noreturn]] void name_layer(const Module& module, const std::string& path, const E& error) {
  const std::string_view text = error.what();
  if (text.starts_with("layer ")) throw;
  E named(fmt::format("layer {}{}: {}", path.empty() ? "" : "'" + path + "' ", module.describe(),
                      text));
  named.blame = error.blame;
  throw named;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.to(Device{}), y = b.to(Device{});
  return x.bytes() == 0 || std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

}  // namespace

namespace {

/// Which parts a module has.
class Parts : public Visitor {
 public:
  void operator()(std::string_view, Parameter& parameter) override {
    all.push_back(parameter.id());
  }
  void operator()(std::string_view, Tensor& buffer) override {
    all.push_back(buffer.defined() ? buffer.raw() : nullptr);
  }
  void operator()(std::string_view, Module& child) override { all.push_back(&child); }
  std::vector<const void*> all;
};

}  // namespace

// A recorded step holds while the module has these parts.
void Module::note_in_step() {
  if (!StepGraph::first_time(this)) return;
  const auto parts = [this] {
    Parts seen;
    visit(seen);
    return seen.all;
  };
  StepGraph::depends_on(lifetime_.ref(), [parts, then = parts()] { return parts() == then; });
}

Tensor Module::call(const Tensor& x, Way way) {
  if (StepGraph::noting()) note_in_step();
  const trace::LayerScope layer(path_);
  try {
    return way == Way::forward ? forward(x) : forward_relu(x, way == Way::relu_for_product);
  } catch (const ShapeError& error) {
    name_layer(*this, path_, error);
  } catch (const DTypeError& error) {
    name_layer(*this, path_, error);
  } catch (const DeviceError& error) {
    name_layer(*this, path_, error);
  }
}

Tensor Module::forward_relu(const Tensor& x, bool) { return relu(forward(x)); }

std::unique_ptr<Module> Module::make_another() const {
  fail<StateError>(
      "[clone] {} does not say how another one is made: override make_another(), or "
      "make one and call load_state_dict(model.state_dict())",
      describe());
}

std::unique_ptr<Module> detail::clone(Module& module) {
  const Generator generator = default_generator();  // making one draws from it
  std::unique_ptr<Module> copy = module.make_another();
  default_generator() = generator;
  const std::vector<Parameter> from = module.parameters(), to = copy->parameters();
  check<StateError>(from.size() == to.size(),
                    "[clone] {} has {} parameters, and the one that make_another() makes {}: what "
                    "was added or tied after construction, make_another() must do, too",
                    module.describe(), from.size(), to.size());
  const StateDict state = module.state_dict();
  copy->load_state_dict(state);  // throws if they are not alike
  if (!state.empty()) copy->to(state.begin()->second.device());
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i].set_requires_grad(from[i].requires_grad());
    if (from[i].kept_local()) to[i].keep_local();
  }
  module.for_each_module([&](const std::string& path, Module& part) {
    copy->at(path).train(part.training());  // the whole before its parts
  });
  return copy;
}

Module& Module::find(std::string_view path) {
  Module* found = nullptr;
  std::string paths;
  for_each_module([&](const std::string& at, Module& module) {
    if (at == path) found = &module;
    if (!at.empty()) paths += " '" + at + "'";
  });
  check<UsageError>(found, "[at] {} has no part '{}'; it has{}", describe(), path,
                    paths.empty() ? " none" : paths);
  return *found;
}

void Module::throw_other_kind(std::string_view path, const Module& found) {
  fail<UsageError>("[at] part '{}' is a {}, not what was asked for", path, found.describe());
}

std::vector<Parameter> Module::parameters() {
  std::vector<Parameter> result;
  Walk walk;
  walk.on_parameter = [&](const std::string& path, Parameter& parameter) {
    if (!parameter.name().ends_with(path)) parameter.set_name(path);
    result.push_back(parameter);
  };
  walk.visit(*this);
  return result;
}

std::vector<Buffer> Module::buffers() {
  std::vector<Buffer> result;
  Walk walk;
  walk.on_buffer = [&](const std::string& path, Tensor& buffer) {
    result.push_back({path, buffer});
  };
  walk.visit(*this);
  return result;
}

StateDict Module::state_dict() {
  StateDict state;
  Walk walk;
  walk.on_parameter = [&](const std::string& path, Parameter& p) { state[path] = p.value(); };
  walk.on_buffer = [&](const std::string& path, Tensor& buffer) { state[path] = buffer; };
  walk.visit(*this);
  return state;
}

// A file of PyTorch's has all names of a tied weight, or one of them.
LoadReport Module::load_state_dict(const StateDict& state, bool strict) {
  for (const Parameter& parameter : parameters())
    check<StateError>(!parameter.averaged(),
                      "[load_state_dict] {} holds an Ema's average for a while, and what is loaded "
                      "would be lost",
                      parameter);
  StateDict by_first_name = state;
  Walk walk;
  walk.on_alias = [&](const std::string& path, const std::string& first, Tensor*) {
    const auto given = by_first_name.extract(path);
    if (given.empty()) return;
    const auto [known, is_new] = by_first_name.emplace(first, given.mapped());
    check<StateError>(is_new || same_bits(known->second, given.mapped()),
                      "[load_state_dict] '{}' and '{}' are one tensor of the model, and differ in "
                      "the state",
                      first, path);
  };
  walk.visit(*this);
  return load_tensors("the model", state_dict(), by_first_name, strict);
}

void Module::to(Device device) {
  for (const Parameter& parameter : parameters())  // all or nothing
    check<StateError>(parameter.value().device() == device || !parameter.managed(),
                      "[to] {} is under DistributedDataParallel: move the model before it is made",
                      parameter);
  std::map<std::string, Tensor> moved;
  Walk walk;
  walk.on_parameter = [&](const std::string&, Parameter& parameter) { parameter.move_to(device); };
  walk.on_buffer = [&](const std::string& path, Tensor& buffer) {
    moved[path] = buffer = buffer.to(device);
  };
  walk.on_alias = [&](const std::string&, const std::string& first, Tensor* buffer) {
    if (buffer) *buffer = moved.at(first);
  };
  walk.visit(*this);
}

void Module::for_each_module(const std::function<void(const std::string& path, Module&)>& visit) {
  Walk walk;
  walk.on_module = visit;
  walk.visit(*this);
}

// "nn::LayerNorm" of "lockstep::nn::LayerNorm"; Function<&lockstep::tanh> shows its function.
std::string Module::describe() const {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? text.get() : typeid(*this).name();
  if (const auto function = name.find("Function<"); function != name.npos) {
    const auto from = name.find_first_not_of("&(", function + 9);
    name = name.substr(from, name.find_first_of("(>", from) - from);
  }
  return name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1);
}

std::string Module::to_string() {
  struct Line {
    std::string path, text;
    std::int64_t parameters;
  };
  std::vector<Line> lines;
  std::unordered_map<std::string, std::size_t> line_of;  // by path
  std::size_t paths = 0, texts = 0;                      // the longest
  std::int64_t all = 0;
  Walk walk;
  walk.on_module = [&](const std::string& path, Module& module) {
    line_of[path] = lines.size();
    lines.push_back({path, module.describe(), 0});
    paths = std::max(paths, path.size());
    texts = std::max(texts, lines.back().text.size());
  };
  walk.on_parameter = [&](const std::string& path, Parameter& parameter) {
    const auto dot = path.rfind('.');
    const std::string owner = dot == path.npos ? "" : path.substr(0, dot);
    if (const auto line = line_of.find(owner); line != line_of.end())
      lines[line->second].parameters += parameter.value().numel();
    all += parameter.value().numel();
  };
  walk.visit(*this);
  std::string result = fmt::format("{}: {} parameters\n", describe(), all);
  const auto digits = fmt::formatted_size("{}", all);
  for (const Line& line : std::span(lines).subspan(1)) {
    result += fmt::format("  {:<{}}  {:<{}}", line.path, paths, line.text, texts);
    if (line.parameters > 0) result += fmt::format("  {:>{}}", line.parameters, digits);
    result.erase(result.find_last_not_of(' ') + 1);
    result += '\n';
  }
  return result;
}

// A recorded step holds for the mode in which it was recorded.
bool Module::training() const {
  if (StepGraph::noting() && StepGraph::first_time(&training_))
    StepGraph::depends_on(lifetime_.ref(), [this, then = training_] { return training_ == then; });
  return training_;
}

void Module::train(bool on) {
  for_each_module([on](const std::string&, Module& module) { module.training_ = on; });
}

}  // namespace lockstep::nn
