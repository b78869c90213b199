// An operation on an undefined tensor says which operation it is, and which of its operands.

#include <doctest/doctest.h>

#include <functional>
#include <regex>
#include <set>
#include <string>

#include "lockstep/autograd/ops.h"
#include "support/op_table.h"

using namespace lockstep;

namespace {

/// "[operation] operand is undefined"; other messages do not say who has asked for what.
const std::regex says_both("^\\[[a-z0-9_~]+\\] [a-z0-9_\\[\\]]+ is undefined$");

/// Their functions in the table ask their first operand themselves, for labels beside it.
const std::set<std::string> asks_first = {"batch_norm with constant statistics",
                                          "cross_entropy",
                                          "cross_entropy with options",
                                          "embedding",
                                          "gather",
                                          "index_select"};

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const StateError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("undefined: each operation of the table names itself and the operand") {
  int refused = 0;
  for (const OpCase& op : op_table()) {
    if (op.shapes.empty()) continue;
    for (std::size_t i = 0; i < op.shapes[0].size(); ++i) {
      std::vector<Tensor> x = operands(op, op.shapes[0], DType::f64, {});
      x[i] = {};
      const std::string message = message_of([&] { op.function(x); });
      CAPTURE(op.name);
      CAPTURE(i);
      CAPTURE(message);
      if (message.empty()) continue;  // it may be left out: a bias
      if (i == 0 && asks_first.contains(op.name)) continue;
      ++refused;
      CHECK(std::regex_match(message, says_both));
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("undefined: with numbers, in place, and without gradients") {
  const Tensor none, x = Tensor::full({2, 3}, 1);
  struct Case {
    const char* message;
    std::function<void()> run;
  };
  const Case cases[] = {
      {"[add] a is undefined", [&] { return none + x; }},
      {"[add] b is undefined", [&] { return x + none; }},
      {"[add] a is undefined", [&] { return none + 1.0; }},
      {"[sub] b is undefined", [&] { return 1.0 - none; }},
      {"[mul] a is undefined", [&] { return none * 2.0; }},
      {"[div] a is undefined", [&] { return none / 2.0; }},
      {"[div] b is undefined", [&] { return 2.0 / none; }},
      {"[remainder] a is undefined", [&] { return none % 2.0; }},
      {"[add] a is undefined", [&] { return none += x; }},
      {"[sub] b is undefined", [&] { return x -= none; }},
      {"[mul] a is undefined", [&] { return none *= 2.0; }},
      {"[neg] x is undefined", [&] { return -none; }},
      {"[pow] x is undefined", [&] { return pow(none, 3.0); }},
      {"[pow] exponent is undefined", [&] { return pow(3.0, none); }},
      {"[compare] a is undefined", [&] { return none == x; }},
      {"[compare] b is undefined", [&] { return x < none; }},
      {"[compare] a is undefined", [&] { return none > 1.0; }},
      {"[and] b is undefined", [&] { return (x > 0.0) & none; }},
      {"[~] mask is undefined", [&] { return ~none; }},
      {"[isinf] x is undefined", [&] { return isinf(none); }},
      {"[allclose] b is undefined", [&] { return allclose(x, none); }},
      {"[where] mask is undefined", [&] { return where(none, x, x); }},
      {"[where] b is undefined", [&] { return where(x > 0.0, 1.0, none); }},
      {"[masked_fill] mask is undefined", [&] { return masked_fill(x, none, 1); }},
      {"[cat] tensors[1] is undefined",
       [&] {
         cat({x, none}, 0);
       }},
      {"[stack] tensors[0] is undefined",
       [&] {
         stack({none, x}, 0);
       }},
      {"[argmax] x is undefined", [&] { return argmax(none, 0); }},
      {"[one_hot] labels is undefined", [&] { return one_hot(none, 3); }},
      {"[embedding] table is undefined", [&] { return embedding(none, x); }},
      {"[embedding] index is undefined", [&] { return embedding(x, none); }},
      {"[gather] x is undefined", [&] { return gather(none, 0, x); }},
      {"[index_select] x is undefined", [&] { return index_select(none, 0, x); }},
      {"[batch_norm] mean is undefined",
       [&] { return batch_norm(x, none, none, BatchStatistics()); }},
      {"[cross_entropy] logits is undefined", [&] { return cross_entropy(none, none); }},
      {"[cross_entropy] labels is undefined", [&] { return cross_entropy(x, none); }},
      {"[dropout] x is undefined", [&] { return dropout(none, 0); }},
      {"[cast] x is undefined", [&] { return cast(none, DType::f32); }},
      {"[linear] w is undefined", [&] { return linear(x, none); }},
      {"[matmul] b is undefined", [&] { return matmul(x, none); }},
      {"[layer_norm] x is undefined", [&] { return layer_norm(none); }},
      {"[batch_norm] x is undefined", [&] { return batch_norm(none, none, none); }},
      {"[any] mask is undefined", [&] { return any(none); }},
      {"[chunk] x is undefined", [&] { return chunk(none, 2, 0); }},
      {"[backward] loss is undefined", [&] { return Tape().backward(none); }},
      {"[watch] tensor is undefined", [&] { return Tape().watch(none); }},
      {"[gradient] watched is undefined", [&] { return Tape().gradient(none); }},
  };
  for (const auto& [message, run] : cases) CHECK(message_of(run) == message);
}
