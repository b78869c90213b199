#include "peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/core/error.h"

extern char** environ;

namespace bench {
namespace {

using lockstep::check;
using lockstep::Error;

std::vector<char*> pointers(const std::vector<std::string>& command) {
  std::vector<char*> result;
  for (const std::string& word : command) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

bool imports_torch(const std::string& python) {
  const std::vector<std::string> command = {python, "-c", "import torch"};
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, python.c_str(), &quiet, nullptr, pointers(command).data(), environ);
  posix_spawn_file_actions_destroy(&quiet);
  int status = 1;
  return error == 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

}  // namespace

Peer::Peer(const std::vector<std::string>& command) {
  std::array<int, 2> in{}, out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
    lockstep::fail<Error>("[peer] no pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t wiring;
  posix_spawn_file_actions_init(&wiring);
  posix_spawn_file_actions_adddup2(&wiring, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&wiring, out[1], STDOUT_FILENO);
  const int error = ::posix_spawnp(&pid_, command[0].c_str(), &wiring, nullptr,
                                   pointers(command).data(), environ);
  posix_spawn_file_actions_destroy(&wiring);
  ::close(in[0]);
  ::close(out[1]);
  ::signal(SIGPIPE, SIG_IGN);  // that it has died shows when its answer is read
  to_ = ::fdopen(in[1], "w");
  from_ = ::fdopen(out[0], "r");
  check<Error>(error == 0, "[peer] cannot start '{}': {}", command[0], std::strerror(error));
  const std::string answer = line();
  if (answer.starts_with("cannot ")) lockstep::fail<lockstep::UsageError>("{}", answer.substr(7));
  check<Error>(answer.starts_with("ready "), "[peer] '{}' said '{}'", command[1], answer);
  name_ = answer.substr(6);
}

Peer::~Peer() {
  if (to_) std::fclose(to_);
  if (from_) std::fclose(from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

std::string Peer::ask(const std::string& request, const std::string& reply) {
  fmt::print(to_, "{}\n", request);
  std::fflush(to_);
  return hear(reply);
}

std::string Peer::hear(const std::string& reply) {
  const std::string answer = line();
  check<Error>(answer.starts_with(reply + " "), "[peer] {} said '{}' instead of '{} ...'", name_,
               answer, reply);
  return answer.substr(reply.size() + 1);
}

double Peer::round(long steps) {
  return std::strtod(ask(fmt::format("steps {}", steps), "us").c_str(), nullptr);
}

std::string Peer::line() {
  char* text = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = ::getline(&text, &capacity, from_);
  const std::string result(text ? text : "", length > 0 ? static_cast<std::size_t>(length - 1) : 0);
  std::free(text);
  check<Error>(length > 0, "[peer] {} ended unexpectedly", name_.empty() ? "the program" : name_);
  return result;
}

std::string find_python(const std::string& given) {
  if (!given.empty()) return imports_torch(given) ? given : "";
  const char* environment = std::getenv("LOCKSTEP_PYTHON");
  for (const std::string& candidate :
       {std::string(environment ? environment : ""), std::string("python3")})
    if (!candidate.empty() && imports_torch(candidate)) return candidate;
  return "";
}

}  // namespace bench
