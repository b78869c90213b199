#!/usr/bin/env python3
"""Writes expressions.json: what PyTorch gives for the left sides of expressions.inc.

    pip install torch==2.15 numpy && python3 make_expressions.py

A case per expression and shape: the result's dtype, shape and elements, and the gradients of
sum(result * k), k_e = cos(1 + 0.7 e), for each floating operand that the result depends on. A case
that PyTorch refuses says so ("throws"). Elements are numbers, or "nan", "inf", "-inf".
"""

import json
import math
import pathlib
import re

import torch
import torch.nn.functional as F  # noqa: F401  (expressions use it)

SHAPES = [(3, 5), (1, 1), (0, 5), (3, 0)]
FLOATING = "xypqvuwkbtsz"


def draw(seed, e):
    """In [0, 1), the same bits in every language."""
    return ((seed * 7919 + e * 104729 + 12345) % 10007) / 10007


def operands(r, c):
    shapes = {"x": (r, c), "y": (r, c), "p": (r, c), "q": (r, c), "v": (c,), "u": (c,),
              "w": (c, 4), "k": (4, c), "b": (4,), "t": (2, r, c), "s": (2, c, r), "z": ()}
    result = {}
    for seed, name in enumerate(FLOATING):
        low, width = (0.3, 1.2) if name in "pq" else (-2, 4)
        values = [low + width * draw(seed, e) for e in range(math.prod(shapes[name]))]
        result[name] = torch.tensor(values, dtype=torch.float64).reshape(shapes[name])
        result[name].requires_grad_()
    whole = {"l": ((r,), c), "i": ((4,), r), "j": ((r, 2), c)}
    for seed, (name, (shape, end)) in enumerate(whole.items(), 20):
        values = [int(draw(seed, e) * end) for e in range(math.prod(shape))]
        result[name] = torch.tensor(values, dtype=torch.int64).reshape(shape)
    for seed, name in enumerate("nd", 30):
        values = [int(draw(seed, e) * 15) - 7 for e in range(r * c)]
        if name == "d":
            values = [value or 3 for value in values]
        result[name] = torch.tensor(values, dtype=torch.int64).reshape(r, c)
    mask = [draw(40, e) < 0.5 for e in range(r * c)]
    result["m"] = torch.tensor(mask, dtype=torch.bool).reshape(r, c)
    return result


def elements(tensor):
    def number(value):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return value

    return [number(value) for value in tensor.detach().flatten().tolist()]


def case(text, r, c):
    o = operands(r, c)
    result = {"text": text, "shape": [r, c]}
    try:
        value = eval(text, {"torch": torch, "F": F}, o)
    except (RuntimeError, IndexError, ValueError) as error:
        return result | {"throws": str(error).splitlines()[0]}
    if value.dtype == torch.bool:
        value = value.to(torch.uint8)
    result["value"] = {"dtype": str(value.dtype).removeprefix("torch."),
                       "shape": list(value.shape), "elements": elements(value)}
    if value.requires_grad:
        k = torch.cos(1 + 0.7 * torch.arange(value.numel(), dtype=torch.float64))
        (value.double().flatten() * k).sum().backward()
        result["gradients"] = {name: elements(o[name].grad) for name in FLOATING
                               if o[name].grad is not None}
    return result


def main():
    folder = pathlib.Path(__file__).parent
    source = (folder / "expressions.inc").read_text()
    texts = re.findall(r'^(?:SAME|MEAN)\("((?:[^"\\]|\\.)*)"', source, re.MULTILINE)
    cases = [case(text, r, c) for text in texts for r, c in SHAPES]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    (folder / "expressions.json").write_text(
        f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}\n')
    print(len(texts), "expressions,", len(cases), "cases,",
          sum("throws" in one for one in cases), "refused")
    for one in cases:
        if "throws" in one and one["shape"] == [3, 5]:
            print("REFUSED", one)


main()
