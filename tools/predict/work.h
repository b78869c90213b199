#pragma once
/// What a kernel asks of a GPU: counts that do not depend on which GPU it is.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::predict {

/// Memory instructions of a warp, and the passes through L1 or shared memory that they take: a
/// request for several lines of global memory takes one for each.
struct Access {
  double requests = 0, wavefronts = 0;
};

/// Of one warp, on average over those of a block.
struct Demand {
  double instructions = 0;            ///< of any kind
  double fma = 0;                     ///< of them, multiply-adds of f32
  double tensor = 0;                  ///< multiply-adds on tensor cores; one of tf32 counts as two
  std::vector<Access> accesses = {};  ///< that the warp waits for
  /// Those that run beside it: asynchronous copies, and what wgmma reads of shared memory.
  std::vector<Access> beside = {};
  double from_l2 = 0, to_l2 = 0;  ///< bytes
  double from_neighbours = 0;     ///< bytes of the shared memory of other blocks of the cluster
};

/// One launch. Its blocks are alike: each makes `steps` steps, and has a begin and an end.
struct Work {
  std::string kernel;
  std::int64_t blocks = 1;
  int warps = 1;         ///< of a block
  int registers = 32;    ///< of a thread
  int shared_bytes = 0;  ///< of a block
  double steps = 0;
  Demand step = {}, ends = {};
  /// A step's data are asked for so many steps before: 1 means that it waits for them.
  int ahead = 1;
  int barriers = 0;  ///< of a step
  /// Times per step that a warp waits for what it reads of shared memory, because its loop does not
  /// ask for the next operands before it uses those that it has.
  int operand_waits = 0;
  double at_work = 1;  ///< the share of its warps that compute, where others only copy meanwhile
  bool warps_wait = false;  ///< each warp waits for itself, not the block together
  bool wgmma = false;       ///< its tensor cores are asked by wgmma, not mma.sync
  /// The blocks are parts of the work of fewer, long ones, which fetch for the next part while they
  /// end one; groups of `cluster` are dealt out together.
  bool persistent = false;
  int cluster = 1;
  double meeting = 0;  ///< cycles for which its warps wait at the end for others of the cluster
  int processors = 0;  ///< on which it runs; 0: all
  double memory_bytes = 0;  ///< of DRAM, read and written
};

/// The arithmetic whose roof a product has.
enum class Unit { none, fma, tensor16, tensor32 };

/// Launches one after another, and what the operation needs at least.
struct Operation {
  std::string name;
  std::vector<Work> launches = {};
  double flops = 0;  ///< of a product; a multiply-add is two
  Unit unit = Unit::none;
  double fewest_bytes = 0;  ///< every input read once, every output written once
};

}  // namespace lockstep::predict
