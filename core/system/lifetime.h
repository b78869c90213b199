#pragma once
/// Whether an object still lives, for another one that refers to it and may outlive it. The object
/// has a Lifetime as a member; the other one keeps a Lifetime::Ref beside its pointer, and looks
/// whether it has `expired()` before each use. A look is a load.
///
/// Thread-safety: any thread may look. That the object does not end between the look and the use is
/// up to the caller: both belong to one thread.

#include <memory>

namespace lockstep {

class Lifetime {
 public:
  using Ref = std::weak_ptr<const void>;

  Lifetime() = default;
  Lifetime(const Lifetime&) {}                  ///< of another object
  Lifetime& operator=(const Lifetime& other) {  ///< another object from now on
    if (this != &other) lives_ = std::make_shared<char>();
    return *this;
  }
  ~Lifetime() = default;

  Ref ref() const { return lives_; }

 private:
  std::shared_ptr<const void> lives_ = std::make_shared<char>();
};

}  // namespace lockstep
