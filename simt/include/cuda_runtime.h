#pragma once
/// The part of CUDA that this project uses, for a C++ compiler and a machine without a GPU: what
/// nvcc's <cuda_runtime.h> declares, under the same names and with the same meanings. Kernels built
/// against it run in the simulator (../simt.h; docs/simulator.md).

// As with nvcc, <cmath>, min, max and the like are there without being asked for.
#include "simt/atomics.h"
#include "simt/device_functions.h"
#include "simt/language.h"
#include "simt/launch.h"
#include "simt/runtime_api.h"
#include "simt/vector_types.h"
#include "simt/warp.h"
