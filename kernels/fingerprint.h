#pragma once
/// Fingerprints: 64-bit sums that tell whether tensors of several ranks have the same bits. DDP
/// compares them at every step (dist/ddp/guards/replica_check.h).
///
/// The elements are taken as words of 32 bits: one per f32, two per f64. Word w of a tensor adds
///
///     (word + salt + w * 2654435769 mod 2^32) ^ 2, as a number of 64 bits
///
/// to the sum, modulo 2^64. Another word gives another term, whatever the place: a single changed
/// word is always seen. Because the key differs by place, and the square is not linear, several
/// changes do not cancel out by their pattern, but by chance: two small ones with a probability of
/// about 2^-32, many of them with less. (A sum of squares of keyed words is
/// the hash SQH of Etzel, Patel & Ramzan, "Square hash", CRYPTO 1999, with cheap keys: it finds
/// accidents, not attacks.) The terms may be added in any order: it is the same number on every
/// device.
///
/// Up to four tensors of a kind are mixed word by word into one, before it is added: a parameter
/// and what an optimizer keeps of it.
///
/// The same pass sees whether an element of the first tensor, the parameter, is infinite or NaN.

#include <cstdint>
#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// Where a fingerprint is added, and what tells this tensor from others in the same sum.
struct Fingerprint {
  /// i64, (2,), on the tensors' device: the sum, and a number that grows if an element of the
  /// parameter is infinite or NaN. Null: it is not wanted. It must outlive the call, and on a GPU
  /// the kernels that it enqueues.
  const Tensor* sum = nullptr;
  std::uint32_t salt = 0;
  bool terms = true;  ///< false: an optimizer's step adds nothing to the sum; the number is enough
};

/// sum += the fingerprint of `tensors`: one to four tensors of one shape, dtype (f32 or f64) and
/// device. Without a `sum` it does nothing.
void add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint);

}  // namespace lockstep::kernels
