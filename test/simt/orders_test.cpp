// Every operation of the table in three orders of threads and blocks: the same bits in each. A
// missing barrier, or a sum whose order depends on who comes first, would show.

#include <doctest/doctest.h>

#include <cstring>

#include "lockstep/simt/simt.h"
#include "support/op_table.h"

namespace lockstep {
namespace {

constexpr Device sim{Device::Kind::sim, 0};

std::vector<Tensor> results_in(simt::Order order, const OpCase& op,
                               const std::vector<Shape>& shapes, DType dtype) {
  simt::configure({.order = order, .order_seed = 7});
  std::vector<Tensor> on_host;
  for (const Tensor& tensor : results(op, shapes, dtype, sim))
    on_host.push_back(tensor.to(Device{}));
  simt::configure({});
  return on_host;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

TEST_CASE("every operation has the same bits in ascending, descending and random thread order" *
          doctest::test_suite("not-races")) {
  for (const OpCase& op : op_table()) {
    auto all = op.shapes;
    for (const auto& shapes : large_shapes(op)) all.push_back(shapes);
    for (const auto& shapes : all)
      for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(title(op, shapes), " ", name_of(dtype));
        const auto ascending = results_in(simt::Order::ascending, op, shapes, dtype);
        const auto descending = results_in(simt::Order::descending, op, shapes, dtype);
        const auto random = results_in(simt::Order::random, op, shapes, dtype);
        for (std::size_t k = 0; k < ascending.size(); ++k) {
          CHECK(same_bits(ascending[k], descending[k]));
          CHECK(same_bits(ascending[k], random[k]));
        }
      }
  }
}

TEST_CASE("copies from the cpu: what was there when they were called, however late they run") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    simt::configure({.streams = simt::Streams::late, .stream_seed = seed});
    std::vector<Tensor> copies;
    for (int i = 0; i < 30; ++i) {
      const Tensor host = Tensor::full({1000}, i);
      copies.push_back(Tensor::empty({1000}, DType::f32, sim));
      copies.back().copy_from(host);
      host.fill(-1);
    }
    for (int i = 0; i < 30; ++i)
      CHECK(copies[static_cast<std::size_t>(i)].to_vector<float>() ==
            std::vector<float>(1000, static_cast<float>(i)));
    simt::configure({});
  }
}

}  // namespace
}  // namespace lockstep
