// The kernels that have a counterpart in CUB, NVIDIA's library of device-wide primitives, which
// comes with the CUDA toolkit.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_reduce.cuh>
#include <cub/device/device_segmented_reduce.cuh>
#include <cub/device/device_transform.cuh>
#include <cuda/std/tuple>
#include <map>

#include "lockstep/bench/kernels/peers.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/stream.h"

namespace bench {
namespace {

using namespace lockstep;

void check_call(cudaError_t error) { lockstep::cuda::call("CUB", "a call", error); }

struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0 : x; }
};
struct Exp {
  __device__ float operator()(float x) const { return expf(x); }
};
struct Square {
  __device__ float operator()(float x) const { return x * x; }
};
struct Scale {
  __device__ float operator()(float x) const { return 0.75f * x; }
};
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Multiply {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct ScaleAdd {
  __device__ float operator()(float x, float out) const { return out + 0.75f * x; }
};
/// Where row i begins.
struct RowStart {
  std::int64_t columns;
  __host__ __device__ std::int64_t operator()(std::int64_t i) const { return i * columns; }
};

template <class F>
Run unary(const Case& work) {
  return [x = work.inputs[0], out = work.outputs[0].tensor] {
    check_call(cub::DeviceTransform::Transform(x.data<float>(), out.data<float>(), x.numel(), F{},
                                               lockstep::cuda::queue_of(out).stream));
  };
}

template <class F>
Run binary(const Case& work) {
  return [a = work.inputs[0], b = work.inputs[1], out = work.outputs[0].tensor] {
    check_call(cub::DeviceTransform::Transform(
        ::cuda::std::make_tuple(a.data<float>(), b.data<float>()), out.data<float>(), a.numel(),
        F{}, lockstep::cuda::queue_of(out).stream));
  };
}

/// `call(scratch, bytes, stream)` as CUB's reductions want it: asked once for the size of the
/// scratch memory, which then stays.
template <class Call>
Run with_scratch(const Tensor& out, Call call) {
  std::size_t bytes = 0;
  check_call(call(nullptr, bytes, lockstep::cuda::queue_of(out).stream));
  const Tensor scratch =
      Tensor::empty({static_cast<std::int64_t>(bytes) + 1}, DType::u8, out.device());
  return [=] {
    std::size_t size = bytes;
    check_call(call(scratch.raw(), size, lockstep::cuda::queue_of(out).stream));
  };
}

Run sum(const Case& work) {
  const Tensor x = work.inputs[0], out = work.outputs[0].tensor;
  return with_scratch(out, [=](void* scratch, std::size_t& bytes, cudaStream_t stream) {
    return cub::DeviceReduce::Sum(scratch, bytes, x.data<float>(), out.data<float>(), x.numel(),
                                  stream);
  });
}

Run sum_cols(const Case& work) {
  const Tensor x = work.inputs[0], out = work.outputs[0].tensor;
  return with_scratch(out, [=](void* scratch, std::size_t& bytes, cudaStream_t stream) {
    const auto starts = thrust::make_transform_iterator(
        thrust::make_counting_iterator(std::int64_t{0}), RowStart{x.size(1)});
    return cub::DeviceSegmentedReduce::Sum(scratch, bytes, x.data<float>(), out.data<float>(),
                                           x.size(0), starts, starts + 1, stream);
  });
}

using Maker = Run (*)(const Case&);

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = {
      {"relu", unary<Relu>},
      {"exp", unary<Exp>},
      {"square", unary<Square>},
      {"scale", unary<Scale>},
      {"add", binary<Add>},
      {"mul", binary<Multiply>},
      {"tree_reduce_2", binary<Add>},
      {"scale_accumulate", binary<ScaleAdd>},
      {"sum", sum},
      {"sum_cols", sum_cols},
  };
  return all;
}

}  // namespace

Run cub(const std::string& kernel, const Case& work) {
  const auto maker = makers().find(kernel);
  return maker == makers().end() ? Run() : maker->second(work);
}

}  // namespace bench
