#pragma once
/// SHA-256 of a sequence of bytes, to say in 64 letters that two replicas are the same.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

class Digest {
 public:
  using Value = std::array<std::byte, 32>;

  Digest();
  Digest(Digest&&) noexcept;
  ~Digest();

  Digest& add(std::span<const std::byte> bytes);
  Value value();  ///< ends the digest: nothing can be added after it

  static std::string hex(const Value& value);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
