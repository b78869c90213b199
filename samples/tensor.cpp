// `./lockstep sample tensor`: what a tensor is, and why a bucket needs nothing more. The first
// chapter of the tour (docs/tour/) is about this program.

#include <lockstep/launch/report.h>
#include <lockstep/lockstep.h>

using namespace lockstep;

namespace {

void check_that(bool holds, const char* what) { check<Error>(holds, "[tensor] {}", what); }

void a_handle() {
  const Tensor x = Tensor::arange(6.0).view({2, 3});
  const Tensor y = x;  // another handle of the same elements
  y.set({0, 0}, 10);
  fmt::print("x, after its copy was changed:\n{}\n\n", x);
  check_that(x.item({0, 0}) == 10, "a copy shares the elements");
}

void a_view() {
  const Tensor x = Tensor::arange(6.0).view({2, 3});
  const Tensor row = x.slice(1, 2);  // shape (1, 3), over the same memory
  const Tensor turned = transpose(x);
  fmt::print("slice(1, 2) begins {} bytes into x, transpose(x) has memory of its own: {}\n\n",
             row.raw() - x.raw(), turned.storage().data() != x.storage().data());
  check_that(row.raw() - x.raw() == 3 * 4, "a row of three f32 has 12 bytes");
  check_that(turned.item({2, 1}) == x.item({1, 2}), "transpose swaps the dimensions");
}

void a_dtype() {
  const Tensor labels = Tensor::from({3, 1, 4});  // whole numbers are i64
  fmt::print("labels: {} elements of {}, {} bytes\n", labels.numel(), labels.dtype(),
             labels.bytes());
  try {
    (void)labels.data<float>();
  } catch (const DTypeError& error) {
    fmt::print("read as float: {}\n\n", error.what());
  }
}

void a_bucket() {
  const Tensor bucket = Tensor::zeros({8});
  const Tensor weight = bucket.slice(0, 6).view({2, 3}), bias = bucket.slice(6, 8);
  weight.fill(0.5);  // as backward will do
  bias.fill(2);
  fmt::print("a bucket, after its two gradients were written:\n{}\n", bucket);
  check_that(bucket.item({5}) == 0.5 && bucket.item({6}) == 2, "both lie in the bucket");
}

}  // namespace

int main() {
  return run_main([] {
    a_handle();
    a_view();
    a_dtype();
    a_bucket();
    return 0;
  });
}
