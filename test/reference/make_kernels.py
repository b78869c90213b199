"""Writes kernels.json: what PyTorch computes for the cases of test/kernels/.

Usage:  python3 make_kernels.py > kernels.json

Inputs are f32 numbers, the same in f32 and f64. Results of "functions" are computed
in f64; those of "optimizers" in both dtypes, step by step.
"""

import json
import sys

import torch
import torch.nn.functional as F

from lion import Lion


def values(*shape, seed, low=-2.0, high=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * (high - low) + low).double()


def unary_cases():
    functions = {
        "neg": torch.neg, "exp": torch.exp, "log": torch.log, "relu": torch.relu,
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "square": torch.square,
    }
    for i, (name, function) in enumerate(functions.items()):
        x = values(19, seed=i, low=0.05 if name == "log" else -4.0, high=4.0).requires_grad_()
        dy = values(19, seed=100 + i)
        y = function(x)
        y.backward(dy)
        yield {"op": name, "x": x.tolist(), "dy": dy.tolist(), "y": y.tolist(),
               "dx": x.grad.tolist()}


def rows(n, classes, seed, spread):
    """Log-softmax, softmax, cross-entropy of one matrix, and the gradients."""
    x = values(n, classes, seed=seed, low=-spread, high=spread).requires_grad_()
    dy = values(n, classes, seed=seed + 1)
    labels = torch.tensor([(7 * i + seed) % classes for i in range(n)])
    log_softmax = F.log_softmax(x, dim=1)
    (dx,) = torch.autograd.grad(log_softmax, x, dy)
    loss = F.cross_entropy(x, labels)
    (dlogits,) = torch.autograd.grad(loss, x)
    return {
        "shape": [n, classes], "x": x.flatten().tolist(), "dy": dy.flatten().tolist(),
        "labels": labels.tolist(), "softmax": F.softmax(x, dim=1).flatten().tolist(),
        "log_softmax": log_softmax.flatten().tolist(), "log_softmax_dx": dx.flatten().tolist(),
        "loss": loss.item(), "dlogits": dlogits.flatten().tolist(),
    }


def mse():
    x = values(3, 7, seed=50).requires_grad_()
    y = values(3, 7, seed=51)
    loss = F.mse_loss(x, y)
    loss.backward()
    return {"shape": [3, 7], "x": x.flatten().tolist(), "y": y.flatten().tolist(),
            "loss": loss.item(), "dx": x.grad.flatten().tolist()}


KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
         "rmsprop": lambda *args, fused, **options: torch.optim.RMSprop(*args, **options),
         "lion": Lion}


def optimizer_steps(kind, options, dtype, start, gradients):
    """The parameter after each step."""
    parameter = torch.nn.Parameter(start.to(dtype, copy=True))
    optimizer = KINDS[kind]([parameter], foreach=False, fused=False, **options)
    for gradient in gradients:
        parameter.grad = gradient.to(dtype, copy=True)
        optimizer.step()
        yield parameter.tolist()


def optimizers():
    start, gradients = values(19, seed=60), [values(19, seed=70 + step) for step in range(4)]
    cases = [
        {"kind": kind, "options": {"betas": (0.9, 0.999), **options},
         "f32": list(optimizer_steps(kind, options, torch.float32, start, gradients)),
         "f64": list(optimizer_steps(kind, options, torch.float64, start, gradients))}
        for kind, options in OPTIMIZERS]
    return {"start": start.tolist(), "gradients": [g.tolist() for g in gradients], "cases": cases}


OPTIMIZERS = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.05, "momentum": 0.9}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("adam", {"lr": 0.01}),
    ("adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("adam", {"lr": 0.01, "betas": (0.3, 0.9), "eps": 0.01}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
    # With this beta2 the variance falls, too: its largest value differs from it.
    ("adam", {"lr": 0.01, "betas": (0.9, 0.4), "amsgrad": True}),
    ("adam", {"lr": 0.01, "betas": (0.3, 0.4), "weight_decay": 0.1, "amsgrad": True,
              "maximize": True}),
    ("adamw", {"lr": 0.01, "betas": (0.9, 0.4), "weight_decay": 0.1, "amsgrad": True}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("rmsprop", {"lr": 0.01}),
    ("rmsprop", {"lr": 0.01, "alpha": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("rmsprop", {"lr": 0.01, "momentum": 0.9, "eps": 0.01}),
    ("rmsprop", {"lr": 0.01, "centered": True, "eps": 0.01}),
    ("rmsprop", {"lr": 0.01, "alpha": 0.4, "eps": 0.01, "centered": True, "momentum": 0.5,
                 "weight_decay": 0.1}),
    ("lion", {"lr": 0.01, "betas": (0.9, 0.99)}),
    ("lion", {"lr": 0.01, "betas": (0.6, 0.8), "weight_decay": 0.1, "maximize": True}),
]

json.dump({
    "torch": torch.__version__,
    "functions": {
        "unary": list(unary_cases()),
        "rows": [rows(1, 1, 0, 2.0), rows(4, 3, 2, 2.0), rows(5, 10, 4, 2.0), rows(2, 16, 6, 2.0),
                 rows(3, 33, 8, 2.0), rows(3, 10, 10, 300.0)],
        "mse": mse(),
    },
    "optimizers": optimizers(),
}, sys.stdout)
sys.stdout.write("\n")
