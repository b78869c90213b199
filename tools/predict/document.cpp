#include "lockstep/tools/predict/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/tools/predict/measured.h"
#include "lockstep/tools/predict/plans.h"
#include "lockstep/tools/predict/product.h"
#include "lockstep/tools/predict/published.h"

namespace lockstep::predict {
namespace {

constexpr const char* introduction = R"(# Predictions

Times of kernels on named GPUs, predicted without one, from the counts of the simulator and of the
compiler. `./lockstep count --write` writes this file; a test holds it to what is computed.
`./lockstep count --predict H100 [NAME...]` predicts the counted operations, and
`--predict H100 --product '4096x4096x1024 NT'` a product. `tools/predict/predict.h` says how, in
five steps: occupancy, a step of the main loop, latency, waves, bytes.

**Predicted is not measured.** What a table here calls *predicted* no GPU has timed; what it calls
*measured* or *published* one has. The model has a table of GPUs, and two constants that are the
same for all kernels: 2.2 us for a launch, and 90 % of a memory's bytes per second. Nothing was
fitted by a search. But the model's form was chosen with Boehm's table in sight: what the warps of a
scheduler wait for, the clock between base and boost (the base clock alone was tried), and how his
kernel 11 and cuBLAS are described. The other two tables were predicted with that form and the same
constants, except that an H100's L2 got the A100's 5120 bytes per cycle when kernels 6 and 7 of
fast.cu came out equal with 5800. So these two errors flatter the model. No source gives an H100's
figure. With the 4472 that were measured on an H800 PCIe, kernel 6 would be predicted at 638
TFLOP/s: -18 %, not -8 %. The table of our own products is the independent one, and its errors are
larger.

Not modelled: where in L2 a line lies, rows of DRAM, TLBs, instruction caches, conflicts between
registers, the copy engine's own time, host and driver, multiprocessors that are left over because a
cluster has to fit into one part of the GPU. How fast blocks of a cluster read each other's shared
memory is assumed (`H100` in `kernels/cuda/gemm/slice_plan.h`): nobody has timed our products with
slices in clusters. Instructions and registers are those of nvcc 13, counted once by hand, and no
test compares them. cuBLAS is not predicted: its kernels are not known. With the 3942 bytes per
cycle of L2 that were measured for loads of 16 bytes, fast.cu's kernels 5 and 6 would come out
equal.

- **Share** is that of the roof: the longer of the multiply-adds at the base clock, and of the
  fewest bytes at the memory's full speed. Launches are part of the time that is compared with it.
- **Limiter** is what takes the longest. *Issue*, *FMA*, *tensor*: instructions, multiply-adds of
  f32, tensor cores. *L1*: it and shared memory. *L2*, *memory*: their bytes. *Latency*: blocks
  wait, and have too few neighbours. *Waves*: multiprocessors without a block. *Launch*: more than
  half of the time is for starting kernels.
)";

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.0f} %", 100 * share); }

// ---- GPUs ---------------------------------------------------------------------------------------

std::string gpu_section() {
  std::string text =
      "\n## GPUs\n\nPer cycle and multiprocessor, unless it says otherwise. Sources: "
      "`tools/predict/gpu.cpp`.\n\n"
      "| GPU | multiprocessors | base, boost GHz | f32 FMA | load/store units | mma, wgmma FMA of "
      "16 "
      "bits | threads | shared KiB | L2 MiB | L2 bytes, GPU | memory GB/s | latency: shared, "
      "memory |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Gpu& gpu : gpus())
    text += fmt::format(
        "| {} | {} | {:.3g}, {:.3g} | {} | {} | {:.0f}, {} | {} | {} | {} | {:.0f} | {:.0f} | {}, "
        "{} |\n",
        gpu.name, gpu.processors, gpu.base_clock * 1e-9, gpu.boost_clock * 1e-9, gpu.fma_lanes,
        gpu.load_store_units, gpu.mma, gpu.wgmma == 0 ? "-" : fmt::format("{:.0f}", gpu.wgmma),
        gpu.threads, gpu.shared_bytes >> 10, gpu.l2_size >> 20, gpu.l2_bytes,
        gpu.memory_bytes * 1e-9, gpu.shared_latency, gpu.memory_latency);
  return text;
}

// ---- published ----------------------------------------------------------------------------------

std::string published_table(const std::vector<Published>& rows, double unit, const char* name) {
  std::string text = fmt::format(
      "| kernel | published {0} | predicted {0} | error of speed | limiter | blocks | waves | "
      "remark |"
      "\n"
      "|---|---|---|---|---|---|---|---|\n",
      name);
  std::vector<double> errors;
  for (const Published& row : rows) {
    const Prediction p = predict(row.operation, gpu_named(row.gpu));
    const double predicted = row.operation.flops / p.seconds;
    errors.push_back(std::abs(predicted / row.measured - 1));
    text += fmt::format("| {} | {:.0f} | {:.0f} | {} | {} | {} | {:.1f} | {} |\n",
                        row.operation.name, row.measured / unit, predicted / unit,
                        signed_percent(predicted / row.measured - 1), name_of(p.limiter), p.blocks,
                        p.waves, row.remark);
  }
  return text + fmt::format("\nMedian error {}, worst {}.\n", percent(median(errors)),
                            percent(*std::ranges::max_element(errors)));
}

std::string published_section(const Readings& softmax) {
  std::string text =
      "\n## Published and predicted\n\nThese are other people's kernels, described by hand "
      "(`tools/predict/published.h`). The remark says\nhow ours differ.\n\n"
      "S. Boehm, \"How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance\": f32, "
      "4096^3, A6000.\n\n";
  text += published_table(published_boehm(), 1e9, "GFLOP/s");
  text +=
      "\npranjalssh/fast.cu, README of its first version: bf16, 8192 x 8192 x 8192, H100 SXM.\n\n";
  text += published_table(published_fast_cu(), 1e12, "TFLOP/s");
  text += fmt::format(
      "\nDao and others, Quack (\"Getting Memory-bound Kernels to Speed-of-Light\", 2025), softmax "
      "on "
      "an H100:\n{:.2f} TB/s in one reading of the rows, {:.2f} by torch.compile in two, a ratio "
      "of "
      "{:.2f}. Our two\nsoftmax kernels, as counted, scaled to 2^28 elements: predicted ratio "
      "{:.2f} "
      "({}).\n",
      quack_one_reading * 1e-12, quack_two_readings * 1e-12, quack_one_reading / quack_two_readings,
      softmax.two.seconds / softmax.one.seconds,
      signed_percent(softmax.two.seconds / softmax.one.seconds /
                         (quack_one_reading / quack_two_readings) -
                     1));
  return text;
}

// ---- ours, measured -----------------------------------------------------------------------------

std::string measured_section(const std::string& benchmarks) {
  const Gpu& gpu = gpu_named("H100");
  std::string table =
      "| product | type | rung, tile /slices | measured us | predicted us | error of time | "
      "limiter |\n"
      "|---|---|---|---|---|---|---|\n";
  std::vector<double> errors[3], of_all[3];
  for (const Measured& row : measured_products(benchmarks)) {
    const Product& p = row.product;
    const Operation operation = operation_of(row);
    const Prediction predicted = predict(operation, gpu);
    const double error = predicted.microseconds() / row.microseconds - 1;
    const bool host = bound_by_host(row, operation);
    of_all[static_cast<int>(p.precision)].push_back(std::abs(error));
    if (!host) errors[static_cast<int>(p.precision)].push_back(std::abs(error));
    table += fmt::format("| {}x{}x{} {}{} | {} | {} | {:.1f} | {:.1f} | {} | {} |\n", p.m, p.n, p.k,
                         p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', name_of(p.precision),
                         operation.name, row.microseconds, predicted.microseconds(),
                         host ? "host" : signed_percent(error), name_of(predicted.limiter));
  }
  std::string text = R"(
## Ours, measured and predicted

Products with the plans that were measured on an H100, when a second kernel added up all slices; the
times are those of [benchmarks.md](benchmarks.md). *Host*: each launch took the host
about 5 us, and the GPU waited for it. Rows of less than 7 us per launch are taken for such. That
limit was chosen with this table in sight, and decides much of the errors for bf16, so they are
given with and without these rows. The prediction is too short nearly everywhere, most where
tensor cores have little to do: trust its order more than its microseconds.

)";
  for (int i = 0; i < 3; ++i)
    text += fmt::format("- {}: median error {}, worst {}, of {} products; of all {}: {} and {}.\n",
                        name_of(static_cast<Precision>(i)), percent(median(errors[i])),
                        percent(*std::ranges::max_element(errors[i])), errors[i].size(),
                        of_all[i].size(), percent(median(of_all[i])),
                        percent(*std::ranges::max_element(of_all[i])));
  return text + "\n" + table;
}

// ---- all layers ---------------------------------------------------------------------------------

struct Threshold {
  const char* what;
  double least;
  bool (*concerns)(const LayerProduct&);
};
constexpr Threshold thresholds[] = {
    {"wider than 2048, batches of 1024 and 8192", 0.85,
     [](const LayerProduct& p) { return p.width > 2048 && p.batch > 128; }},
    {"width 1024, batches of 1024 and 8192", 0.60,
     [](const LayerProduct& p) { return p.width == 1024 && p.batch > 128; }},
    {"batch 128", 0.35, [](const LayerProduct& p) { return p.batch == 128; }},
    {"dW of 256 x 256, batch 8192", 0.40,
     [](const LayerProduct& p) { return p.what == "dW" && p.width == 256 && p.batch == 8192; }},
};

std::string threshold_table(const Gpu& gpu) {
  std::string text =
      "| bf16 | at least | least, predicted | possible for | reached by |\n|---|---|---|---|---|\n";
  for (const Threshold& threshold : thresholds) {
    double least = 1;
    int all = 0, possible = 0, reached = 0;
    for (const LayerProduct& product : layer_products()) {
      if (!threshold.concerns(product)) continue;
      const Operation operation = chosen_product(product.in(Precision::bf16), gpu);
      const double share = predict(operation, gpu).share_of_roof;
      const double roof = roof_seconds(operation, gpu);
      least = std::min(least, share);
      all += 1;
      possible += roof / (roof + launch_seconds) >= threshold.least;
      reached += share >= threshold.least;
    }
    text += fmt::format("| {} | {} | {} | {} of {} | {} |\n", threshold.what,
                        percent(threshold.least), percent(least), possible, all, reached);
  }
  double most = 0;
  int few = 0;
  for (const LayerProduct& product : layer_products()) {
    const double lost =
        predict(chosen_product(product.in(Precision::bf16), gpu), gpu).lost_to_waves;
    most = std::max(most, lost);
    few += lost <= 0.15;
  }
  return text + fmt::format("| lost to waves, all | (at most) 15 % | (most) {} | {} | {} |\n",
                            percent(most), layer_products().size(), few);
}

std::string layer_section() {
  const Gpu& gpu = gpu_named("H100");
  std::string text = R"(
## Layers on an H100

Products of a layer of width x width, as the library chooses them: forward (NT), the gradient of the
weights (dW, TN), of the input (dX, NN). What they should reach, and what is predicted. *Possible*:
at the full speed of the roof, together with one launch, the product would reach it. For others a
launch alone takes too long.

)";
  text += threshold_table(gpu);
  text +=
      "\n| batch | width | product | type | rung, tile /slices | predicted us | limiter | share | "
      "blocks | waves | lost to waves |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const LayerProduct& product : layer_products())
    for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
      const Operation operation = chosen_product(product.in(precision), gpu);
      const Prediction p = predict(operation, gpu);
      text += fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {} | {} | {} | {:.2f} | {} |\n",
                          product.batch, product.width, product.what, name_of(precision),
                          operation.name, p.microseconds(), name_of(p.limiter),
                          percent(p.share_of_roof), p.blocks, p.waves, percent(p.lost_to_waves));
    }
  return text;
}

// ---- other plans --------------------------------------------------------------------------------

std::string plan_section() {
  struct Gain {
    double share;
    std::string row;
  };
  const Gpu& gpu = gpu_named("H100");
  std::vector<Gain> gains;
  for (const LayerProduct& product : layer_products())
    for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
      const Operation chosen = chosen_product(product.in(precision), gpu);
      const Operation fastest = fastest_product(product.in(precision), gpu);
      const double now = predict(chosen, gpu).seconds, then = predict(fastest, gpu).seconds;
      gains.push_back(
          {1 - then / now,
           fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {} | {:.1f} | {} |\n", product.batch,
                       product.width, product.what, name_of(precision), chosen.name, now * 1e6,
                       fastest.name, then * 1e6, percent(1 - then / now))});
    }
  std::ranges::stable_sort(gains, std::greater<>(), &Gain::share);
  std::string text = R"(
## Other plans

The library chooses by its own estimate (`kernels/cuda/gemm/slice_plan.h`, `hopper/plan.cpp`), which
must not depend on the GPU. Where this prediction would gain the most from another tile or other
slices:

| batch | width | product | type | chosen | predicted us | fastest | predicted us | gain |
|---|---|---|---|---|---|---|---|---|
)";
  for (std::size_t i = 0; i < 5; ++i) text += gains[i].row;
  const auto some = std::ranges::count_if(gains, [](const Gain& g) { return g.share > 0.05; });
  return text + fmt::format(
                    "\nMore than 5 % are predicted for {} of {} products, and these gains "
                    "are less than the\nprediction's own error: no plan was changed for "
                    "them.\n",
                    some, gains.size());
}

}  // namespace

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::f32: return "f32";
    case Precision::tf32: return "tf32";
    case Precision::bf16: break;
  }
  return "bf16";
}

Product LayerProduct::in(Precision precision) const {
  Product product{batch, width, width, transpose_a, transpose_b, precision};
  if (what == "dW") product.m = width, product.k = batch;
  product.result_bytes = product.bytes();
  return product;
}

std::vector<LayerProduct> layer_products() {
  std::vector<LayerProduct> all;
  for (const std::int64_t batch : {128, 1024, 8192})
    for (const std::int64_t width : {256, 512, 1024, 2048, 4096, 8192}) {
      all.push_back({"forward", batch, width, false, true});
      all.push_back({"dW", batch, width, true, false});
      all.push_back({"dX", batch, width, false, false});
    }
  return all;
}

std::string document(const Readings& softmax, const std::string& benchmarks) {
  return introduction + gpu_section() + published_section(softmax) + measured_section(benchmarks) +
         layer_section() + plan_section();
}

}  // namespace lockstep::predict
