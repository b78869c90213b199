#pragma once
/// A tensor that an operation keeps for its backward. Backward needs the elements as they were in
/// forward. If code changes them in place in between (an optimizer's step, copy_from, fill), the
/// gradient would be silently wrong: here it is an error.
///
/// Example: a GAN's discriminator runs on generated samples, its optimizer steps, and only then the
/// generator's loss goes backward through the discriminator's old weights.
///
/// What counts is the memory: a write to another slice of it is an error, too. Writes through
/// data() or span() and by collectives are not seen. Thread-safety: as Tape.

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

class SavedTensor {
 public:
  SavedTensor() = default;  ///< none: undefined
  explicit SavedTensor(const Tensor& tensor);

  /// The tensor, cut off from any tape. Throws StateError if its memory has been written to.
  const Tensor& operator*() const {
    if (tensor_.defined() && tensor_.storage().version() != version_) [[unlikely]]
      throw_changed();
    return tensor_;
  }
  const Tensor* operator->() const { return &**this; }
  const Shape& shape() const { return tensor_.shape(); }

 private:
  [[noreturn]] void throw_changed() const;

  Tensor tensor_;
  GradientRef origin_;  // for the message: of which parameter it is the value
  std::uint32_t version_ = 0;
};

}  // namespace lockstep
