// An all-reduce by the ring: what every part holds before and after each step of the real plans.

#include <bit>
#include <stdexcept>

#include "lockstep/dist/collectives/plan/plan.h"
#include "tour/pictures/pictures.h"
#include "tour/pictures/svg.h"

namespace lockstep::test {
namespace {

constexpr int ranks = 3;
constexpr double cell = 62, height = 30, gap = 50, margin = 150, top = 58, down = 78;

/// held[rank][part]: a bit per rank whose contribution the sum has.
using Held = std::vector<std::vector<unsigned>>;

std::string sum_of(unsigned held) {
  if (held == (1U << ranks) - 1) return "sum";
  std::string text;
  for (int rank = 0; rank < ranks; ++rank)
    if (held & 1U << rank) text += (text.empty() ? "" : " + ") + std::to_string(rank);
  return text;
}

int part_of(const dist::PlanInput& input, const dist::Range& range) {
  for (int part = 0; part < ranks; ++part)
    if (input.part(part).begin == range.begin && input.part(part).end == range.end) return part;
  throw std::logic_error("a ring sends whole parts");
}

double x_of(int rank, int part) { return margin + rank * (ranks * cell + gap) + part * cell; }

void draw(Svg& svg, const Held& held, double y) {
  for (int rank = 0; rank < ranks; ++rank)
    for (int part = 0; part < ranks; ++part) {
      const unsigned sum = held[dist::index(rank)][dist::index(part)];
      const int count = std::popcount(sum);
      svg.box(x_of(rank, part), y, cell - 3, height, fmt::format("part{}", count));
      svg.text(x_of(rank, part) + (cell - 3) / 2, y + 20, sum_of(sum), "middle",
               count == ranks ? "w b" : "t");
    }
}

}  // namespace

std::string ring_picture() {
  std::vector<dist::Plan> plans(ranks);
  std::vector<dist::PlanInput> inputs;
  Held held(ranks, std::vector<unsigned>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back({.operation = dist::Operation::all_reduce,
                      .algorithm = dist::Algorithm::ring,
                      .rank = rank,
                      .world = ranks,
                      .count = ranks});
    dist::make_plan(inputs.back(), plans[dist::index(rank)]);
    for (unsigned& part : held[dist::index(rank)]) part = 1U << rank;
  }
  const std::size_t steps = plans[0].size();

  Svg svg(margin + ranks * (ranks * cell + gap) - gap + 20,
          top + down * static_cast<double>(steps) + height + 12,
          "A ring of three ranks adds up a bucket of three parts");
  for (int rank = 0; rank < ranks; ++rank)
    svg.text(x_of(rank, 1) + cell / 2, 20, fmt::format("rank {}", rank), "middle", "t b");
  for (int rank = 0; rank < ranks; ++rank)
    for (int part = 0; part < ranks; ++part)
      svg.text(x_of(rank, part) + cell / 2, 46, fmt::format("part {}", part), "middle", "s");
  svg.text(8, top + 20, "before");
  draw(svg, held, top);
  for (std::size_t step = 0; step < steps; ++step) {
    const double y = top + down * static_cast<double>(step + 1);
    const Held before = held;
    bool adds = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const dist::Step& send = plans[dist::index(rank)][step];
      const int to = send.to, part = part_of(inputs[dist::index(rank)], send.send);
      adds = plans[dist::index(to)][step].into == dist::Step::Into::sum;
      unsigned& target = held[dist::index(to)][dist::index(part)];
      target = (adds ? target : 0U) | before[dist::index(rank)][dist::index(part)];
      svg.arrow(x_of(rank, part) + cell / 2, y - down + height + 2, x_of(to, part) + cell / 2,
                y - 2);
    }
    svg.text(8, y + 14, fmt::format("step {}", step));
    svg.text(8, y + 29, adds ? "reduce-scatter: add" : "all-gather: keep", "start", "s");
    draw(svg, held, y);
  }
  return svg.str();
}

}  // namespace lockstep::test
