#include "lockstep/simt/execution/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

extern "C" const char __executable_start, _end;  // of the linker  NOLINT

namespace simt::detail {
namespace {

struct Object {
  std::string_view name;
  std::uintptr_t address;
  std::size_t bytes;
};

/// The program's file in memory. Kernels and their static variables lie in the program itself (this
/// library is linked into it), not in shared libraries.
class SymbolTable {
 public:
  SymbolTable() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* self) {
          static_cast<SymbolTable*>(self)->read_segments(*info);
          return 1;  // the first is the program
        },
        this);
    read_file();
    std::sort(functions_.begin(), functions_.end());
  }

  /// Mangled names of the functions at an address: several, if the linker or compiler folded them.
  std::vector<std::string_view> functions_at(const void* address) const {
    const Function wanted{reinterpret_cast<std::uintptr_t>(address), {}};
    std::vector<std::string_view> names;
    for (auto it = std::lower_bound(functions_.begin(), functions_.end(), wanted);
         it != functions_.end() && it->first == wanted.first; ++it)
      names.push_back(it->second);
    return names;
  }

  /// Mangled name of the function that an instruction is in; empty if it is in none.
  std::string_view function_of(const void* instruction) const {
    const auto after = std::upper_bound(
        functions_.begin(), functions_.end(), reinterpret_cast<std::uintptr_t>(instruction),
        [](std::uintptr_t address, const Function& one) { return address < one.first; });
    return after == functions_.begin() ? std::string_view() : std::prev(after)->second;
  }

  /// Variables of static storage, local to functions, in memory that the program may write.
  const std::vector<Object>& local_statics() const { return local_statics_; }

 private:
  using Function = std::pair<std::uintptr_t, std::string_view>;
  struct Range {
    std::uintptr_t begin, end;
    bool holds(std::uintptr_t address) const { return begin <= address && address < end; }
  };

  void read_segments(const dl_phdr_info& info) {
    load_address_ = info.dlpi_addr;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info.dlpi_phdr[i];
      const Range range{load_address_ + segment.p_vaddr,
                        load_address_ + segment.p_vaddr + segment.p_memsz};
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W)) writable_.push_back(range);
      if (segment.p_type == PT_GNU_RELRO) read_only_again_.push_back(range);
    }
  }

  bool is_writable(std::uintptr_t address) const {
    for (const Range& range : read_only_again_)
      if (range.holds(address)) return false;
    for (const Range& range : writable_)
      if (range.holds(address)) return true;
    return false;
  }

  void read_file() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) return;
    void* mapped =
        mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    const char* image = static_cast<const char*>(mapped);  // for good: names are views into it
    const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(image);
    const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(image + header.e_shoff);
    for (int i = 0; i < header.e_shnum; ++i) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(image + sections[i].sh_offset);
      const char* names = image + sections[sections[i].sh_link].sh_offset;
      const std::size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
      for (std::size_t s = 0; s < count; ++s) add(symbols[s], names + symbols[s].st_name);
    }
  }

  void add(const ElfW(Sym) & symbol, std::string_view name) {
    if (symbol.st_shndx == SHN_UNDEF) return;
    const std::uintptr_t address = load_address_ + symbol.st_value;
    const int type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_FUNC)
      functions_.emplace_back(address, name);
    else if (type == STT_OBJECT && name.starts_with("_ZZ") && is_writable(address))
      local_statics_.push_back({name, address, symbol.st_size});
  }

  std::uintptr_t load_address_ = 0;
  std::vector<Range> writable_, read_only_again_;
  std::vector<Function> functions_;
  std::vector<Object> local_statics_;
};

std::string demangled(std::string_view name) {
  int status = 0;
  char* text = abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : std::string(name);
  std::free(text);
  return result;
}

const SymbolTable& symbol_table() {
  static const SymbolTable table;
  return table;
}

KernelInfo look_up(const void* kernel) {
  const SymbolTable& table = symbol_table();
  KernelInfo info;
  for (const std::string_view name : table.functions_at(kernel)) {
    if (info.name.empty()) info.name = demangled(name);
    // Itanium C++ ABI, 5.1.6: a local name is Z <function's encoding> E <its own name>.
    if (!name.starts_with("_Z")) continue;
    const std::string prefix = "_ZZ" + std::string(name.substr(2)) + "E";
    for (const Object& object : table.local_statics()) {
      if (!object.name.starts_with(prefix)) continue;
      info.shared.emplace_back(reinterpret_cast<std::byte*>(object.address), object.bytes);
      info.shared_bytes += object.bytes;
    }
  }
  if (info.name.empty()) {
    char text[40];
    std::snprintf(text, sizeof text, "kernel at %p", kernel);
    info.name = text;
  }
  return info;
}

}  // namespace

const KernelInfo& kernel_info(const void* kernel) {
  static auto& known = *new std::unordered_map<const void*, KernelInfo>;
  const auto it = known.find(kernel);
  return it != known.end() ? it->second : known.emplace(kernel, look_up(kernel)).first->second;
}

bool in_own_code(const void* caller) {
  const std::string_view name = symbol_table().function_of(caller);
  for (const char* prefix : {"_ZSt", "_ZNSt", "_ZNKSt", "_ZN9__gnu_cxx", "_ZNK9__gnu_cxx",
                             "_ZN4simt6detail", "_ZNK4simt6detail", "_ZZN4simt6detail"})
    if (name.starts_with(prefix)) return false;
  return !name.empty();
}

bool in_program(const void* data) {
  const std::less<const void*> before;
  return !before(data, &__executable_start) && before(data, &_end);
}

}  // namespace simt::detail
