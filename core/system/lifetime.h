#pragma once
/// Whether an object still lives, for another one that refers to it and may outlive it. The object
/// has a Lifetime as a member; the other one keeps a Lifetime::Ref beside its pointer, and looks at
/// the Ref before each use. A look is a load, and a Ref two words: a weak_ptr would count for each
/// copy.
///
/// Thread-safety: any thread may look. That the object does not end between the look and the use is
/// up to the caller: both belong to one thread.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace lockstep {

class Lifetime {
  /// It is never freed, so that a look is always allowed, but given to another object later.
  struct Place {
    std::atomic<std::uint64_t> number{0};  // of the object that has it
  };

 public:
  class Ref {
   public:
    Ref() = default;  ///< to nothing, which does not end
    bool ended() const {
      return place_ && place_->number.load(std::memory_order_relaxed) != number_;
    }

   private:
    friend class Lifetime;
    explicit Ref(const Place* place) : place_(place), number_(place->number) {}
    const Place* place_ = nullptr;
    std::uint64_t number_ = 0;
  };

  Lifetime() : place_(take()) {}
  Lifetime(const Lifetime&) : Lifetime() {}               ///< of another object
  Lifetime& operator=(const Lifetime&) { return *this; }  // NOLINT: nothing is assigned
  ~Lifetime() {
    ++place_->number;  // from here on it has ended
    Free& free = Free::get();
    const std::lock_guard lock(free.mutex);
    free.places.push_back(place_);
  }
  Ref ref() const { return Ref(place_); }

 private:
  struct Free {
    std::mutex mutex;
    std::vector<Place*> places;
    static Free& get() {
      static auto* const all = new Free;  // the object may be static, and end later
      return *all;
    }
  };
  static Place* take() {
    Free& free = Free::get();
    const std::lock_guard lock(free.mutex);
    if (free.places.empty()) return new Place;
    Place* const place = free.places.back();
    free.places.pop_back();
    return place;
  }

  Place* place_;
};

}  // namespace lockstep
