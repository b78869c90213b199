#!/usr/bin/env python3
"""Writes prints.json: how PyTorch prints some tensors.

    pip install torch==2.15 numpy && python3 make_prints.py

A case has a dtype, a shape, the elements ("values": numbers, or "nan", "inf", "-inf"; of large
tensors "from" and "step": element e is from + step e), and PyTorch's text, in which the dtypes have
Lockstep's names.
"""

import json
import math
import pathlib

import torch

NAMES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
         "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}
NAN, INF = math.nan, math.inf


def text_of(tensor, name):
    """print's text. Our name of the dtype is shorter than PyTorch's: that must not move a line."""
    text, theirs, ours = str(tensor), f"dtype={NAMES[name]}", f"dtype={name}"
    at = text.find(theirs)
    if at > 0 and text[:at].endswith(",\n" + 7 * " "):
        before = text[:at].rstrip(" \n")
        assert len(before.rpartition("\n")[2]) + 1 + len(ours) + 3 > 80, text
    return text.replace(theirs, ours)


def number(value):
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def case(name, shape, values):
    tensor = torch.tensor(values, dtype=NAMES[name]).reshape(shape)
    return {"dtype": name, "shape": list(shape), "values": [number(v) for v in values],
            "text": text_of(tensor, name)}


def large(name, shape, start, step):
    values = [start + step * e for e in range(math.prod(shape))]
    tensor = torch.tensor(values, dtype=NAMES[name]).reshape(shape)
    return {"dtype": name, "shape": list(shape), "from": start, "step": step,
            "text": text_of(tensor, name)}


def some(n, scale=1.0, seed=3):
    return [scale * (((seed * 7919 + e * 104729 + 12345) % 10007) / 10007 * 4 - 2)
            for e in range(n)]


CASES = [case("f32", shape, values) for shape, values in [
    ((), [3]), ((), [3.14159]), ((), [-0.0]), ((), [NAN]), ((), [-INF]), ((), [1e-7]), ((), [1e9]),
    ((), [123456.789]),
    ((1,), [0]), ((3,), [1, 2, 3]), ((3,), [1, 2.5, 3]), ((4,), [0, 0, 0, 0]),
    ((3,), [-1, 20, 300]), ((3,), [1, 1000, 1001]), ((2,), [1, 1000]), ((2,), [0.5, 500]),
    ((2,), [0.5, 500.5]), ((3,), [1e8, 1, 2]), ((2,), [100000001.0, 200000000.0]),
    ((2,), [1e8, 1e8]), ((2,), [9.9e-5, 1]), ((2,), [1.1e-4, 0.05]), ((3,), [1e-4, 0, 1e-4]),
    ((3,), [1e-45, 3.4e38, -1e-38]), ((4,), [NAN, 1, INF, -INF]), ((4,), [NAN, 1.5, INF, -INF]),
    ((3,), [NAN, NAN, INF]), ((3,), [-0.0, 0, 1]), ((3,), [-0.0, 1e10, -INF]),
    ((3,), [NAN, 1e10, 2.5e-3]), ((2,), [0.99999, 0.00012345]), ((2,), [9.99996, 0.5]),
    ((30,), some(30)), ((30,), some(30, 100)), ((31,), list(range(31))), ((40,), [0] * 40),
    ((12,), some(12, 1e6)), ((2, 3), some(6)), ((1, 1), [0.25]), ((4, 20), some(80)),
    ((2, 3, 4), some(24)), ((2, 2, 2, 2), some(16)), ((1, 2, 1, 2, 1, 2), some(8)),
    ((3, 1), [0.1, 12.5, -7]), ((2, 2), [1, NAN, INF, 4]),
    ((0,), []), ((0, 3), []), ((3, 0), []), ((2, 0, 4), []),
    ((1000,), [e % 7 for e in range(1000)]),
]] + [case(name, shape, values) for name, shape, values in [
    ("f64", (), [0.1]), ("f64", (2, 2), [1.5, 2, 1e-3, 7]), ("f64", (2,), [1e300, 1]),
    ("f64", (8,), some(8)), ("f64", (7,), some(7, 300)), ("f64", (0,), []), ("f64", (0, 2), []),
    ("f64", (9, 5), some(45, 1e5)),
    ("f16", (3,), [1, 65504, 0.1]), ("f16", (2, 2), [0.1, 0.2, 0.3, 6e-8]),
    ("bf16", (3,), [0.1, 1, 3.1415]), ("bf16", (2, 2), [1, 2, 300, 400]), ("bf16", (), [1e38]),
    ("i64", (), [-7]), ("i64", (3,), [1, -20, 300]), ("i64", (2, 3), [1, 2, 3, 4, 5, 600]),
    ("i64", (2,), [2**62, -1]), ("i64", (0,), []), ("i64", (40,), list(range(40))),
    ("i32", (3,), [1, -2, 3]), ("i32", (0, 1), []), ("i32", (2, 2), [5, 6, 7, -8000]),
    ("u8", (4,), [0, 1, 1, 0]), ("u8", (2, 2), [255, 0, 7, 77]), ("u8", (), [1]),
    ("u8", (26,), [0, 1] * 13),
]] + [large(name, shape, start, step) for name, shape, start, step in [
    ("f32", (1001,), 0, 1), ("f32", (1001,), 0.5, 0.25), ("f32", (2000,), -1, 2.0**20),
    ("f32", (4, 300), 0.5, 1), ("f32", (300, 4), 0.125, 0.125), ("f32", (7, 200), 0, 1),
    ("f32", (6, 200), 0, 1), ("f32", (40, 50), 0.5, 0.5), ("f32", (10, 20, 30), 0.25, 0.25),
    ("f32", (2, 3, 400), 0, 1), ("f32", (2, 500, 1, 3), 0.5, 0.5), ("f32", (1, 1, 1001), 0, 1),
    ("i64", (1200,), -600, 1), ("i64", (50, 40), 0, 1000), ("f64", (1001,), 0.5, 1),
    ("f64", (40, 40), 0.5, 1), ("u8", (1200,), 0, 0), ("bf16", (30, 40), 0, 0.25),
]]

if __name__ == "__main__":
    lines = ",\n".join(json.dumps(one) for one in CASES)
    path = pathlib.Path(__file__).with_name("prints.json")
    path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
    print(f"{len(CASES)} cases")
