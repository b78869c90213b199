#pragma once
/// Recomputed blocks (activation checkpointing): memory for time. What the operations of a block
/// save for backward is not kept; backward runs the block's forward once more (Chen, Xu, Zhang &
/// Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, 2016, section 4).
///
///   Tensor h = checkpoint([&](const Tensor& x) { return block(x); }, x);
///
/// To the tape a block is one operation. Its first run, which saves nothing, notes the parameters
/// that it uses: they become inputs of that operation, so each of them gets one contribution more,
/// and is ready when its last contribution has been added, inside of the block or elsewhere.
///
/// Both runs draw the same random numbers, and afterwards the generators stand where one run left
/// them. The second run must do what the first did: if it uses other parameters, backward throws
/// StateError, naming one. (That it does the same with them is not checked: train() or eval()
/// between forward and backward, say, gives other gradients.) What a block computes with must come
/// in as an argument or be a parameter or a constant: a tensor recorded outside is refused.

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/autograd/tape.h"

namespace lockstep {

/// block(inputs), recomputed in backward if a tape is alive.
Tensor checkpoint(std::function<Tensor(std::span<const Tensor>)> block, std::vector<Tensor> inputs);

/// The same with a function of as many tensors as are given.
template <class F, class... Tensors>
Tensor checkpoint(F block, const Tensor& first, const Tensors&... rest) {
  return checkpoint(std::function([block = std::move(block)](std::span<const Tensor> in) {
                      return [&]<std::size_t... I>(std::index_sequence<I...>) {
                        return block(in[I]...);
                      }
                      (std::make_index_sequence<1 + sizeof...(Tensors)>());
                    }),
                    std::vector<Tensor>{first, rest...});
}

/// True while this thread runs a block for the second time: what a forward counts or tracks
/// (running statistics) has been counted before.
bool recomputing();

}  // namespace lockstep
