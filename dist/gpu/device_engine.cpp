#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

std::string_view name_of(EngineKind kind) {
  switch (kind) {
    case EngineKind::automatic: return "auto";
    case EngineKind::none: return "none";
    case EngineKind::ipc: return "ipc";
    case EngineKind::nccl: return "nccl";
    case EngineKind::nccl_direct: return "nccl-direct";
  }
  return "?";
}

}  // namespace lockstep::dist
