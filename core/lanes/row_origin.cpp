#include "lockstep/core/lanes/row_origin.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <string>

namespace lockstep {
namespace {

constexpr std::size_t first_name = 2;

struct Names {
  std::mutex mutex;
  std::deque<std::string> all;  // their places stay
};

Names& names() {
  static Names* const it = new Names;  // static destructors may still ask
  return *it;
}

}  // namespace

RowOrigin RowOrigin::mixed(std::string_view operation) {
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  const auto at =
      std::ranges::find_if(known.all, [&](const std::string& name) { return name == operation; });
  const auto place = static_cast<std::size_t>(at - known.all.begin());
  if (at == known.all.end() && place < std::numeric_limits<std::uint16_t>::max() - first_name)
    known.all.emplace_back(operation);
  return RowOrigin(static_cast<std::uint16_t>(std::min(place, known.all.size() - 1) + first_name));
}

std::string_view RowOrigin::mixed_by() const {
  if (!is_mixed()) return "";
  Names& known = names();
  const std::lock_guard lock(known.mutex);
  return known.all[id_ - first_name];
}

}  // namespace lockstep
