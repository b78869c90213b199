#include "lockstep/dist/ddp/agreed_error.h"

#include <algorithm>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/collectives/object_collectives.h"

namespace lockstep::dist {
namespace {

struct AgreedError : StateError {
  using StateError::StateError;
};

}  // namespace

void stop_all_ranks(Communicator& communicator, const std::string& message, const Blame& blame) {
  meet_before_error(communicator, "stop");
  throw blaming(blame, AgreedError(message));
}

std::optional<std::string> news_for_others() {
  try {
    throw;
  } catch (const AgreedError&) {
    return {};
  } catch (const NotRecordable&) {
    return {};
  } catch (...) {
    const std::string text = current_message();
    return text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
  }
}

}  // namespace lockstep::dist
