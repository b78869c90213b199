#include "lockstep/simt/counters/counters.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/simt/counters/observer.h"
#include "lockstep/simt/counters/requests.h"
#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/runtime/runtime.h"
#include "lockstep/simt/watch/source_line.h"

namespace simt::detail::counters {
namespace {

using simt::counters::Launch;
using simt::counters::Traced;

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool holds(std::uintptr_t address) const { return begin <= address && address < end; }
};

Range range_of(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes};
}

/// Which instruction an access belongs to. A structure of several pieces is as many instructions.
struct Key {
  const void* caller;
  Class what;
  unsigned bytes, piece;
  bool operator==(const Key&) const = default;
};
struct Hash {
  std::size_t operator()(const Key& key) const {
    const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(key.caller);
    return (place * 8 + static_cast<unsigned>(key.what)) * 64 + key.piece * 32 + key.bytes;
  }
};

/// The largest piece of `bytes` that a GPU accesses at once at such an address.
unsigned piece_of(std::uintptr_t address, std::size_t bytes) {
  const std::uintptr_t multiples = bytes | address | 16;
  return static_cast<unsigned>(multiples & (~multiples + 1));  // its lowest bit
}

/// One, under the simulator's lock.
class Counters {
 public:
  bool on = false;
  std::vector<Launch> launches;

  void begin_launch(const GridRun& run) {
    run_ = &run;
    global_.clear();
    instructions_.clear();
    recent_ = {};
    read_.clear();
    written_.clear();
    names_.clear();
    launch_ = {.kernel = run.kernel->name,
               .grid = {run.grid.x, run.grid.y, run.grid.z},
               .block = {run.block.x, run.block.y, run.block.z}};
  }

  void begin_blocks(std::span<const std::span<std::byte>> shared) {
    shared_.clear();
    for (const auto memory : shared) shared_.push_back(range_of(memory.data(), memory.size()));
    for (const auto variable : run_->kernel->shared)
      shared_.push_back(range_of(variable.data(), variable.size()));
    const dim3& block = run_->block;
    threads_ = static_cast<int>(block.x * block.y * block.z * shared.size());
  }

  void end_blocks() {
    for (auto& [key, instruction] : instructions_)
      instruction.end_blocks(sectors_of(instruction.what()));
    if (launch_.traced.empty()) trace_first_requests();
  }

  void end_launch() {
    using Place = std::pair<const void*, Class>;
    std::map<Place, Sum> lines;
    for (const auto& [key, instruction] : instructions_) {
      lines[{key.caller, key.what}] += instruction.sum();
      launch_.sums[static_cast<int>(key.what)] += instruction.sum();
    }
    for (const auto& [place, sum] : lines)
      launch_.lines.push_back({place.first, place.second, sum});
    launch_.read = read_.bytes();
    launch_.written = written_.bytes();
    for (const auto& [name, times] : names_) launch_.instructions[name] += times;
    launches.push_back(std::move(launch_));
  }

  void access(std::uintptr_t address, std::size_t bytes, watch::Kind kind, const void* caller) {
    const bool shared = is_in(shared_, address);
    if (!shared && !is_in_global(address)) return;
    const bool reads = kind == watch::Kind::read || kind == watch::Kind::atomic_read;
    const Class what = kind == watch::Kind::atomic
                           ? (shared ? Class::shared_atomic : Class::global_atomic)
                       : reads ? (shared ? Class::shared_load : Class::global_load)
                               : (shared ? Class::shared_store : Class::global_store);
    execute(address, bytes, what, caller);
  }

  void copy(std::uintptr_t shared, std::uintptr_t global, std::size_t bytes, const void* caller) {
    if (global != 0) execute(global, bytes, Class::copy_load, caller);
    execute(shared, bytes, Class::copy_store, caller);
    (bytes == 16 ? launch_.copied_16 : launch_.copied_4) += bytes;
  }

  void matrix_row(std::uintptr_t row, const void* caller) {
    execute(row, 16, Class::shared_load, caller);
  }

  void box_row(std::uintptr_t global, std::size_t bytes) {
    launch_.box_bytes += bytes;
    for (std::uintptr_t s = global / sector_bytes; s <= (global + bytes - 1) / sector_bytes; ++s)
      read_.add(s);
  }

  void box_chunk(std::uintptr_t matrix, std::uintptr_t global, std::uint32_t place) {
    constexpr std::size_t most_chunks = 8 * 8;  // a row of 128 bytes has 8
    if (launch_.first_chunks.size() < most_chunks)
      launch_.first_chunks.push_back({static_cast<std::int64_t>(global - matrix), place});
  }

  void operands(std::size_t bytes) { launch_.operand_bytes += bytes; }

  void instruction(const char* name) {
    for (auto& [known, times] : names_)
      if (known == name) return void(++times);
    names_.emplace_back(name, 1);
  }

 private:
  Sectors& sectors_of(Class what) { return what == Class::global_store ? written_ : read_; }

  static bool is_in(const std::vector<Range>& ranges, std::uintptr_t address) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [address](const Range& range) { return range.holds(address); });
  }

  bool is_in_global(std::uintptr_t address) {
    if (is_in(global_, address)) return true;
    const Allocation* memory = Allocation::holding(reinterpret_cast<const void*>(address));
    if (!memory) return false;
    global_.push_back(range_of(memory->data, memory->bytes));
    return true;
  }

  /// Where the shared or global memory of an address begins.
  std::uintptr_t begin_of(std::uintptr_t address) const {
    for (const Range& range : shared_)
      if (range.holds(address)) return range.begin;
    const Allocation* memory = Allocation::holding(reinterpret_cast<const void*>(address));
    return memory ? range_of(memory->data, memory->bytes).begin : 0;
  }

  /// Of the blocks that run first; in the order of the program's code.
  void trace_first_requests() {
    std::vector<std::pair<Key, const Instruction*>> in_order;
    for (const auto& [key, instruction] : instructions_) in_order.emplace_back(key, &instruction);
    std::ranges::sort(in_order, {}, [](const auto& entry) {
      const Key& key = entry.first;
      return std::tuple(key.caller, key.what, key.bytes, key.piece);
    });
    std::vector<std::uintptr_t> memories;
    for (const auto& [key, instruction] : in_order)
      for (const Request& request : instruction->first_requests()) {
        const int lane = std::countr_zero(request.lanes);
        const std::uintptr_t begin = begin_of(request.addresses[lane]);
        const auto memory = std::ranges::find(memories, begin);
        Traced traced{key.caller,
                      key.what,
                      key.bytes,
                      instruction->first_warp(),
                      static_cast<int>(memory - memories.begin()),
                      {}};
        if (memory == memories.end()) memories.push_back(begin);
        for (int l = 0; l < 32; ++l)
          traced.offsets[l] = request.lanes >> l & 1u
                                  ? static_cast<std::int64_t>(request.addresses[l] - begin)
                                  : -1;
        launch_.traced.push_back(traced);
      }
  }

  void execute(std::uintptr_t address, std::size_t bytes, Class what, const void* caller) {
    const int thread = executor().current();
    const bool last = thread / 32 == threads_ / 32;  // a warp of fewer than 32
    const std::uint32_t lanes = last ? (1u << threads_ % 32) - 1 : ~0u;
    const unsigned piece = piece_of(address, bytes);
    for (unsigned i = 0; i * piece < bytes; ++i)
      instruction_of({caller, what, piece, i})
          .execute(thread, lanes, address + i * piece, sectors_of(what));
    if (what == Class::global_atomic)
      for (std::uintptr_t s = address / sector_bytes; s <= (address + bytes - 1) / sector_bytes;
           ++s)
        written_.add(s);
  }

  Instruction& instruction_of(const Key& key) {
    const auto place = reinterpret_cast<std::uintptr_t>(key.caller) + key.piece;
    Recent& recent = recent_[place % recent_.size()];
    if (recent.instruction == nullptr || recent.key != key)
      recent = {key, &instructions_.try_emplace(key, key.what, key.bytes).first->second};
    return *recent.instruction;
  }

  /// Found without a search in the table.
  struct Recent {
    Key key{};
    Instruction* instruction = nullptr;
  };

  const GridRun* run_ = nullptr;
  int threads_ = 0;  ///< that run at once; blocks of a cluster are whole warps
  std::vector<Range> shared_, global_;
  std::unordered_map<Key, Instruction, Hash> instructions_;
  std::array<Recent, 1024> recent_;
  Sectors read_, written_;
  std::vector<std::pair<const char*, std::uint64_t>> names_;
  Launch launch_;
};

Counters& counters() {
  static auto& one = *new Counters;
  return one;
}

/// Whether the running launch is counted. A change of Counters::on holds from the next one on.
bool launch_counts = false;
/// The same, but not in a Pause.
bool counting = false;

}  // namespace

void begin_launch(const GridRun& run) {
  counting = launch_counts = counters().on;
  if (counting) counters().begin_launch(run);
}
void begin_blocks(std::span<const std::span<std::byte>> shared) {
  if (counting) counters().begin_blocks(shared);
}
void end_blocks() {
  if (counting) counters().end_blocks();
}
void end_launch() {
  counting = false;
  if (std::exchange(launch_counts, false)) counters().end_launch();
}
void access(const void* data, std::size_t bytes, watch::Kind kind, const void* caller) {
  if (counting) counters().access(reinterpret_cast<std::uintptr_t>(data), bytes, kind, caller);
}
void copy(const void* shared, const void* global, std::size_t bytes, const void* caller) {
  if (counting)
    counters().copy(reinterpret_cast<std::uintptr_t>(shared),
                    reinterpret_cast<std::uintptr_t>(global), bytes, caller);
}
void matrix_row(const void* row, const void* caller) {
  if (counting) counters().matrix_row(reinterpret_cast<std::uintptr_t>(row), caller);
}
void box_row(const void* global, std::size_t bytes) {
  if (counting) counters().box_row(reinterpret_cast<std::uintptr_t>(global), bytes);
}
void box_chunk(const void* matrix, const void* global, std::uint32_t place) {
  if (counting)
    counters().box_chunk(reinterpret_cast<std::uintptr_t>(matrix),
                         reinterpret_cast<std::uintptr_t>(global), place);
}
void operands(std::size_t bytes) {
  if (launch_counts) counters().operands(bytes);
}
void instruction(const char* name) {
  if (counting) counters().instruction(name);
}

Pause::Pause() : before_(std::exchange(counting, false)) {}
Pause::~Pause() { counting = before_; }

}  // namespace simt::detail::counters

namespace simt::counters {

namespace detail = simt::detail;
using detail::counters::counters;

bool available() { return true; }

void start() {
  const std::lock_guard lock(detail::Runtime::get().mutex);
  counters().launches.clear();
  counters().on = true;
}

std::vector<Launch> stop() {
  const std::lock_guard lock(detail::Runtime::get().mutex);
  counters().on = false;
  return std::exchange(counters().launches, {});
}

std::string place_of(const void* caller) { return detail::watch::source_line(caller); }
std::vector<std::string> places_of(const std::vector<const void*>& callers) {
  return detail::watch::source_lines(callers);
}

}  // namespace simt::counters
