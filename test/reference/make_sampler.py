"""Writes sampler.json: the indices of PyTorch's DistributedSampler, for test/data/sampler_test.cpp.

Of long lists only the number, the first five and a hash are kept:
h = h * 1000003 + index, modulo 2^64.

Usage: python3 make_sampler.py    (needs PyTorch; writes beside itself)
"""

import itertools
import json
import pathlib

import torch
from torch.utils.data import DistributedSampler


def summary(indices):
    result = 0
    for index in indices:
        result = (result * 1000003 + index) % (1 << 64)
    return {"count": len(indices), "first": indices[:5], "hash": result}


cases = []
for n, world in itertools.product([0, 1, 2, 3, 5, 10, 13, 97, 1497], [1, 2, 3, 4, 7]):
    for drop_last, (shuffle, seed, epoch) in itertools.product(
        [False, True], [(False, 0, 0), (True, 0, 0), (True, 0, 3), (True, 11, 2)]
    ):
        ranks = []
        for rank in range(world):
            sampler = DistributedSampler(
                range(n), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            ranks.append(summary(list(sampler)))
        cases.append(
            dict(n=n, world=world, drop_last=drop_last, shuffle=shuffle, seed=seed, epoch=epoch,
                 ranks=ranks)
        )

reference = {"made_with": f"PyTorch {torch.__version__}", "cases": cases}
path = pathlib.Path(__file__).with_name("sampler.json")
path.write_text(json.dumps(reference).replace('{"n"', '\n{"n"') + "\n")
