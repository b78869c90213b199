"""Writes batch_norm.json: what PyTorch's batch_norm computes while training, and its gradients, for
test/kernels/batch_norm_test.cpp.

Inputs are multiples of 1/64, exact in f32; results are computed in f64.

Usage: python3 make_batch_norm.py    (needs PyTorch; writes beside itself)
"""

import json
import pathlib

import torch
import torch.nn.functional as F


def values(*shape, seed, center=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 129, shape, generator=generator).double() / 64 + center


def case(rows, columns, eps, center):
    seed = rows * 100 + columns
    x = values(rows, columns, seed=seed, center=center).requires_grad_()
    weight = values(columns, seed=seed + 1).requires_grad_()
    bias = values(columns, seed=seed + 2).requires_grad_()
    dy = values(rows, columns, seed=seed + 3)
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
    y.backward(dy)
    tensors = dict(x=x, weight=weight, bias=bias, dy=dy, mean=x.mean(0),
                   variance=x.var(0, unbiased=False), y=y, dx=x.grad, dweight=weight.grad,
                   dbias=bias.grad)
    lists = {name: tensor.detach().reshape(-1).tolist() for name, tensor in tensors.items()}
    return dict(rows=rows, columns=columns, eps=eps, **lists)


cases = [case(2, 1, 1e-5, 0), case(7, 5, 1e-5, 0), case(33, 4, 1e-3, 0), case(17, 3, 1e-5, 4096)]
reference = {"made_with": f"PyTorch {torch.__version__}", "cases": cases}
path = pathlib.Path(__file__).with_name("batch_norm.json")
path.write_text(json.dumps(reference, indent=None, separators=(",", ":")) + "\n")
