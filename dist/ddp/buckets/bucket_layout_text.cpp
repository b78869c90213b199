// Second reading: layouts as text, for checkpoints, and what makes one valid.

#include <fmt/ranges.h>

#include <charconv>
#include <sstream>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/ddp/buckets/bucket_layout.h"

namespace lockstep::dist {

std::string to_text(const BucketLayout& layout) {
  return fmt::format("{} / {}", fmt::join(layout.order, " "), fmt::join(layout.cuts, " "));
}

BucketLayout layout_from_text(std::string_view text, std::size_t parameters) {
  BucketLayout layout;
  std::vector<int>* numbers = &layout.order;
  std::istringstream words = classic_stream(text);
  for (std::string word; words >> word;) {
    if (word == "/" && numbers == &layout.order) {
      numbers = &layout.cuts;
      continue;
    }
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, numbers->emplace_back());
    check<UsageError>(stop == end && error == std::errc(),
                      "[bucket layout] '{}' is not 'order / cuts'", text);
  }
  check_layout(layout, parameters);
  return layout;
}

void check_layout(const BucketLayout& layout, std::size_t parameters) {
  check<UsageError>(layout.order.size() == parameters,
                    "[bucket layout] orders {} parameters, the model has {}", layout.order.size(),
                    parameters);
  std::vector<bool> seen(parameters);
  for (const int p : layout.order) {
    check<UsageError>(
        p >= 0 && static_cast<std::size_t>(p) < parameters && !seen[static_cast<std::size_t>(p)],
        "[bucket layout] parameter {} of {} is out of range or there twice", p, parameters);
    seen[static_cast<std::size_t>(p)] = true;
  }
  int previous = 0;
  for (const int cut : layout.cuts) {
    check<UsageError>(cut > previous && static_cast<std::size_t>(cut) < parameters,
                      "[bucket layout] cut {} after {} in an order of {}", cut, previous,
                      parameters);
    previous = cut;
  }
}

}  // namespace lockstep::dist
