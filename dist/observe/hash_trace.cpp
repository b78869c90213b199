#include "lockstep/dist/observe/hash_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <random>
#include <thread>
#include <unordered_map>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/hash.h"
#include "lockstep/core/trace/results.h"

namespace lockstep::dist {
namespace {

using trace::Result;

// Fields end with tabs and lines with line feeds.
std::string field(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(
      result, [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return result;
}

// The hashes of a value's lanes, or that of all of it.
std::string hashes(const Result& result, const Tensor& host) {
  const std::span<const std::byte> bytes(host.raw(), host.bytes());
  if (!result.lanes) return fmt::format("{:016x}", hash_bytes(bytes));
  const std::int64_t rows = host.size(0);
  const std::vector<std::int64_t> offsets = result.lanes->offsets(rows);
  const std::size_t row = rows > 0 ? bytes.size() / static_cast<std::size_t>(rows) : 0;
  std::string text;
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
    const auto begin = static_cast<std::size_t>(offsets[k]) * row;
    const auto end = static_cast<std::size_t>(offsets[k + 1]) * row;
    text +=
        fmt::format("{}{:016x}", k == 0 ? "" : ",", hash_bytes(bytes.subspan(begin, end - begin)));
  }
  return text;
}

std::string in_hex(const Tensor& host) {
  std::string text;
  for (const std::byte byte : std::span<const std::byte>(host.raw(), host.bytes()))
    fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string owner_of(const Result& result) {
  if (result.lanes) return fmt::format("{}/{}", result.lanes->first(), result.lanes->total());
  return result.of_world ? "world" : "rank";
}

}  // namespace

class HashTrace::Writer : public trace::ResultWatcher {
 public:
  Writer(std::string path, const HashTraceOptions& options)
      : path_(std::move(path)), options_(options), step_(options.first_step) {}
  ~Writer() override {
    if (file_) std::fclose(file_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void open() {
    file_ = std::fopen(path_.c_str(), "wb");
    if (!file_) give_up();
  }
  void begin(const std::string& run, int rank, int size) {
    write(fmt::format("lockstep hash trace 1\t{}\t{}\t{}\n", run, rank, size));
    flush();
  }
  void end() {
    write(fmt::format("end\t{}\n", records_));
    flush();
  }
  bool of_this_thread() const { return thread_ == std::this_thread::get_id(); }
  bool by_exception() const { return std::uncaught_exceptions() > exceptions_; }
  const std::string& path() const { return path_; }

  void see(const Result& result) override {
    check<StateError>(!StepGraph::recording(),
                      "[hash_trace] a step that is recorded computes nothing yet: there is nothing "
                      "to hash for '{}'",
                      path_);
    ++records_;
    ++record_;
    const Tensor host = result.value.detach().to(Device{});
    line_ = fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}", step_, name_of(result.place),
                        field(result.operation), field(name_for(result)), name_of(host.dtype()),
                        host.shape(), owner_of(result), hashes(result, host));
    if (options_.values && options_.values->step == step_ && options_.values->record == record_)
      line_ += "\t" + in_hex(host);
    line_ += '\n';
    write(line_);
  }

  void step_ends() override {
    ++step_;
    record_ = 0;
    layers_.clear();
    flush();
  }

 private:
  // In backward no module runs: the layer is that of the forward.
  std::string name_for(const Result& result) {
    if (!result.name.empty() || !result.node) return std::string(result.name);
    std::string& name = layers_[result.node];
    if (result.place == trace::Place::forward) name = layer;
    return name;
  }
  void write(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) give_up();
  }
  void flush() {
    if (std::fflush(file_) != 0) give_up();
  }
  [[noreturn]] void give_up() const {
    fail<DataError>("[hash_trace] cannot write '{}': {}", path_, std::strerror(errno));
  }

  std::string path_, line_;
  HashTraceOptions options_;
  std::FILE* file_ = nullptr;
  std::thread::id thread_ = std::this_thread::get_id();
  int exceptions_ = std::uncaught_exceptions();
  std::int64_t step_, record_ = 0, records_ = 0;
  std::unordered_map<const void*, std::string> layers_;  // by Result::node, of this step
};

HashTrace::HashTrace(const World& world, const std::string& path, const HashTraceOptions& options) {
  check<StateError>(!trace::here.watcher, "[hash_trace] this thread has a HashTrace already");
  world.communicator().membership().refuse_if_ranks_may_be_lost(
      "a HashTrace", "it belongs to one world, and the next one would replace its files");
  const int rank = world.rank();
  writer_ = std::make_unique<Writer>(rank == 0 ? path : fmt::format("{}.{}", path, rank), options);
  Communicator& communicator = world.communicator();
  on_every_rank(communicator, [&] { writer_->open(); });
  const std::string mine = fmt::format("{:08x}", std::random_device{}());
  writer_->begin(gather_text(communicator, mine)[0], rank, world.size());
  trace::here.watcher = writer_.get();
}

HashTrace::~HashTrace() {
  if (!writer_->of_this_thread()) {
    // That thread still shows its results there, and nothing can tell it: the memory stays.
    std::fputs(fmt::format("[hash_trace] '{}' is cut off: a HashTrace must end on the thread that "
                           "made it\n",
                           writer_->path())
                   .c_str(),
               stderr);
    (void)writer_.release();
    return;
  }
  trace::here.watcher = nullptr;
  if (writer_->by_exception()) return;
  try {
    writer_->end();
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
  }
}

}  // namespace lockstep::dist
