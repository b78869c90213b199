#pragma once
/// Two all-reduces that the tape records. Both compute y = the sum of x over the ranks, on every
/// rank. They differ in what the ranks do with y, and therefore in the gradient of x:
///
///   after it, every rank has...       name        the gradient of x          for example
///   its own computation, whose        varying     the sum over the ranks of  statistics that each
///   losses count together                         the gradients of y         rank applies to its
///                                                                            own rows
///   the same computation, on the      invariant   the gradient of y: every   the sum of the ranks'
///   same data: one loss, known to                 rank holds all of it       losses
///   all
///
/// Let the ranks' losses be l_0, l_1, ...; training minimizes their (weighted) sum l. With
/// `varying`, rank q's y goes into l_q, and x into every y: dl/dx = sum over q of dl_q/dy, an
/// all-reduce. With `invariant` there is one loss, which every rank computes for itself, and one y:
/// dl/dx = dl/dy. Taking `varying` for `invariant` adds up W copies of one gradient, where W is the
/// number of ranks: the gradient is too large by the factor W, which a tuned learning rate hides.
/// Taking `invariant` for `varying` loses the gradients of the other ranks' losses.
///
/// Under DistributedDataParallel: without a weight, every rank seeds backward with 1 / W, which
/// gives the mean over the ranks of their losses. A loss that `invariant` has already summed over
/// the ranks must not be divided again: call tape.backward(loss, Weight{1, 1}) on every rank. Then
/// each rank's gradients are its own share of the loss's, and the reducer adds up the shares.
///
/// f32 and f64 (DTypeError for others), any shape; x is not changed. Tensors on a GPU travel
/// through the host. Collective in forward; `varying` also in backward, where every rank must need
/// the gradient of x. A rank whose loss has weight 0 adds exact zeros there and loses what comes
/// back: it must have no rows. The communicator must outlive the tape.

#include <string_view>

#include "lockstep/autograd/tape.h"
#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

/// The sum of x over the ranks, which then compute different things. Backward is an all-reduce.
Tensor all_reduce_varying(const Tensor& x, Communicator& communicator, std::string_view name);

/// The sum of x over the ranks, which then all compute the same. Backward is the identity.
Tensor all_reduce_invariant(const Tensor& x, Communicator& communicator, std::string_view name);

}  // namespace lockstep::dist
