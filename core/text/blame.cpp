#include <fmt/format.h>

#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

struct Words {
  std::string_view one, several;
};

constexpr Words words_of(Fault fault) {
  switch (fault) {
    case Fault::hangs: return {"hangs", "hang"};
    case Fault::missing: return {"is missing", "are missing"};
    case Fault::gone: return {"is gone", "are gone"};
    case Fault::left: return {"left", "left"};
    case Fault::in_minority: return {"is in the minority", "are in the minority"};
    case Fault::failed: return {"failed", "failed"};
    case Fault::nonfinite:
      return {"has a gradient that is infinite or NaN", "have gradients that are infinite or NaN"};
    case Fault::miscomputed: return {"computed wrongly", "computed wrongly"};
  }
  return {"has failed", "have failed"};
}

}  // namespace

std::string deed_of(const Blame& blame) {
  const auto [one, several] = words_of(blame.fault);
  return fmt::format("{}{}{}", blame.ranks.size() > 1 ? several : one,
                     blame.detail.empty() ? "" : " ", blame.detail);
}

std::string text_of(const Blame& blame) {
  if (!blame.known()) return "";
  return fmt::format("rank{} {} {}", blame.ranks.size() > 1 ? "s" : "",
                     fmt::join(blame.ranks, ", "), deed_of(blame));
}

}  // namespace lockstep
