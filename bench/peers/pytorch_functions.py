"""The expressions of test/vocabulary/expressions.inc in PyTorch, for bench/functions.cpp.

Usage: pytorch_functions.py ROWS COLUMNS

Speaks the protocol of bench/peer.h on stdin and stdout, and besides:

  case DTYPE FILE TEXT      FILE holds what we computed for the expression TEXT, element by element
  case equal                it is PyTorch's value, too: the following rounds time the expression; or
  case WHY                  it is not, or PyTorch refuses the expression

Operands are those of expressions_test.cpp, in f32.
"""

import math
import sys
import time

import torch
import torch.nn.functional as F  # noqa: F401  (expressions use it)

TOLERANCE = 1e-4  # of an element, or of the root mean square of all


def draw(seed, n):
    e = torch.arange(n, dtype=torch.int64)
    return ((seed * 7919 + e * 104729 + 12345) % 10007).double() / 10007


def operands(r, c):
    shapes = {"x": (r, c), "y": (r, c), "p": (r, c), "q": (r, c), "v": (c,), "u": (c,),
              "w": (c, 4), "k": (4, c), "b": (4,), "t": (2, r, c), "s": (2, c, r), "z": ()}
    result = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        low, width = (0.3, 1.2) if name in "pq" else (-2, 4)
        values = low + width * draw(seed, math.prod(shape))
        result[name] = values.float().reshape(shape)
    whole = {"l": ((r,), c), "i": ((4,), r), "j": ((r, 2), c)}
    for seed, (name, (shape, end)) in enumerate(whole.items(), 20):
        result[name] = (draw(seed, math.prod(shape)) * end).long().reshape(shape)
    for seed, name in enumerate("nd", 30):
        values = (draw(seed, r * c) * 15).long() - 7
        if name == "d":
            values = torch.where(values == 0, 3, values)
        result[name] = values.reshape(r, c)
    result["m"] = (draw(40, r * c) < 0.5).reshape(r, c)
    return result


def difference(value, dtype, file):
    """Why the elements in `file` are not those of `value`, or nothing."""
    kinds = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "u8": torch.uint8}
    with open(file, "rb") as opened:
        data = bytearray(opened.read())
    ours = torch.frombuffer(data, dtype=kinds[dtype]).double() if data else torch.zeros(0).double()
    right = value.flatten().double()
    if ours.numel() != right.numel():
        return f"{ours.numel()} elements instead of {right.numel()}"
    if right.numel() == 0:
        return ""
    typical = right.square().mean().sqrt().nan_to_num(0, 0, 0)
    close = (ours - right).abs() <= TOLERANCE * torch.maximum(right.abs(), typical)
    good = close | (ours == right) | (ours.isnan() & right.isnan())
    if good.all():
        return ""
    at = int((~good).long().argmax())
    return f"element {at} is {ours[at].item()} instead of {right[at].item()}"


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    names = operands(int(sys.argv[1]), int(sys.argv[2]))
    names.update(torch=torch, F=F)
    print(f"ready PyTorch {torch.__version__.split('+')[0]}", flush=True)
    run = None
    for line in sys.stdin:
        words = line.rstrip("\n").split(" ", 3)
        if words[0] == "case":
            # Ours are contiguous, too.
            run = eval(f"lambda: ({words[3]}).contiguous()", names)
            try:
                print("case", difference(run(), words[1], words[2]) or "equal", flush=True)
            except (RuntimeError, IndexError, TypeError) as error:
                print("case PyTorch refuses it:", str(error).split("\n")[0], flush=True)
        else:
            start = time.perf_counter()
            for _ in range(int(words[1])):
                run()
            print("us", (time.perf_counter() - start) / int(words[1]) * 1e6, flush=True)


if __name__ == "__main__":
    main()
