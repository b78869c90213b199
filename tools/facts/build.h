#pragma once
/// What the CUDA build says about every kernel. cmake/nvcc_facts.sh keeps, next to each object
/// file, a folder `*.facts` with
///   source.txt   the .cu file
///   ptxas.txt    what `ptxas -v` reports, kernel by kernel and architecture by architecture
///   *.ptx        the PTX of each architecture
/// A kernel is counted once per instantiation of its template, per .cu file that instantiates it,
/// and per architecture.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::facts {

/// What is looked for in a kernel's PTX. Section numbers are those of the PTX ISA, version 9.0.
struct Instructions {
  bool loads_16 =
      false;           ///< 16 bytes of global memory at once: ld (9.7.9.8) or cp.async (9.7.9.25.3)
  bool mma = false;    ///< tensor cores, by warps: mma.sync (9.7.14)
  bool wgmma = false;  ///< tensor cores, by groups of four warps: wgmma.mma_async (9.7.15)
  bool tma = false;    ///< the copy engine: cp.async.bulk.tensor (9.7.9.25.5)
};

/// One entry of ptxas' report. Sizes are in bytes.
struct Resources {
  std::string symbol;        ///< mangled
  std::string architecture;  ///< sm_90a
  int registers = 0;         ///< per thread
  int spills = 0;            ///< stores and loads, of the kernel and what it calls
  int stack = 0;             ///< per thread
  int shared = 0;            ///< static, per block
};

struct Kernel : Resources {
  std::string source;  ///< relative to the root of the sources
  std::string name;    ///< "softmax_kernel<float, 4, 2, true>"
  Instructions instructions;

  /// "softmax_kernel", as it is called in the sources and in gpu::kernel_launches().
  std::string base() const { return name.substr(0, name.find('<')); }
};

struct Build {
  std::string compiler;                    ///< "13.0.88"
  std::vector<std::string> architectures;  ///< ascending
  std::vector<Kernel> kernels;             ///< by source, name, architecture
};

/// The folders of the sources whose kernels make up the library.
inline constexpr std::string_view kernel_folders[] = {"core/cuda", "kernels/cuda"};

/// Everything that the build in `folder` knows of the library's sources under `root`, as far as
/// they still exist. Throws DataError if a kernel's report or PTX is missing, or cannot be read.
Build read_build(const std::filesystem::path& folder, const std::filesystem::path& root);

// Its parts.

/// The report of `ptxas -v`.
std::vector<Resources> parse_report(std::string_view text);

struct Ptx {
  std::string compiler;
  std::string architecture;
  std::map<std::string, Instructions> entries;  ///< by symbol
};
Ptx parse_ptx(std::string_view text);

/// The symbol's name without result, parameters, and this project's namespaces.
std::string short_name(const std::string& symbol);

}  // namespace lockstep::facts
