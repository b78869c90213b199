#pragma once
/// What the rows of a tensor are made of, where a batch is cut into lanes (lanes.h). The memory
/// knows it, so that views and copies of a handle know it, too. A data::Loader with lanes marks its
/// batches, of_samples() (tensor.h) marks others, and operations hand it on.

#include <cstdint>
#include <string_view>

namespace lockstep {

class RowOrigin {
 public:
  constexpr RowOrigin() = default;  ///< made of no samples: parameters, constants
  /// The first dimension counts the samples of the batch, or some equal parts of each, in order.
  static constexpr RowOrigin samples() { return RowOrigin(1); }
  /// Made of samples, but not row by row. `operation` has mixed them.
  static RowOrigin mixed(std::string_view operation);

  bool is_samples() const { return id_ == 1; }
  bool is_mixed() const { return id_ > 1; }
  std::string_view mixed_by() const;  ///< the operation; "" if it is not mixed
  bool operator==(const RowOrigin&) const = default;

 private:
  friend class Storage;
  explicit constexpr RowOrigin(std::uint16_t id) : id_(id) {}
  std::uint16_t id_ = 0;  // beyond 1: of the operation's name
};

}  // namespace lockstep
