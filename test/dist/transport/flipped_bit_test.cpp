// A bit that changes on the way is noticed by the rank that receives it.

#include <doctest/doctest.h>

#include <array>

#include "dist/collectives/exercise.h"
#include "dist/rendezvous/rendezvous_support.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "lockstep/dist/transport/transports.h"
#include "support/bad_cable.h"

namespace lockstep::dist {
namespace {

using test::connected_pair;

/// What the two ranks throw that add up `count` elements over a connection on which the byte number
/// `at` from rank 0 to rank 1 is changed.
std::vector<std::string> add_over_bad_cable(std::int64_t count, std::size_t at) {
  test::BadCable cable(at);  // rank 0 - cable - rank 1
  const test::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  std::array<Descriptor, 2> ends{cable.take_near(), cable.take_far()};
  return testing::run_ranks(2, [&](int rank) {
    std::vector<Descriptor> sockets(2);
    sockets[index(1 - rank)] = std::move(ends[index(rank)]);
    auto transport =
        tcp_transport(join_rendezvous(testing::options_for(address, rank, 2)), std::move(sockets));
    HostCommunicator comm(std::move(transport), {Algorithm::ring, Seconds(20)});
    testing::exercise_all_reduce<float>(comm, Tensor::empty({count}));
  });
}

TEST_CASE("flipped bit: the receiver names the sender and the call, wherever it is") {
  // Small: header and elements in one frame. Large: many frames.
  const std::size_t frame_head = 12, call_header = 64;
  for (const std::int64_t count : {10, 300'001}) {
    const std::size_t most = static_cast<std::size_t>(count) * 2;  // half of it is sent at first
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{5}, frame_head - 1, frame_head, frame_head + 40,
          frame_head + call_header, frame_head + call_header + most / 2, most - 1}) {
      CAPTURE(count);
      CAPTURE(at);
      const auto errors = add_over_bad_cable(count, at);
      CHECK(errors[1].starts_with("[all_reduce] rank 1, #0 '"));
      CHECK(test::contains(errors[1], "from rank 0: "));
      CHECK(test::contains(errors[1], "changed on the way"));
      CHECK(test::contains(errors[0], "changed on the way"));  // it hears of it
    }
  }
  for (const std::string& error : add_over_bad_cable(1000, 1'000'000)) CHECK(error == "");
}

TEST_CASE("checked stream: any sizes on both sides") {
  test::SocketPair sockets = connected_pair();
  CheckedStream writer(std::move(sockets.one)), reader(std::move(sockets.two));
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
  writer = CheckedStream(Descriptor());
  CHECK(reader.receive(std::span(&more, 1)) == peer_closed);
}

}  // namespace
}  // namespace lockstep::dist
