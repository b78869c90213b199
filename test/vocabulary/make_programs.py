#!/usr/bin/env python3
"""Writes programs.json: what PyTorch gives for the left sides of layers.inc, training.inc and
ranks.inc.

    pip install torch==2.15 numpy && python3 make_programs.py

A row per PAIR, FILLS, PROGRAM and RANKS: the numbers of its last expression, for each rank (two
for RANKS, else one). The text of a COMPILED is only parsed.
"""

import ast
import copy
import json
import os
import pathlib
import re
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.multiprocessing
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (DataLoader, Dataset, DistributedSampler, Subset, TensorDataset,
                              random_split)

HERE = pathlib.Path(__file__).parent
ROW = re.compile(r'^(?:(PAIR|FILLS)\("([^"]*)", |(PROGRAM|RANKS|COMPILED)\(R"\(\n(.*?)\n\)", \{$)',
                 re.MULTILINE | re.DOTALL)


def rows():
    for name in ["layers", "training", "ranks"]:
        for found in ROW.finditer((HERE / f"{name}.inc").read_text()):
            yield found[1] or found[3], found[2] or found[4]


def draw(seed, *shape):
    """In [0, 1), the same bits in every language: that of make_expressions.py."""
    count = torch.Size(shape).numel()
    values = [((seed * 7919 + e * 104729 + 12345) % 10007) / 10007 for e in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def setting(rank):
    x = (-2 + 4 * draw(1 + 50 * rank, 8, 4)).float()
    y = (3 * draw(2 + 50 * rank, 8)).long()
    t = draw(3 + 50 * rank, 8, 3).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    torch.manual_seed(1)

    def fit(optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return list(model.parameters())

    return {"torch": torch, "nn": nn, "F": F, "dist": dist, "copy": copy, "sys": sys,
            "Dataset": Dataset, "DataLoader": DataLoader, "DistributedSampler": DistributedSampler,
            "Subset": Subset, "TensorDataset": TensorDataset, "random_split": random_split,
            "DDP": DistributedDataParallel, "x": x, "y": y, "t": t, "w": torch.empty(5, 4),
            "model": model, "fit": fit}


def numbers(value):
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers(part)]
    if isinstance(value, torch.Tensor):
        return [float(f"{number:.9g}") for number in value.detach().double().flatten().tolist()]
    return [float(value)]


def evaluate(text, rank):
    """Runs all lines; the value is that of the last one, which is an expression."""
    names = setting(rank)
    *statements, last = ast.parse(text).body
    exec(compile(ast.Module(statements, []), text, "exec"), names)
    return numbers(eval(compile(ast.Expression(last.value), text, "eval"), names))


def run_rank(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    values = [evaluate(text, rank) for kind, text in rows() if kind == "RANKS"]
    pathlib.Path(f"{folder}/{rank}").write_text(json.dumps(values))
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (folder,), nprocs=2)
        ranks = zip(*[json.loads(pathlib.Path(f"{folder}/{rank}").read_text()) for rank in (0, 1)])
    result = []
    for kind, text in rows():
        if kind == "COMPILED":
            ast.parse(text)
        elif kind == "RANKS":
            result.append({"text": text, "values": list(next(ranks))})
        else:
            result.append({"text": text, "values": [evaluate(text, 0)]})
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in result)
    (HERE / "programs.json").write_text(
        f'{{"torch":"{torch.__version__}","rows":[\n{lines}\n]}}\n')
    print(len(result), "rows")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
