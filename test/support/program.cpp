#include "support/program.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace lockstep::test {
namespace {

template <class Condition>
void wait_until(Condition&& holds, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) FAIL("waited in vain for ", what);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string contents(const dist::Descriptor& file) {
  std::string text;
  char buffer[4096];
  ssize_t got;
  while ((got = pread(file.get(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

/// Programs of $LOCKSTEP_PROGRAMS are started in the place of the build's: mutants (test/mutants).
/// A word may be a shell's text that names several.
std::vector<std::string> with_mutants(std::vector<std::string> command) {
  const char* const folder = std::getenv("LOCKSTEP_PROGRAMS");
  if (!folder) return command;
  const std::string bin = LOCKSTEP_BIN_DIR "/";
  for (std::string& word : command)
    for (std::size_t at = 0; (at = word.find(bin, at)) != word.npos; ++at) {
      const std::size_t name = at + bin.size(), end = word.find_first_of(" ;|&'\")", name);
      const std::filesystem::path mutant =
          folder / std::filesystem::path(word.substr(name, end - name));
      if (std::filesystem::is_regular_file(mutant))
        word.replace(at, std::min(end, word.size()) - at, mutant);
    }
  return command;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

Process::Process(const std::vector<std::string>& command_,
                 const std::vector<std::string>& variables)
    : out_(memfd_create("out", MFD_CLOEXEC)), err_(memfd_create("err", MFD_CLOEXEC)) {
  static std::atomic<int> number{0};
  mark_ = fmt::format("LOCKSTEP_TEST_MARK={}.{}", getpid(), number++);
  const std::vector<std::string> command = with_mutants(command_);
  std::vector<std::string> environment = variables;
  environment.push_back(mark_);
  for (char** entry = environ; *entry; ++entry) environment.emplace_back(*entry);

  // Appending, so that two processes that share the file do not overwrite each other's lines.
  for (const dist::Descriptor* file : {&out_, &err_}) fcntl(file->get(), F_SETFL, O_APPEND);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out_.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, err_.get(), 2);
  // Signals that whoever runs the tests ignores (nohup) are not ignored in the program.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t usual;
  sigfillset(&usual);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(&id_, command[0].c_str(), &actions, &attributes,
                                 pointers(command).data(), pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  REQUIRE_MESSAGE(error == 0, "cannot start ", command[0]);
}

Process::~Process() {
  for (pid_t process : family()) kill(process, SIGKILL);
  if (!waited_) waitpid(id_, nullptr, 0);
}

std::string Process::out() const { return contents(out_); }
std::string Process::err() const { return contents(err_); }

void Process::wait_for_output(const std::string& text, int times) const {
  wait_until([&] { return count(out(), text) >= times; }, text);
}

Ended Process::wait() {
  std::optional<Ended> ended;
  wait_until([&] { return (ended = try_wait()).has_value(); }, "the end of the program");
  return *ended;
}

std::optional<Ended> Process::try_wait() {
  int status = 0;
  if (waitpid(id_, &status, WNOHANG) != id_) return {};
  waited_ = true;
  const bool exited = WIFEXITED(status);
  return Ended{exited ? WEXITSTATUS(status) : -1, exited ? 0 : WTERMSIG(status), out(), err()};
}

std::string text_in_proc(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();  // unlike an iterator, it does not throw if the read fails
  return text.str();
}

std::vector<pid_t> Process::family() const {
  std::vector<pid_t> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = text_in_proc(entry.path() / "environ");
    // The variable ends with a zero byte: mark 1 is not mark 10.
    if (environment.find(mark_ + '\0') != std::string::npos) result.push_back(std::stoi(name));
  }
  return result;
}

void Process::wait_for_empty_family() const {
  wait_until([&] { return family().empty(); }, "the end of all processes");
}

Ended run(const std::vector<std::string>& command, const std::vector<std::string>& variables) {
  return Process(command, variables).wait();
}

std::vector<std::string> launched(int ranks, const std::string& script,
                                  const std::vector<std::string>& options) {
  std::vector<std::string> command{LOCKSTEP_BIN_DIR "/lockstep-run", "-n", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"sh", "-c", script});
  return command;
}

}  // namespace lockstep::test
