#include "lockstep/core/system/atomic_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

unsigned mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

/// A child that has written half of `path`: it then waits to be told to go on.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int written[2], proceed[2];
    REQUIRE(::pipe2(written, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(proceed, O_CLOEXEC) == 0);
    id_ = ::fork();
    if (id_ == 0) {
      ::close(proceed[1]);
      char byte = 0;
      AtomicFile file(path);
      file.write("child", 5);
      bool well = ::write(written[1], &byte, 1) == 1 && ::read(proceed[0], &byte, 1) == 1;
      try {
        file.commit();
      } catch (const DataError&) {
        well = false;
      }
      ::_exit(well ? 0 : 1);
    }
    ::close(written[1]);
    ::close(proceed[0]);
    proceed_ = proceed[1];
    char byte = 0;
    REQUIRE(::read(written[0], &byte, 1) == 1);
    ::close(written[0]);
  }
  ~Writer() { ::close(proceed_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void kill() { ::kill(id_, SIGKILL), wait(); }
  int finish() {
    REQUIRE(::write(proceed_, "x", 1) == 1);
    return wait();
  }

 private:
  int wait() {
    int status = -1;
    ::waitpid(id_, &status, 0);
    return status;
  }
  pid_t id_ = -1;
  int proceed_ = -1;
};

}  // namespace

TEST_CASE("atomic file: the old file is intact until commit, and without it") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new", 3);
    CHECK(contents_of(path) == "old");
    CHECK(names_in(folder).size() == 2);
  }
  CHECK(contents_of(path) == "old");
  CHECK(names_in(folder) == std::vector<std::string>{"file"});  // the part that was written is gone
  {
    AtomicFile file(path);
    file.write("new", 3);
    file.commit();
  }
  CHECK(contents_of(path) == "new");
  CHECK(names_in(folder) == std::vector<std::string>{"file"});
}

TEST_CASE("atomic file: files of every size, written in pieces of every size") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  constexpr std::size_t chunk = std::size_t{4} << 20;
  std::string text(2 * chunk + 777, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, chunk - 1,
                                 chunk, chunk + 1, 2 * chunk, text.size()})
    for (const std::size_t piece : {chunk / 3 + 5, text.size()}) {
      CAPTURE(size);
      CAPTURE(piece);
      AtomicFile file(path);
      for (std::size_t at = 0; at < size; at += piece)
        file.write(text.data() + at, std::min(piece, size - at));
      file.commit();
      CHECK((contents_of(path) == text.substr(0, size)));
    }
}

TEST_CASE("atomic file: the mode of the file that it replaces; a new one's is the umask's") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const mode_t before = ::umask(027);
  write_file(path, "new");
  CHECK(mode_of(path) == 0640);
  for (const unsigned mode : {0600u, 0644u, 0666u, 0755u, 0400u}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    {
      AtomicFile file(path);  // nobody else may read it while it is written
      for (const std::string& name : names_in(folder)) CHECK((mode_of(folder / name) & ~mode) == 0);
      file.commit();
    }
    CHECK(mode_of(path) == mode);
  }
  ::umask(before);
}

TEST_CASE("atomic file: links at the temporary names are not followed") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", victim = folder / "victim";
  put(victim, "untouched");
  for (int k = 0; k < 200; ++k)
    fs::create_symlink(victim, fmt::format("{}.lockstep-{}-{}.tmp", path, ::getpid(), k));
  write_file(path, "new");
  CHECK(contents_of(path) == "new");
  CHECK_FALSE(fs::is_symlink(path));
  CHECK(contents_of(victim) == "untouched");
}

TEST_CASE("atomic file: a link to a file stays, and its target is replaced") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "there");
  put(folder / "there/target", "old");
  fs::create_symlink("there/target", folder / "link");
  write_file(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(contents_of(folder / "there/target") == "new");
}

TEST_CASE("atomic file: links that lead to no file yet stay, and their target is made") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "there");
  fs::create_symlink("there/target", folder / "one");
  fs::create_symlink("one", folder / "two");
  fs::create_symlink(folder / "two", folder / "there/three");  // absolute, and from another folder
  write_file(folder / "there/three", "new");
  for (const char* link : {"one", "two", "there/three"}) CHECK(fs::is_symlink(folder / link));
  CHECK(fs::is_regular_file(fs::symlink_status(folder / "there/target")));
  CHECK(contents_of(folder / "one") == "new");
  for (const char* loop : {"a", "b"}) fs::create_symlink(*loop == 'a' ? "b" : "a", folder / loop);
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "a"),
                       doctest::Contains("/a' is a link that leads back to itself"), DataError);
  fs::create_symlink("nowhere/x", folder / "astray");
  CHECK_THROWS_WITH_AS(write_file(folder / "astray", "x"),
                       doctest::Contains("nowhere/x': No such file or directory"), DataError);
  CHECK(fs::is_symlink(folder / "astray"));
}

TEST_CASE("atomic file: threads that write the same file do not disturb each other") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  constexpr int writers = 7, times = 20;
  std::vector<std::string> errors(writers);
  std::vector<std::thread> threads;
  for (int r = 0; r < writers; ++r)
    threads.emplace_back([&, r] {
      try {
        for (int k = 0; k < times; ++k)
          write_file(path, std::string(10000, static_cast<char>('a' + r)));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error == "");
  const std::string text = contents_of(path);
  CHECK(text == std::string(10000, text.at(0)));
  CHECK(names_in(folder) == std::vector<std::string>{"file"});
}

TEST_CASE("atomic file: what a killed process has left goes with the next write, nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  Writer killed(path), alive(path);
  killed.kill();
  REQUIRE(names_in(folder).size() == 2);
  put(folder / "file.lockstep-123-0.tmp", "of another process");
  // A user's: dates, versions, and what is nearly one of ours.
  const std::vector<std::string> others = {"file.2026.tmp",
                                           "file.2026.11.tmp",
                                           "file.1.2.3.tmp",
                                           "file.tmp",
                                           "file.safetensors",
                                           "file.lockstep.tmp",
                                           "file.lockstep-1.tmp",
                                           "file.lockstep-1-.tmp",
                                           "file.lockstep--1.tmp",
                                           "file.lockstep-a-0.tmp",
                                           "file.lockstep-1-2-3.tmp",
                                           "file.lockstep-1-2.tmp.bak",
                                           "another.lockstep-123-0.tmp",
                                           "file-lockstep-123-0.tmp"};
  for (const std::string& name : others) put(folder / name, "not ours");
  fs::create_directory(folder.path() / "file.lockstep-7-7.tmp");

  write_file(path, "parent");
  CHECK(contents_of(path) == "parent");
  for (const std::string& name : others) CHECK_MESSAGE(fs::exists(folder / name), name);
  CHECK(fs::exists(folder / "file.lockstep-7-7.tmp"));
  CHECK_FALSE(fs::exists(folder / "file.lockstep-123-0.tmp"));
  CHECK(names_in(folder).size() == others.size() + 3);  // with the file, and alive's

  CHECK(alive.finish() == 0);
  CHECK(contents_of(path) == "child");
  CHECK(names_in(folder).size() == others.size() + 2);
}

TEST_CASE("atomic file: a text goes into a pipe that is there") {
  const TemporaryFolder folder;
  const std::string path = folder / "pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_file(path, "text");
  char buffer[16];
  CHECK(::read(reader, buffer, sizeof buffer) == 4);
  ::close(reader);
  CHECK(fs::is_fifo(path));
}

TEST_CASE("atomic file: what nobody reads from does not block") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(write_file(folder / "pipe", "x"),
                       doctest::Contains("pipe': nobody reads from this pipe"), DataError);
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "pipe"),
                       doctest::Contains("is a pipe, not a regular file"), DataError);
}

TEST_CASE("file kinds: what is there, and why it cannot be read, without blocking") {
  const TemporaryFolder folder;
  put(folder / "file", "text");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  (folder / "socket").copy(name.sun_path, sizeof name.sun_path - 1);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  ::close(socket);
  const std::vector<std::pair<std::string, std::string>> there = {
      {folder / "file", "a file"}, {folder / "pipe", "a pipe"}, {folder / "socket", "a socket"},
      {folder.path(), "a folder"}, {"/dev/zero", "a device"},   {folder / "none", "nothing"}};
  for (const auto& [path, kind] : there) {
    CHECK(name_of(kind_of_file(path)) == kind);
    fs::remove(folder / "link");
    fs::create_symlink(path, folder / "link");
    CHECK(name_of(kind_of_file(folder / "link")) == kind);
    const std::string why = why_unreadable(path);
    if (kind == "a file")
      CHECK(why == "");
    else if (kind == "nothing")
      CHECK(why == "No such file or directory");
    else
      CHECK(why == "it is " + kind + ", not a regular file");
  }
}

TEST_CASE("atomic file: after a write that failed nothing is committed") {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  struct rlimit before {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 5U << 20U;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  AtomicFile file(folder / "file");
  const std::string much(std::size_t{10} << 20U, 'x');
  CHECK_THROWS_AS(file.write(much.data(), much.size()), DataError);
  CHECK_THROWS_WITH_AS(file.commit(), doctest::Contains("has failed before"), DataError);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  std::string text;
  std::ifstream(folder / "file") >> text;
  CHECK(text == "old");
}

TEST_CASE("atomic file: what cannot be written is named") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(AtomicFile("/dev/null"),
                       "[save] '/dev/null' is a device, not a regular file", DataError);
  CHECK_THROWS_WITH_AS(write_file("/dev/full", "x"),
                       "[save] cannot write '/dev/full': No space left on device", DataError);
  CHECK_THROWS_WITH_AS(write_file(folder.path(), "x"), doctest::Contains("is a folder, not a"),
                       DataError);
  CHECK_THROWS_WITH_AS(write_file("/nowhere/x", "x"),
                       "[save] cannot create '/nowhere/x': No such file or directory", DataError);
  CHECK(folder.empty());
}
