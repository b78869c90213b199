// Frames of every size, cut at every place, damaged at every place.

#include <doctest/doctest.h>

#include <array>
#include <random>
#include <set>

#include "dist/transport/relay.h"
#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "support/text.h"

namespace lockstep::dist {
namespace {

using testing::Bytes;
using testing::connected_pair;
using testing::frame_head;
using testing::SocketPair;

Bytes numbered(std::size_t size, std::size_t seed = 0) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i + seed) * 151 >> 3);
  return bytes;
}

/// What `body` throws; "" if nothing.
template <class F>
std::string problem_in(F body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Token token_of(int number) {
  Token token{};
  token.fill(static_cast<std::byte>(number));
  return token;
}

/// NH, as RFC 4418 writes it.
NhSums plain_nh(const NhKey& key, std::span<const std::byte> chunk) {
  const auto word = [](std::span<const std::byte> bytes, std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  NhSums sums{};
  for (std::size_t k = 0; k < nh_sums; ++k)
    for (std::size_t at = 0; at < chunk.size(); at += 8) {
      const std::uint32_t a = word(chunk, at) + word(key, at + k * nh_step);
      const std::uint32_t b = word(chunk, at + 4) + word(key, at + 4 + k * nh_step);
      sums[k] += std::uint64_t{a} * b;
    }
  return sums;
}

TEST_SUITE_BEGIN("not-thread");  // both ends are in one

TEST_CASE("frame seal: NH of chunks of every size") {
  NhKey key;
  KeyStream(token_of(3)).fill(key);
  const Bytes bytes = numbered(nh_chunk);
  for (std::size_t size = 0; size <= nh_chunk; size += nh_step) {
    const auto chunk = std::span(bytes).first(size);
    CHECK(nh(key, chunk) == plain_nh(key, chunk));
  }
  // All bits set: sums wrap round, products have 64 bits.
  const Bytes full(nh_chunk, std::byte{255});
  CHECK(nh(key, full) == plain_nh(key, full));
}

TEST_CASE("frame seal: any pieces give one tag; its definition") {
  const KeyStream direction(token_of(7));
  NhKey nh_key;
  direction.fill(nh_key);
  FrameSealer sealer(direction);
  for (const std::size_t size :
       {0u, 1u, 127u, 128u, 129u, 160u, 4095u, 4096u, 4097u, 4128u, 8192u, 20'000u, 70'001u}) {
    CAPTURE(size);
    const Bytes bytes = numbered(size, size);
    const Tag tag = sealer.seal(token_of(9), bytes);
    Bytes shortened = bytes;
    if (size > FrameSealer::short_bytes) {
      Bytes padded = bytes;
      padded.resize((size + nh_step - 1) / nh_step * nh_step);
      shortened.clear();
      const auto put = [&](const auto& numbers) {
        const auto raw = std::as_bytes(std::span(numbers));
        shortened.insert(shortened.end(), raw.begin(), raw.end());
      };
      for (std::size_t at = 0; at < padded.size(); at += nh_chunk)
        put(plain_nh(nh_key,
                     std::span(padded).subspan(at, std::min(nh_chunk, padded.size() - at))));
      put(std::array{std::uint64_t{size}});
    }
    CHECK(tag == seal(token_of(9), shortened));
    std::mt19937 random(1);
    for (int attempt = 0; attempt < 50; ++attempt) {
      sealer.begin(token_of(9), size);
      const std::size_t most = attempt % 5 == 0 ? 40'000 : attempt % 2 == 0 ? 3000 : 70;
      for (std::size_t at = 0; at < size;) {
        const std::size_t count = std::min(size - at, random() % most);
        sealer.add(std::span(bytes).subspan(at, count));
        at += count;
      }
      CHECK(sealer.tag() == tag);
    }
  }
}

TEST_CASE("frame seal: every bit counts, every length, both keys") {
  FrameSealer sealer{KeyStream(token_of(1))};
  for (const std::size_t size : {100u, 128u, 129u, 4200u}) {
    Bytes bytes = numbered(size);
    std::set<Tag> seen{sealer.seal(token_of(2), bytes)};
    for (std::size_t at = 0; at < size; ++at) {
      const std::byte bit{static_cast<unsigned char>(1 << at % 8)};
      bytes[at] ^= bit;
      CHECK(seen.insert(sealer.seal(token_of(2), bytes)).second);
      bytes[at] ^= bit;
    }
    CHECK(seen.insert(sealer.seal(token_of(3), bytes)).second);
    if (size > FrameSealer::short_bytes)
      CHECK(seen.insert(FrameSealer(KeyStream(token_of(4))).seal(token_of(2), bytes)).second);
    bytes.push_back(std::byte{0});  // padding is no part of a frame
    CHECK(seen.insert(sealer.seal(token_of(2), bytes)).second);
  }
  // Chunks that change places.
  Bytes bytes = numbered(3 * nh_chunk);
  bytes[0] = std::byte{1};  // else they are alike
  const Tag tag = sealer.seal(token_of(2), bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + nh_chunk, bytes.begin() + nh_chunk);
  CHECK(sealer.seal(token_of(2), bytes) != tag);
}

/// A writer and a reader with the same keys, and the wire between them by hand.
struct Wire {
  SocketPair near = connected_pair(), far = connected_pair();
  CheckedStream writer, reader;
  explicit Wire(const Token& key = token_of(5))
      : writer(Connection{std::move(near.one), KeyStream(key), {}}),
        reader(Connection{std::move(far.two), {}, KeyStream(key)}) {}

  Bytes written() {
    Bytes all, part(100'000);
    for (std::ptrdiff_t got; (got = receive_some(near.two.get(), part)) > 0;)
      all.insert(all.end(), part.begin(), part.begin() + got);
    return all;
  }
  void pass(std::span<const std::byte> bytes) {
    REQUIRE(send_all(far.one.get(), bytes, Deadline(Seconds(20))) == Transfer::done);
  }
};

/// Receives two pieces as an executor does: all that is left of both, again and again.
std::size_t receive_pieces_of(CheckedStream& reader, std::span<std::byte> first,
                              std::span<std::byte> second) {
  std::size_t in = 0;
  while (in < first.size() + second.size()) {
    const auto one = first.subspan(std::min(in, first.size()));
    const auto two = second.subspan(in - (first.size() - one.size()));
    const std::ptrdiff_t count = reader.receive(one, two);
    if (count <= 0) break;
    in += static_cast<std::size_t>(count);
  }
  return in;
}

TEST_CASE("checked stream: two pieces leave at once, and arrive cut at every place") {
  const Bytes first = numbered(64, 1), second = numbered(1500, 2), third = numbered(30, 3);
  const std::size_t all = 3 * frame_head + 64 + 1500 + 30;
  for (std::size_t cut = 0; cut <= all; ++cut) {
    Wire wire;
    REQUIRE(wire.writer.send(first, second) == 64 + 1500);
    REQUIRE(wire.writer.send(third) == 30);
    const Bytes written = wire.written();
    REQUIRE(written.size() == all);
    Bytes one(64), two(1500), three(30);
    wire.pass(std::span(written).first(cut));
    const std::size_t before = receive_pieces_of(wire.reader, one, two);
    wire.pass(std::span(written).subspan(cut));
    const auto rest = std::span(one).subspan(std::min<std::size_t>(before, 64));
    receive_pieces_of(wire.reader, rest, std::span(two).subspan(before - (64 - rest.size())));
    receive_pieces_of(wire.reader, three, {});
    CHECK(one == first);
    CHECK(two == second);
    CHECK(three == third);
  }
}

TEST_CASE("checked stream: pieces of any sizes on both sides, which need not agree") {
  std::mt19937 random(35);
  const auto size = [&] {
    const std::size_t most = std::array{3u, 100u, 5000u, 600'000u}[random() % 4];
    return random() % most;
  };
  for (int attempt = 0; attempt < 60; ++attempt) {
    Wire wire;
    const Bytes sent = numbered(1'500'000, random());
    Bytes got(sent.size()), wires;
    std::size_t out = 0, in = 0;
    const auto piece = [&](auto& bytes, std::size_t begin) {
      return std::span(bytes).subspan(std::min(begin, bytes.size()));
    };
    std::size_t offered_first = 0, offered_second = 0;
    for (int idle = 0; in < sent.size() && idle < 1000; ++idle) {
      // What was not taken is offered again.
      if (offered_first + offered_second == 0) offered_first = size(), offered_second = size();
      const auto rest = piece(sent, out);
      offered_first = std::min(offered_first, rest.size());
      offered_second = std::min(offered_second, rest.size() - offered_first);
      auto count = static_cast<std::size_t>(
          wire.writer.send(rest.first(offered_first), rest.subspan(offered_first, offered_second)));
      out += count;
      const std::size_t of_first = std::min(count, offered_first);
      offered_first -= of_first;
      offered_second -= count - of_first;
      const Bytes more = wire.written();
      wires.insert(wires.end(), more.begin(), more.end());
      const std::size_t passed = std::min<std::size_t>(wires.size(), 1 + size());
      const std::ptrdiff_t now = send_some(wire.far.one.get(), std::span(wires).first(passed));
      REQUIRE(now >= 0);
      wires.erase(wires.begin(), wires.begin() + now);
      const auto room = piece(got, in);
      const std::size_t want = std::min(room.size(), size()),
                        behind = std::min(room.size() - want, size());
      const std::ptrdiff_t arrived =
          wire.reader.receive(room.first(want), room.subspan(want, behind));
      REQUIRE(arrived >= 0);
      in += static_cast<std::size_t>(arrived);
      if (arrived > 0 || count > 0 || now > 0) idle = 0;
    }
    CHECK(in == sent.size());
    CHECK(got == sent);
  }
}

TEST_CASE("checked stream: frames that are shorter or longer than the pieces that are asked for") {
  // Three frames arrive together; whatever pieces are asked for, their bytes come in order.
  const Bytes sent = numbered(64 + 100 + 3000, 4);
  const auto all = std::span(sent);
  for (const std::size_t one : {1u, 63u, 64u, 65u, 164u, 2000u})
    for (const std::size_t two : {0u, 1u, 99u, 100u, 101u, 2000u, 3099u, 3100u}) {
      if (one + two > sent.size()) continue;
      CAPTURE(one);
      CAPTURE(two);
      Wire wire;
      REQUIRE(wire.writer.send(all.first(64), all.subspan(64, 100)) == 164);
      REQUIRE(wire.writer.send(all.subspan(164)) == 3000);
      wire.pass(wire.written());
      Bytes got(sent.size());
      const auto place = std::span(got);
      std::ptrdiff_t in = wire.reader.receive(place.first(one), place.subspan(one, two));
      for (std::ptrdiff_t count = in; count > 0; in += count)
        count = wire.reader.receive(place.subspan(static_cast<std::size_t>(in)));
      CHECK(in == static_cast<std::ptrdiff_t>(sent.size()));
      CHECK(got == sent);
    }
}

TEST_CASE("checked stream: a changed bit anywhere in two pieces, and the first is never wrong") {
  const Bytes first = numbered(64, 1);
  for (const std::size_t size : {900u, 1100u}) {
    const Bytes second = numbered(size, 2);
    const std::size_t all = 2 * frame_head + 64 + size;
    for (std::size_t at = 0; at < all; ++at) {
      CAPTURE(at);
      Wire wire;
      wire.writer.send(first, second);
      Bytes written = wire.written();
      written[at] ^= std::byte{static_cast<unsigned char>(1 << at % 8)};
      wire.pass(written);
      Bytes one(64), two(size);
      std::size_t in = 0;
      const std::string error = problem_in([&] {
        in = receive_pieces_of(wire.reader, std::span(one), {});
        if (in == 64) CHECK(one == first);
        receive_pieces_of(wire.reader, two, {});
      });
      CHECK(test::contains(error, "changed on the way"));
      CHECK((in == 64) == (at >= frame_head + 64));
    }
  }
}

TEST_CASE("checked stream: a frame that comes again, is missing or ends early is noticed") {
  const Bytes first = numbered(64, 1), second = numbered(5000, 2);
  const std::size_t one_frame = frame_head + 64;
  const auto error_for = [&](const std::function<Bytes(const Bytes&)>& change) {
    Wire wire;
    wire.writer.send(first, second);
    wire.pass(change(wire.written()));
    ::shutdown(wire.far.one.get(), SHUT_WR);
    Bytes one(64), two(5000);
    std::size_t in = 0;
    const std::string error = problem_in([&] { in = receive_pieces_of(wire.reader, one, two); });
    return error.empty() && in < 5064 ? "ended" : error;
  };
  const auto range = [](const Bytes& bytes, std::size_t begin, std::size_t end) {
    return Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                 bytes.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const auto joined = [](Bytes a, const Bytes& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  CHECK(error_for([](const Bytes& bytes) { return bytes; }) == "");
  CHECK(test::contains(error_for([&](const Bytes& all) {  // twice
                         return joined(range(all, 0, one_frame), all);
                       }),
                       "changed on the way"));
  CHECK(test::contains(error_for([&](const Bytes& all) {  // the second alone
                         return range(all, one_frame, all.size());
                       }),
                       "changed on the way"));
  CHECK(test::contains(error_for([&](const Bytes& all) {  // in the other order
                         return joined(range(all, one_frame, all.size()), range(all, 0, one_frame));
                       }),
                       "changed on the way"));
  for (const std::size_t end : {one_frame - 1, one_frame, one_frame + 10, one_frame + 2000})
    CHECK(error_for([&](const Bytes& all) { return range(all, 0, end); }) == "ended");
}

TEST_SUITE_END();

}  // namespace
}  // namespace lockstep::dist
