#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/tools/counts/cells.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/counts/waste.h"

namespace lockstep::counts {
namespace {

constexpr const char* introduction = R"(# Counters

What every kernel does to memory, counted in the simulator, without a GPU: exact figures that follow
from the addresses alone. `./lockstep count --write` writes this file, and the same figures at the
begin of each kernel's file. The tests of `test/counts` hold both to what is counted
(`./lockstep test --sanitize races --only counts`). `./lockstep count softmax` prints the rows of
one operation, `--lines` the lines of sources that waste something, `--json FILE` everything.

- A **request** is one memory instruction of a warp. A **sector** is 32 bytes of global memory. A
  request costs as many sectors as it touches: 4 where 32 threads load neighbouring floats, 16 where
  they load neighbouring `float4`, 32 where they are far apart.
- **Loads** and **stores** are those of global memory: sectors per request, and in brackets how many
  per cent of them would hold the bytes that were asked for. **cp.async** is the same for what it
  reads, **into shared** the wavefronts of what it writes.
- A **wavefront** is one pass over shared memory, which has 32 banks of 4 bytes. A request needs as
  many as there are different words in one bank. Accesses of 8 bytes go in halves of a warp, those
  of 16 bytes (`ldmatrix` too) in quarters. **Shared loads** and **shared stores** are wavefronts
  per request, and in brackets the fewest: more is a bank conflict.
- **Copies** are the KiB that `cp.async` writes, by the width of a copy, and that the copy engine
  (TMA) reads. **Atomics** and **shuffles** are requests, **barriers** are those of one block.
- **DRAM** is KiB of distinct sectors, read + written, launch by launch: what a GPU moves if its
  cache is empty before each launch and holds all that one touches. **DRAM / fewest** is the sum
  over an operation's launches against its inputs read once and its outputs written once.

Kernels that move memory and compute little, all but those of `kernels/cuda/gemm/`, may waste
nothing: at least 95 % of their sectors are asked for, there is no bank conflict, and DRAM moves at
most 1.03 of the fewest (`test/counts/waste_test.cpp`). The exceptions are listed below.

Not counted: hits in L1 and L2, rows and pages of DRAM, spilled registers, constant and local
memory, parameters of kernels, mbarriers; of `wgmma`'s operands only bytes (`--json`). The simulated
GPU is of compute capability 9.0. Where threads of a warp take different branches, the n-th
executions of an instruction by each of them count as one request. Accesses are those that g++ makes
of the sources at `-O1`: nvcc may join two neighbouring ones of an aligned structure.

| here | Nsight Compute |
|---|---|
| requests of loads, stores | `l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum`, `..._op_st.sum` |
| their sectors | `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum`, `..._op_st.sum` |
| sectors of cp.async | `l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum` |
| requests of shared memory | `smsp__inst_executed_op_shared_ld.sum`, `..._op_shared_st.sum` |
| wavefronts | `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, `..._op_st.sum` |
| conflicts | `l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum`, `..._op_st.sum` |
| DRAM | `dram__bytes_read.sum`, `dram__bytes_write.sum`, with `--cache-control all` |

An H100 has counted 10 launches (`test/reference/counters_h100.txt`), and the suite compares: of
global memory, the requests and their sectors are the same. Wavefronts of shared memory are within a
third, because nvcc keeps some values in registers.

Sources: CUDA C++ Programming Guide, "Device Memory Accesses", and for each compute capability
"Global Memory" and "Shared Memory"; CUDA C++ Best Practices Guide, "Coalesced Access to Global
Memory"; Nsight Compute, "Metrics Decoder" and "Memory Tables". `simt/counters/counters.h` says what
the simulator does.
)";

std::string line_of(const Cells& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }

}  // namespace

std::string document(const std::vector<Counted>& all) {
  std::vector<std::string> sources;  // each once, in the order of the list
  for (const Counted& counted : all)
    if (std::ranges::find(sources, counted.problem.source) == sources.end())
      sources.push_back(counted.problem.source);
  std::string text = introduction;
  text += "\n| operation | wastes | why |\n|---|---|---|\n";
  for (const auto& [operation, size, what, reason] : waste_exceptions())
    text += fmt::format("| {} {} | {} | {} |\n", operation, size, what, reason);
  for (const std::string& source : sources) {
    text += fmt::format("\n## {}\n\n{}", source, line_of(headings_of_table()));
    for (std::size_t c = 0; c < table_columns; ++c) text += "|---";
    text += "|\n";
    for (const Counted& counted : all)
      if (counted.problem.source == source)
        for (const Cells& row : rows_of(counted)) text += line_of(row);
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<Counted>& all) {
  nlohmann::ordered_json result = nlohmann::ordered_json::array();
  for (const Counted& counted : all) {
    nlohmann::ordered_json launches = nlohmann::ordered_json::array();
    for (const Launch& launch : counted.launches) {
      nlohmann::ordered_json entry = {{"kernel", short_name(launch.kernel)},
                                      {"function", launch.kernel},
                                      {"grid", launch.grid},
                                      {"block", launch.block}};
      for (int c = 0; c < simt::counters::classes; ++c) {
        const Sum& sum = launch.sums[c];
        if (sum.requests == 0) continue;
        entry[simt::counters::name_of(static_cast<Class>(c))] = {
            {"requests", sum.requests},     {"bytes", sum.bytes},
            {"sectors", sum.sectors},       {"fewest_sectors", sum.fewest_sectors},
            {"wavefronts", sum.wavefronts}, {"fewest_wavefronts", sum.fewest_wavefronts}};
      }
      entry.update({{"dram_read", launch.read},
                    {"dram_written", launch.written},
                    {"cp_async_4_bytes", launch.copied_4},
                    {"cp_async_16_bytes", launch.copied_16},
                    {"tma_bytes", launch.box_bytes},
                    {"wgmma_bytes", launch.operand_bytes},
                    {"instructions", launch.instructions}});
      launches.push_back(std::move(entry));
    }
    result.push_back({{"operation", counted.problem.name},
                      {"size", counted.problem.size},
                      {"source", counted.problem.source},
                      {"fewest_dram_read", counted.fewest_read},
                      {"fewest_dram_written", counted.fewest_written},
                      {"launches", std::move(launches)}});
  }
  return result;
}

}  // namespace lockstep::counts
