// P. Shankhdhar's kernels, with the times of his README at 8192. They are described as their files
// have them. The README's text differs: there kernels 2 to 6 have tiles of 192 x 192, and 4 to 6
// three consumers. Which of the two it timed is not known.
#include "lockstep/tools/predict/published.h"

namespace lockstep::predict {
namespace fast_cu {
namespace {

constexpr double n = 8192, KiB = 1024;

/// A block's demands, spread over its warps.
Demand spread(Demand demand, int warps) {
  for (double* part :
       {&demand.instructions, &demand.fma, &demand.tensor, &demand.from_l2, &demand.to_l2})
    *part /= warps;
  for (auto* accesses : {&demand.accesses, &demand.beside})
    for (Access& access : *accesses) access.requests /= warps, access.wavefronts /= warps;
  return demand;
}

/// Boehm's kernel 10 for bf16: numbers are read one by one, and converted.
Work without_tensor_cores() {
  return {.kernel = "1: no tensor cores",
          .blocks = 64 * 64,
          .warps = 4,
          .registers = 161,
          .shared_bytes = 8192,
          .steps = n / 16,
          .step = {.instructions = 16 * 184 + 100,
                   .fma = 16 * 128,
                   .accesses = {{16 * 24, 16 * 24}, {4, 32}, {4, 8}, {20, 40}},
                   .from_l2 = 2048},
          .ends = {.instructions = 200, .accesses = {{32, 256}}, .to_l2 = 8192},
          .barriers = 2,
          .operand_waits = 16,
          .memory_bytes = 6 * n * n};
}

/// `arrivals`: threads that arrive at barriers in a step; each takes a pass of its own. wgmma reads
/// 64 x 16 of a and columns x 16 of b for each product: `reads` KiB per step.
Work tensor(std::string kernel, int columns, int warps, int stages, double reads, int arrivals) {
  const double copied = (128 + columns) * 128.0;
  Work work{.kernel = std::move(kernel),
            .blocks = static_cast<std::int64_t>(n / 128 * (n / columns)),
            .warps = warps,
            .registers = 168,
            .shared_bytes = static_cast<int>(copied) * stages,
            .steps = n / 64,
            .ahead = stages,
            .barriers = 1,
            .wgmma = true,
            // A wave's tiles are about a square.
            .memory_bytes = 2 * n * n * (3 + 2 * (n / 2048 - 1))};
  work.step = spread({.instructions = 60.0 * warps,
                      .tensor = 128.0 * columns * 64,
                      .accesses = {{arrivals / 32.0, 1.0 * arrivals}},
                      .beside = {{0, (copied + reads * KiB) / 128}},
                      .from_l2 = copied},
                     warps);
  // Stores of two bytes down four columns of c: four lines, half of each sector.
  const double stores = 128.0 * columns / 32;
  work.ends = spread({.instructions = 4 * stores,
                      .accesses = {{stores, 4 * stores}},
                      .to_l2 = 4.0 * 128 * columns},
                     warps);
  return work;
}

Work persistent(Work work) {
  work.persistent = true;
  work.processors = 128;
  return work;
}

Work clustered(Work work) {
  work.cluster = 2;  // which fetch b once
  work.step.from_l2 = 32 * KiB / work.warps;
  return work;
}

/// Results go through shared memory, and leave by the copy engine.
Work stored_by_engine(Work work) {
  const double stores = 128.0 * 256 / 32;
  work.ends = spread(
      {.instructions = 3 * stores, .accesses = {{stores, stores}}, .beside = {{0, 64 * KiB / 128}}},
      work.warps);
  return work;
}

Published row(Work work, double tflops, std::string remark) {
  const std::string name = work.kernel;
  const Unit unit = Unit::tensor16;
  return {"H100",
          {.name = name,
           .launches = {std::move(work)},
           .flops = 2 * n * n * n,
           .unit = unit,
           .fewest_bytes = 6 * n * n},
          tflops * 1e12,
          std::move(remark)};
}

}  // namespace
}  // namespace fast_cu

std::vector<Published> published_fast_cu() {
  using namespace fast_cu;
  // Threads arrive at cuda::barriers one by one: two of 128, later two of 256 and a producer.
  constexpr int both = 2 * 128, all = 2 * 257, few = 4;
  constexpr double reads_64 = 16 * 4, reads_256 = 8 * 10;
  return {
      row(without_tensor_cores(), 32.4, "no rung multiplies 16-bit numbers without tensor cores"),
      row(tensor("2: TMA and wgmma", 128, 4, 1, reads_64, both), 488.5,
          "nothing runs ahead: no rung"),
      row(tensor("4: producer, two consumers", 256, 12, 3, reads_256, all), 635.4,
          "every thread arrives at its barriers; rung 11 has one per warp"),
      row(persistent(tensor("5: persistent", 256, 12, 2, reads_256, all)), 658.4, "the same"),
      row(persistent(tensor("6: mbarriers by parity", 256, 12, 3, reads_256, few)), 777.5,
          "rung 11 without clusters"),
      row(clustered(persistent(tensor("7: clusters", 256, 12, 3, reads_256, few))), 799.1,
          "rung 11 stores whole rows of 128 bytes"),
      row(stored_by_engine(clustered(
              persistent(tensor("11: TMA stores, Hilbert order", 256, 12, 3, reads_256, few)))),
          807.7, "rung 11 has no TMA stores"),
  };
}

}  // namespace lockstep::predict
