// A module whose visit() leaves out a part that its forward uses, which nothing would ever step, or
// gives two parts one name, of which a state dict would keep one.

#include <doctest/doctest.h>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// visit() forgets a layer, or a parameter of its own, as a user might.
struct Forgetful : nn::Module {
  nn::Linear first{3, 4, true, DType::f64}, second{4, 2, true, DType::f64};
  Parameter gain{Tensor::ones({4}, DType::f64)};
  bool lists_second = false, lists_gain = true;

  Tensor forward(const Tensor& x) override { return second(tanh(first(x)) * gain); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    if (lists_second) p("second", second);
    if (lists_gain) p("gain", gain);
  }
};

std::string refusal_of(Forgetful& model) {
  Tape tape;
  try {
    tape.backward(loss_of(model, 0, 2));
  } catch (const StateError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a layer that visit() forgets is refused beside parameters that an optimizer steps") {
  Forgetful model;
  const optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  const std::string text = refusal_of(model);
  INFO(text);
  CHECK(text.starts_with("[backward] the loss reaches a parameter of shape (2"));
  CHECK(text.find("that no visit() names, used by 'linear', and '") != std::string::npos);
  CHECK(text.find("which an optimizer steps") != std::string::npos);
}

TEST_CASE("a parameter that visit() forgets is refused with its shape and who used it") {
  Forgetful model;
  model.lists_second = true;
  model.lists_gain = false;
  CHECK(refusal_of(model).empty());  // nobody steps anything yet: gradients are all that is wanted
  const optim::Adam optimizer(model.parameters(), optim::AdamOptions{});
  const std::string text = refusal_of(model);
  INFO(text);
  CHECK(text.starts_with(
      "[backward] the loss reaches a parameter of shape (4,) that no visit() names, used by "
      "'mul', and '"));
}

TEST_CASE("what is named, frozen, stepped by an optimizer or kept local is not forgotten") {
  const auto passes = [](const auto& change) {
    Forgetful model;
    model.lists_second = true;
    model.lists_gain = false;
    const optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    change(model);
    return refusal_of(model).empty();
  };
  CHECK_FALSE(passes([](Forgetful&) {}));
  CHECK(passes([](Forgetful& model) { model.gain.set_name("gain"); }));
  CHECK(passes([](Forgetful& model) { model.gain.set_requires_grad(false); }));
  CHECK(passes([](Forgetful& model) { model.gain.keep_local(); }));
  CHECK(passes([](Forgetful& model) { optim::SGD({model.gain}, {.lr = 0.1}); }));
}

TEST_CASE(
    "trap 3: under DDP a forgotten parameter is refused on every rank, before anything moves") {
  for (const int ranks : {2, 3, 4, 7}) {
    const auto messages = messages_on_threads(ranks, [](World& world) {
      Forgetful model;
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      Tape tape;
      tape.backward(loss_of(model, world.rank(), world.rank() + 2));
    });
    check_all_say(messages, {"a parameter of shape (2", "that no visit() names, used by 'linear'",
                             "which is under DistributedDataParallel", "visit()?"});
  }
}

TEST_CASE("other errors about a parameter without a name tell its shape") {
  const Parameter nameless(Tensor::ones({2, 3}));
  CHECK(nameless.label() == "a parameter of shape (2, 3) that no visit() names");
  CHECK(fmt::format("{}", Parameter(Tensor::ones({1}), "2.weight")) == "'2.weight'");
  CHECK_THROWS_WITH_AS(optim::SGD({nameless, nameless}, {.lr = 0.1}),
                       "[optimizer] parameter 1 (unnamed, of shape (2, 3)) is given twice",
                       UsageError);
  CHECK_THROWS_WITH_AS(nameless.place_gradient(Tensor::ones({2})),
                       doctest::Contains("a parameter of shape (2, 3) that no visit() names is"),
                       ShapeError);
}

TEST_CASE("two parts of one name are refused, whatever they are") {
  struct Twice : nn::Module {
    nn::Linear a{2, 3}, b{3, 2};
    nn::Tanh c;
    Parameter p{Tensor::ones({2})}, same{Tensor::ones({2})};
    Tensor buffer = Tensor::zeros({2});
    int kind = 0;
    Tensor forward(const Tensor& x) override { return b(a(x)); }
    void visit(nn::Visitor& v) override {
      v("a", a);
      if (kind == 0) v("a", b);
      if (kind == 1) v("a", c);
      if (kind == 2) v("a", buffer);
      if (kind == 3) v("a.weight", p);
      if (kind == 4) v("p", p), v("p", same);
      if (kind == 5) v("tied", a.weight);  // listed once, as "a.weight"
    }
  };
  Twice model;
  for (model.kind = 0; model.kind < 5; ++model.kind) {
    CAPTURE(model.kind);
    CHECK_THROWS_AS(model.parameters(), StateError);
    CHECK_THROWS_AS(model.state_dict(), StateError);
    CHECK_THROWS_AS(model.to_string(), StateError);
  }
  CHECK(model.state_dict().size() == 2);
  model.kind = 0;
  CHECK_THROWS_WITH(model.parameters(), "[visit] names two parts 'a'");
}
