// What changes on the way is noticed by the rank that receives it.

#include <doctest/doctest.h>

#include <array>

#include "dist/collectives/exercise.h"
#include "dist/rendezvous/rendezvous_support.h"
#include "dist/transport/relay.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "lockstep/dist/transport/transports.h"

namespace lockstep::dist {
namespace {

using testing::Bytes;
using testing::connected_pair;
using testing::frame_head;
using testing::SocketPair;

/// What somebody between the ranks does with what rank 0 sends to rank 1.
using Relay = std::function<void(int from, int to)>;

/// What the two ranks throw that add up `count` elements over a connection with a relay in it, and
/// with keys of that `secret`.
std::vector<std::string> add_over(const Relay& relay, std::int64_t count, const Token& secret) {
  SocketPair near = connected_pair(), far = connected_pair();  // rank 0 - relay - rank 1
  std::jthread there([&] { relay(near.two.get(), far.one.get()); });
  std::jthread back([&] { testing::pass_on(far.one.get(), near.two.get()); });
  const test::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  std::array<Descriptor*, 2> ends{&near.one, &far.two};
  return testing::run_ranks(2, [&](int rank) {
    std::vector<Connection> connections(2);
    connections[index(1 - rank)] = {std::move(*ends[index(rank)]), KeyStream(secret),
                                    KeyStream(secret)};
    auto transport = tcp_transport(join_rendezvous(testing::options_for(address, rank, 2)),
                                   std::move(connections));
    HostCommunicator comm(std::move(transport), {Algorithm::ring, Seconds(20)});
    testing::exercise_all_reduce<float>(comm, Tensor::empty({count}));
  });
}

void check_named(const std::vector<std::string>& errors) {
  CHECK(errors[1].starts_with("[all_reduce] rank 1, #0 '"));
  CHECK(test::contains(errors[1], "from rank 0: "));
  CHECK(test::contains(errors[1], "changed on the way"));
  CHECK(test::contains(errors[0], "changed on the way"));  // it hears of it
}

TEST_CASE("flipped bit: the receiver names the sender and the call, wherever it is") {
  // Small: header and elements in one frame. Large: many frames.
  const std::size_t call_header = 64;
  for (const std::int64_t count : {10, 300'001}) {
    const std::size_t most = static_cast<std::size_t>(count) * 2;  // half of it is sent at first
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{5}, frame_head - 1, frame_head, frame_head + 40,
          frame_head + call_header, frame_head + call_header + most / 2, most - 1}) {
      CAPTURE(count);
      CAPTURE(at);
      check_named(
          add_over([&](int from, int to) { testing::pass_on(from, to, at); }, count, Token{}));
    }
  }
  const Relay flip_nothing = [](int from, int to) { testing::pass_on(from, to, 1'000'000); };
  for (const std::string& error : add_over(flip_nothing, 1000, Token{})) CHECK(error == "");
}

TEST_CASE("relay: without the secret nobody can change, repeat, drop or move a frame unnoticed") {
  // Each makes of a frame what is sent in its place. 600'002 bytes go in two frames at least.
  Bytes kept;
  KeyStream known;  // to everybody
  const auto flip = [&](std::size_t, const Bytes& frame) {
    Bytes changed = frame;
    changed[changed.size() - 2] ^= std::byte{1};  // a float's sign is far from here
    testing::seal_again(changed, known);
    return changed;
  };
  const auto repeat = [](std::size_t, const Bytes& frame) {
    Bytes twice = frame;
    twice.insert(twice.end(), frame.begin(), frame.end());
    return twice;
  };
  const auto drop = [](std::size_t n, const Bytes& frame) { return n == 0 ? Bytes() : frame; };
  const auto swap = [&](std::size_t n, const Bytes& frame) {
    if (n == 0) kept = frame;
    if (n != 1) return n == 0 ? Bytes() : frame;
    Bytes both = frame;
    both.insert(both.end(), kept.begin(), kept.end());
    return both;
  };
  const auto cut_short = [](std::size_t, const Bytes& frame) {
    Bytes shorter = frame;
    const auto length = static_cast<std::uint32_t>(frame.size() - frame_head - 4);
    std::memcpy(shorter.data(), &length, sizeof length);
    return shorter;
  };
  Token secret{};
  secret.fill(std::byte{9});
  for (const auto& change : std::initializer_list<std::function<Bytes(std::size_t, const Bytes&)>>{
           flip, repeat, drop, swap, cut_short}) {
    known = KeyStream();
    check_named(add_over([&](int from, int to) { testing::pass_on_frames(from, to, change); },
                         300'001, secret));
  }
  // Controls: the relay itself does no harm. And why a secret: whoever knows the keys can change
  // what travels, so the sum is wrong, and only the exercise notices.
  const auto pass = [](std::size_t, const Bytes& frame) { return frame; };
  const auto over = [&](const auto& change) {
    return add_over([&](int from, int to) { testing::pass_on_frames(from, to, change); }, 300'001,
                    Token{});
  };
  for (const std::string& error : over(pass)) CHECK(error == "");
  known = KeyStream();
  const auto errors = over(flip);
  CHECK(errors[1] != "");
  CHECK_FALSE(test::contains(errors[1], "changed on the way"));
}

TEST_CASE("checked stream: any sizes on both sides") {
  SocketPair sockets = connected_pair();
  CheckedStream writer(Connection{std::move(sockets.one)}),
      reader(Connection{std::move(sockets.two)});
  std::vector<std::byte> sent(3'000'000), got(sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 + i / 251);
  std::size_t out = 0, in = 0, step = 1;
  for (int idle = 0; in < got.size() && idle < 1000; ++step) {
    const std::size_t most = step * 7919 % 300'000, least = step % 3 == 0 ? 5000 : 1;
    // What is not taken is given again, and perhaps more behind it.
    const std::size_t offer = std::min(std::max(most, std::size_t{262'144}), sent.size() - out);
    out += static_cast<std::size_t>(writer.send(std::span(sent).subspan(out, offer)));
    const std::size_t want = std::min(std::max(most % 10'000, least), got.size() - in);
    const std::ptrdiff_t count = reader.receive(std::span(got).subspan(in, want));
    REQUIRE(count >= 0);
    in += static_cast<std::size_t>(count);
    idle = count > 0 ? 0 : idle + 1;
  }
  CHECK(in == sent.size());
  CHECK(got == sent);
  std::byte more{};
  CHECK(reader.receive(std::span(&more, 1)) == 0);
  CHECK(reader.receive({}) == 0);
  writer.close();
  CHECK(reader.receive(std::span(&more, 1)) == peer_closed);
}

}  // namespace
}  // namespace lockstep::dist
