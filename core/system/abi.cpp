#include "lockstep/core/system/abi.h"

namespace lockstep::abi_check {

const char LOCKSTEP_ABI_DEBUG = 0;
const char LOCKSTEP_ABI_STRINGS = 0;
const char LOCKSTEP_ABI_LIBRARY = 0;

}  // namespace lockstep::abi_check
