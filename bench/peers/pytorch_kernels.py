"""The kernels of bench/kernels.cpp in PyTorch, on the same kind of device.

Usage: pytorch_kernels.py DEVICE, for example cpu or cuda:0

Speaks the protocol of bench/peer.h on stdin and stdout, and besides:

  case NAME SETS SIZE    for example: case softmax 4 1024x1024
  case ready             the following rounds go in turns through SETS sets of random tensors; or
  case absent            PyTorch has no one operation of this kind here
"""

import sys
import time

import torch
from torch.nn import functional as F

device = torch.device(sys.argv[1])
aten = torch.ops.aten


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=device).to(dtype)


def uniform(*shape, low=0.0, high=1.0):
    return torch.empty(*shape, device=device).uniform_(low, high)


def unary(function, make=normal):
    def case(n):
        x = make(n)
        y = torch.empty_like(x)
        return lambda: function(x, out=y)
    return case


def backward(function):
    def case(n):
        dy, saved = normal(n), uniform(n)
        return lambda: function(dy, saved)
    return case


def binary(function):
    def case(n):
        a, b, out = normal(n), uniform(n, low=0.5, high=2), torch.empty(n, device=device)
        return lambda: function(a, b, out=out)
    return case


def of(make, function):
    """The function of tensors that `make` gives for a size."""
    def case(*dims):
        tensors = make(*dims)
        return lambda: function(*tensors)
    return case


def cast(source, target):
    return of(lambda n: [normal(n, dtype=source)], lambda x: x.to(target))


def matrix(*dims):
    return [normal(*dims)]


def cross_entropy(n, c):
    logits = normal(n, c).requires_grad_()
    labels = torch.randint(0, c, (n,), device=device)
    return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)


def batch_norm_backward(n, c):
    dy, x, weight = normal(n, c), normal(n, c), normal(c)
    mean, inverse_std = x.mean(0), 1 / torch.sqrt(x.var(0, correction=0) + 1e-5)
    return lambda: aten.native_batch_norm_backward(
        dy, x, weight, None, None, mean, inverse_std, True, 1e-5, [True, True, True])


def optimizer(make):
    def case(n):
        parameters = [torch.nn.Parameter(part) for part in normal(n).chunk(8)]
        for parameter in parameters:
            parameter.grad = normal(parameter.numel())
        stepper = make(parameters)
        stepper.step()
        return stepper.step
    return case


def product(dtype):
    def case(m, n, k, flags="NN"):
        a = normal(k, m, dtype=dtype).t() if flags[0] == "T" else normal(m, k, dtype=dtype)
        b = normal(n, k, dtype=dtype).t() if flags[1] == "T" else normal(k, n, dtype=dtype)
        out = torch.empty(m, n, device=device, dtype=dtype)
        return lambda: torch.mm(a, b, out=out)
    return case


def linear(m, n, k, flags="NT"):
    x, weight, bias = normal(m, k), normal(n, k), normal(n)
    return lambda: F.linear(x, weight, bias)


def dropout_backward(n):
    dy, mask = normal(n), uniform(n) < 0.75
    return lambda: aten.native_dropout_backward(dy, mask, 1 / 0.75)


f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
CASES = {
    "relu": of(matrix, torch.relu),
    "sigmoid": unary(torch.sigmoid),
    "tanh": unary(torch.tanh),
    "exp": unary(torch.exp),
    "log": unary(torch.log, lambda n: uniform(n, low=0.1, high=2)),
    "square": unary(torch.square),
    "neg": unary(torch.neg),
    "relu_backward": backward(lambda dy, y: aten.threshold_backward(dy, y, 0)),
    "sigmoid_backward": backward(aten.sigmoid_backward),
    "tanh_backward": backward(aten.tanh_backward),
    "add": binary(torch.add),
    "sub": binary(torch.sub),
    "mul": binary(torch.mul),
    "div": binary(torch.div),
    "add_row": of(lambda n, c: [normal(n, c), normal(c)], torch.add),
    "add_column": of(lambda n, c: [normal(n, c), normal(n, 1)], torch.add),
    "scale": of(matrix, lambda x: x * 0.75),
    "scale_accumulate": of(
        lambda n: [normal(n), normal(n)], lambda x, out: out.add_(x, alpha=0.75)),
    "broadcast_to": of(lambda n, c: [normal(c), n], lambda x, n: x.expand(n, -1).contiguous()),
    "cast_f32_bf16": cast(f32, bf16),
    "cast_bf16_f32": cast(bf16, f32),
    "cast_f32_f16": cast(f32, f16),
    "cast_f16_f32": cast(f16, f32),
    "cast_f32_f64": cast(f32, f64),
    "transpose": of(matrix, lambda x: x.t().contiguous()),
    "sum": of(matrix, torch.sum),
    "sum_rows": of(matrix, lambda x: x.sum(0)),
    "sum_cols": of(matrix, lambda x: x.sum(1)),
    "sum_to": of(lambda n, c: [normal(8, n // 8, c)], lambda x: x.sum((0, 2))),
    "argmax": of(matrix, lambda x: x.argmax(-1)),
    "find_nonfinite": of(matrix, lambda x: torch.isfinite(x).all()),
    "softmax": of(matrix, lambda x: torch.softmax(x, -1)),
    "log_softmax": of(matrix, lambda x: torch.log_softmax(x, -1)),
    "log_softmax_backward": of(
        lambda n, c: [normal(n, c), torch.log_softmax(normal(n, c), -1)],
        lambda dy, y: aten._log_softmax_backward_data(dy, y, -1, f32)),
    "cross_entropy_both": cross_entropy,
    "mse": of(lambda n: [normal(n), normal(n)], F.mse_loss),
    "mse_backward": of(
        lambda n: [torch.ones((), device=device), normal(n), normal(n)],
        lambda dloss, x, y: aten.mse_loss_backward(dloss, x, y, 1)),
    "batch_statistics": of(matrix, lambda x: torch.var_mean(x, 0, correction=0)),
    "batch_norm_forward": of(
        lambda n, c: [normal(n, c), normal(c), normal(c)],
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "batch_norm_backward": batch_norm_backward,
    "dropout": of(matrix, lambda x: torch.native_dropout(x, 0.25, True)),
    "dropout_backward": dropout_backward,
    "sgd_step": optimizer(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True)),
    "adam_step": optimizer(lambda p: torch.optim.Adam(p, lr=0.01, fused=True)),
    "tree_reduce_2": binary(torch.add),
    "matmul_f32": product(f32),
    "matmul_f64": product(f64),
    "matmul_tf32": product(f32),
    "matmul_bf16": product(bf16),
    "matmul_f16": product(f16),
    "linear": linear,
}


def microseconds(runs, count):
    """Of one of `count` calls that take turns: by events on a GPU, else by the clock."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            runs[i % len(runs)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / count
    start = time.perf_counter()
    for i in range(count):
        runs[i % len(runs)]()
    return (time.perf_counter() - start) / count * 1e6


def prepare(name, sets, size, *flags):
    """The functions of all sets, each of which has run once; none if PyTorch cannot do it here."""
    if name not in CASES:
        return []
    torch.backends.cuda.matmul.allow_tf32 = name.endswith("tf32")
    dims = [int(n) for n in size.split("x")]
    try:
        runs = [CASES[name](*dims, *flags) for _ in range(int(sets))]
        for run in runs:
            run()
        return runs
    except (RuntimeError, NotImplementedError) as error:
        print(f"PyTorch does not do {name} {size}: {error}", file=sys.stderr)
        return []


def main():
    torch.set_num_threads(1)
    print(f"ready PyTorch {torch.__version__.split('+')[0]}", flush=True)
    runs = []
    for line in sys.stdin:
        words = line.split()
        if words[0] == "case":
            runs.clear()  # gives the memory back before more is taken
            runs = prepare(*words[1:])
            print("case ready" if runs else "case absent", flush=True)
        else:
            print(f"us {microseconds(runs, int(words[1]))}", flush=True)


if __name__ == "__main__":
    main()
