#pragma once
/// Layers. A module computes a tensor from a tensor and lists its parts; everything that walks a
/// model (parameters, buffers, state dict, train and eval) uses that one list.
///
///   struct Net : nn::Module {
///     nn::Linear first{64, 128}, second{128, 10};
///     Tensor forward(const Tensor& x) override { return second(relu(first(x))); }
///     void visit(nn::Visitor& p) override { p("first", first); p("second", second); }
///   };
///
/// Names are paths, joined with dots: "first.weight". A parameter or buffer that appears twice
/// (tied weights) is listed once, under its first name; two parts of one name throw StateError.
/// What visit() forgets has no name, and no optimizer steps it: backward refuses it, with its shape
/// and the operation that used it.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/system/lifetime.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::nn {

class Module;
namespace detail {
/// clone() below, of any class.
std::unique_ptr<Module> clone(Module& module);
}  // namespace detail

/// What a module calls, once per part, in the order of registration.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// A part of the module that is visited, and its name there.
  virtual void operator()(std::string_view name, Parameter& parameter) = 0;
  virtual void operator()(std::string_view name, Tensor& buffer) = 0;
  virtual void operator()(std::string_view name, Module& child) = 0;
};

/// A module is moved, not copied: a copy would share the parameters, which are handles. clone()
/// below makes a second one with its own parameters.
///
/// An error of forward begins with the innermost layer that it left:
///   layer '2' Linear(64 -> 10): [linear] x has 60 columns, w 64
class Module {
 public:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  /// What the module computes of x. Call it as module(x), which also names it in errors.
  virtual Tensor forward(const Tensor& x) = 0;
  /// Lists the parts: calls the visitor with each one's name.
  virtual void visit(Visitor&) {}

  /// forward(x).
  Tensor operator()(const Tensor& x) { return call(x, Way::forward); }
  /// relu(forward(x)), which a layer may do in one; `for_product` as in linear_relu().
  Tensor then_relu(const Tensor& x, bool for_product = false) {
    return call(x, for_product ? Way::relu_for_product : Way::relu);
  }

  /// What it is, for people: "Linear(64 -> 10)"; at first its C++ class.
  virtual std::string describe() const;
  using Another = std::unique_ptr<Module>;
  /// Another one made with the same options, for clone(). A class says how, or this throws
  /// StateError:
  ///   Another make_another() const override { return std::make_unique<Net>(width_); }
  virtual Another make_another() const;
  /// What it is and the number of its parameters; then a line for each part with its path, what it
  /// is, and the number of parameters directly in it.
  std::string to_string();

  /// All parameters, in order, each named by its path, or by the longer one in a model that has
  /// listed it before. Undefined ones (no bias) are left out.
  std::vector<Parameter> parameters();
  std::vector<Buffer> buffers();  ///< tensors that are no parameters, named likewise

  /// Parameters and buffers by path. The tensors share the model's memory.
  StateDict state_dict();
  /// Copies values in; under DDP on all ranks. Throws StateError for a missing or an unknown name,
  /// ShapeError or DTypeError for a value that does not fit; then nothing has been copied. Without
  /// `strict`, what has no counterpart is left out, and listed in the report. A tied weight may be
  /// there under any of its names, or under several; StateError if these have different bits.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

  /// Moves parameters and buffers to a device; gradients are lost. Before the optimizer and DDP are
  /// made: their state lies where the parameters are. Throws StateError under DDP.
  void to(Device device);

  /// The module of a path ("encoder.2"), as what it is: model.at<nn::Linear>("2"). Throws
  /// UsageError, with the paths that exist, for one that does not or is something else.
  template <class M = Module>
  M& at(std::string_view path);

  /// Calls visit(path, module) for this module (its path is "") and then, depth first, for all
  /// those within.
  void for_each_module(const std::function<void(const std::string& path, Module&)>& visit);

  /// The mode of this module and all within: layers such as Dropout work in training alone.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const;

 protected:
  /// What then_relu() computes.
  virtual Tensor forward_relu(const Tensor& x, bool for_product);
  /// Ends with this module, or when another one is assigned to it.
  Lifetime::Ref life() const { return lifetime_.ref(); }

 private:
  friend class Walk;  // which tells modules their paths
  Module& find(std::string_view path);
  enum class Way : std::uint8_t { forward, relu, relu_for_product };
  Tensor call(const Tensor& x, Way way);
  void note_in_step();
  [[noreturn]] static void throw_other_kind(std::string_view path, const Module& found);

  bool training_ = true;
  Lifetime lifetime_;
  std::string path_;  // in the model that was walked last
};

template <class M>
M& Module::at(std::string_view path) {
  Module& found = find(path);
  M* const module = dynamic_cast<M*>(&found);
  if (!module) throw_other_kind(path, found);
  return *module;
}

/// module.to_string(), which std::cout << module writes.
inline std::string to_string(const Module& module) {
  return const_cast<Module&>(module).to_string();  // visit() may change a module; this does not
}
using lockstep::operator<<;

/// A second module, with the same values, flags and device, in the same mode. Its parameters have
/// no gradients and are under no DDP. Throws StateError, with its class, for a part that does not
/// say how to make_another().
template <std::derived_from<Module> M>
M clone(M& module) {
  return std::move(detail::clone(module)->template at<M>(""));
}

}  // namespace lockstep::nn

template <std::derived_from<lockstep::nn::Module> M>
struct fmt::formatter<M> : lockstep::TextFormatter {};
