#pragma once
/// Everything a training program needs.

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/error.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/dist/communicator.h"
#include "lockstep/dist/ddp.h"
#include "lockstep/dist/world.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/safetensors.h"
