"""Writes generator.json: what PyTorch's CPU generator draws, for test/core/generator_test.cpp.

Each stream is one generator that is seeded once and then called in order, so that a call that
leaves another state behind spoils all that follows. A "probe" (a few small integers) follows each
call to show that state at once. Long results are kept as a hash: h = h * 1000003 + value, modulo
2^64.

PyTorch's uniform is fused (one rounding) only in its AVX2 and AVX-512 kernels: run this where it
has them.

Usage: python3 make_generator.py    (needs PyTorch and NumPy; writes beside itself)
"""

import json
import pathlib

import numpy
import torch

CAPABILITY = torch.backends.cpu.get_cpu_capability()
assert CAPABILITY.startswith("AVX"), CAPABILITY

DTYPES = {"f32": torch.float32, "f64": torch.float64}


def hash_of(values):
    factor, block = 1000003, 1 << 20
    powers = numpy.ones(block, numpy.uint64)
    powers[1:] = numpy.cumprod(numpy.full(block - 1, factor, numpy.uint64), dtype=numpy.uint64)
    powers = powers[::-1]
    result = 0
    for begin in range(0, len(values), block):
        part = values[begin : begin + block].astype(numpy.uint64)
        folded = int((part * powers[-len(part) :]).sum(dtype=numpy.uint64))
        result = (result * pow(factor, len(part), 1 << 64) + folded) % (1 << 64)
    return result


class Stream:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.record = {"seed": seed, "calls": []}

    def add(self, op, values, hashed=False, **arguments):
        result = {"hash": hash_of(values.numpy())} if hashed else {"values": values.tolist()}
        self.record["calls"].append({"op": op, **arguments, **result})

    def probe(self):
        self.randint(0, 1000, 2)

    def randint(self, low, high, n):
        values = torch.randint(low, high, (n,), generator=self.generator)
        self.add("randint", values, low=low, high=high, n=n)

    def uniform(self, dtype, n, low=0.0, high=1.0):
        values = torch.empty(n, dtype=DTYPES[dtype]).uniform_(low, high, generator=self.generator)
        self.add("uniform", values, dtype=dtype, n=n, low=low, high=high)
        self.probe()

    def normal(self, dtype, n, mean=0.0, std=1.0):
        values = torch.empty(n, dtype=DTYPES[dtype]).normal_(mean, std, generator=self.generator)
        self.add("normal", values, dtype=dtype, n=n, mean=mean, std=std)
        self.probe()

    def randperm(self, n, hashed=False):
        self.add("randperm", torch.randperm(n, generator=self.generator), hashed, n=n)
        self.probe()


def small_stream(seed):
    stream = Stream(seed)
    stream.probe()
    for dtype in DTYPES:
        stream.uniform(dtype, 0)
        stream.uniform(dtype, 1)
        stream.uniform(dtype, 7)
        stream.uniform(dtype, 5, -0.125, 0.3)
        stream.uniform(dtype, 33, -(128**-0.5), 128**-0.5)  # the initial bias of Linear(128, ...)
        stream.uniform(dtype, 3, 2.5, 2.5)
        stream.uniform(dtype, 12, 1.0, 1.0 + torch.finfo(DTYPES[dtype]).eps)  # most become `to`
    for high in [1, 2, 10, (1 << 28) - 1, 1 << 28, 1 << 32, (1 << 32) + 1, 1 << 62]:
        stream.randint(0, high, 3)
        stream.probe()
    stream.randint(-5, 6, 9)
    stream.randint(-(1 << 63), (1 << 63) - 1, 3)
    stream.probe()
    for n in [0, 1, 2, 3, 10, 33]:
        stream.randperm(n)
    for dtype in DTYPES:  # odd sizes leave a cached value to the next call, across dtypes
        for n in [1, 0, 2, 1, 3, 15, 16, 1, 17, 31, 32, 33, 2]:
            stream.normal(dtype, n)
        stream.normal(dtype, 7, 0.5, 2.0)
        stream.normal(dtype, 40, 0.5, 2.0)
        stream.normal(dtype, 3, 0.25, 0.0)
    return stream.record


def large_stream(seed, sizes):
    stream = Stream(seed)
    for n in sizes:
        stream.randperm(n, hashed=True)
    return stream.record


reference = {
    "made_with": f"PyTorch {torch.__version__}, {CAPABILITY} kernels",
    "default_seed": torch.Generator().initial_seed(),
    "streams": [small_stream(seed) for seed in [0, 1, 42, (1 << 32) + 5, (1 << 64) - 1]]
    + [large_stream(7, [1797, 60000, 1000003])],
    # 2^32 / 20: the two sides of the switch to 64 bits. 1.7 GB each.
    "huge": [large_stream(3, [214748363]), large_stream(3, [214748364])],
}
path = pathlib.Path(__file__).with_name("generator.json")
text = json.dumps(reference).replace('{"op"', '\n{"op"').replace('{"seed"', '\n{"seed"')
path.write_text(text + "\n")
