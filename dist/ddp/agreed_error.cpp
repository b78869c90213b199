#include "lockstep/dist/ddp/agreed_error.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

struct AgreedError : StateError {
  using StateError::StateError;
};

}  // namespace

void stop_all_ranks(Communicator& communicator, const std::string& message) {
  try {
    communicator.barrier("stop").wait();
  } catch (const CommError&) {
    // A rank that is gone by now has read the metadata too.
  }
  throw AgreedError(message);
}

std::optional<std::string> news_for_others() {
  try {
    throw;
  } catch (const AgreedError&) {
    return {};
  } catch (...) {
    const std::string text = current_message();
    return text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
  }
}

}  // namespace lockstep::dist
