#pragma once
/// Clipping of gradients, between backward and step:
///
///   tape.backward(loss);
///   optim::clip_grad_norm(model.parameters(), 1.0);
///   optimizer.step();
///
/// Parameters without a gradient are skipped; one that is given twice is refused (check_each_once).
/// A parameter under DDP whose gradient is not synchronized is refused, by name (StateError): the
/// ranks would scale by different factors. Synchronized gradients have the same bits on every rank,
/// and so have the norm and the result, whatever the bucket cap. So parameters under DDP and others
/// are not clipped together (StateError): the others' gradients differ, and so would the factor.

#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the length of all
/// gradients laid end to end: kernels/clip.h, also on what NaN does. Returns the norm before
/// clipping: f64, (), on the parameters' device; nothing waits unless it is read. Throws UsageError
/// unless max_norm is positive and finite, DeviceError if the parameters lie on several devices.
Tensor clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm);
/// Before step(optim::local): this rank's own gradients, by their own norm.
Tensor clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm, Local);

/// Moves every element of every gradient into [-limit, limit]. Throws UsageError unless limit is
/// positive and finite.
void clip_grad_value(const std::vector<Parameter>& parameters, double limit);

}  // namespace lockstep::optim
