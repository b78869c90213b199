#pragma once
/// What a kind of device has to be able to do. The functions of elementwise.h, reduce.h, ... check
/// their arguments, then call the backend of the device on which the tensors lie: one switch, in
/// `backend_of`. What the functions compute is documented in their headers; here they may rely on
/// checked arguments: everything defined, on this device, of dtypes and shapes that fit.
///
/// GPU work is only enqueued, on the device's current stream (core/gpu/stream.h).

#include <span>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"

namespace lockstep::kernels {

class Backend {
 public:
  virtual ~Backend() = default;

#define LOCKSTEP_BACKEND = 0
#include "lockstep/kernels/backend/functions.h"
#undef LOCKSTEP_BACKEND
};

/// The one place that chooses. Throws DeviceError for a device that this build does not drive.
Backend& backend_of(Device device);

Backend& cpu_backend();
/// Defined in cuda/ in builds with a GPU or the simulator, else in absent.cpp, where it throws.
Backend& gpu_backend();

}  // namespace lockstep::kernels
