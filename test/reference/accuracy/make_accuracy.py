"""Writes accuracy.json: how far PyTorch's f32 functions are from the truth, in units in the last
place, over every 1,021st f32 number. The truth is computed in f64.

Usage:  python3 make_accuracy.py > accuracy.json
"""

import json
import math
import sys

import numpy
import torch
import torch.nn.functional as F


def gelu(x):  # without the cancellation of 1 + erf
    return x * 0.5 * torch.special.erfc(x * -math.sqrt(0.5))


def logistic(x):
    e = torch.exp(-x.abs())
    return torch.where(x > 0, 1 / (1 + e), e / (1 + e))


def gelu_tanh(x):
    return x * logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def softplus(x):
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


# name: PyTorch's function, and the truth where it is another one
functions = {
    "exp": (torch.exp,), "expm1": (torch.expm1,), "log": (torch.log,), "log1p": (torch.log1p,),
    "sqrt": (torch.sqrt,), "rsqrt": (torch.rsqrt,), "reciprocal": (torch.reciprocal,),
    "sin": (torch.sin,), "cos": (torch.cos,), "erf": (torch.erf,), "elu": (F.elu, F.elu),
    "sigmoid": (torch.sigmoid, logistic), "tanh": (torch.tanh,), "gelu": (F.gelu, gelu),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), gelu_tanh),
    "silu": (F.silu, lambda x: x * logistic(x)), "softplus": (F.softplus, softplus),
}

bits = numpy.arange(0, 2**32, 1021, dtype=numpy.uint64).astype(numpy.uint32)
x = torch.from_numpy(bits.view(numpy.float32))
x = x[torch.isfinite(x)]
result = {"version": torch.__version__, "functions": {}}
for name, (function, *other) in functions.items():
    worst, at = 0.0, 0.0
    for part in x.split(1 << 20):
        y, truth = function(part).double(), (other or [function])[0](part.double())
        usable = torch.isfinite(truth) & (truth.abs() < 3.4e38)
        exponent = torch.frexp(truth.abs().clamp(min=2.0**-126))[1]
        spacing = torch.ldexp(torch.ones_like(truth), exponent - 24)
        error = ((y - truth).abs() / spacing)[usable]
        error = torch.nan_to_num(error, nan=math.inf)
        if len(error) and error.max() > worst:
            worst, at = error.max().item(), part[usable][error.argmax()].item()
    print(name, worst, at, file=sys.stderr)
    result["functions"][name] = {"ulp": float(f"{worst:.3g}"), "at": at}
json.dump(result, sys.stdout, indent=1)
print()
