"""Writes layers.json: what PyTorch's layers and initializers give.

    python3 test/reference/make_layers.py > test/reference/layers.json

Values are f64 unless `dtype` says f32. Random numbers are drawn from manual_seed(7)."""

import json

import torch
from torch import nn


def numbers(tensor):
    return {"shape": list(tensor.shape), "values": tensor.detach().flatten().tolist()}


def varied(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def layer(name, module, x):
    """Forward, and the gradients of sum(y * w) for a w that differs at every place."""
    module = module.double()
    for i, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            parameter.copy_(varied(*parameter.shape, seed=100 + i))
    inputs = {"x": numbers(x), "parameters": [numbers(p) for p in module.parameters()]}
    if x.is_floating_point():
        x.requires_grad_()
    y = module(x)
    w = varied(*y.shape, seed=99)
    (y * w).sum().backward()
    return {"name": name, **inputs, "w": numbers(w), "y": numbers(y),
            "gradients": [numbers(p.grad) for p in module.parameters()],
            "dx": numbers(x.grad) if x.is_floating_point() else None}


def layers():
    for shape in [(3, 4), (1, 4), (0, 4), (2, 3, 4)]:
        x = lambda: varied(*shape, seed=len(shape) + shape[0])
        yield layer("LayerNorm", nn.LayerNorm(4), x())
        yield layer("RMSNorm", nn.RMSNorm(4, eps=1e-6), x())
        yield layer("GELU", nn.GELU(), x())
        yield layer("GELUTanh", nn.GELU("tanh"), x())
        yield layer("SiLU", nn.SiLU(), x())
        yield layer("Sigmoid", nn.Sigmoid(), x())
        yield layer("LogSigmoid", nn.LogSigmoid(), x())
        yield layer("Softplus", nn.Softplus(), x())
        yield layer("Tanh", nn.Tanh(), x())
        yield layer("ELU", nn.ELU(), x())
        yield layer("LeakyReLU", nn.LeakyReLU(0.2), x())
        yield layer("Softmax", nn.Softmax(-1), x())
        yield layer("Identity", nn.Identity(), x())
        yield layer("Flatten", nn.Flatten(), x())
    for shape in [(3, 4), (2, 4, 3), (1, 4, 2, 3)]:
        yield layer("GroupNorm", nn.GroupNorm(2, 4), varied(*shape, seed=shape[0]))
    yield layer("Embedding", nn.Embedding(5, 3), torch.tensor([[4, 0], [1, 4], [4, 2]]))


def initializers():
    for shape in [(3, 5), (5, 3), (1, 1), (4, 2, 3), (9, 7)]:
        for name, fill in {
            "uniform": lambda w: nn.init.uniform_(w, -2, 3),
            "normal": lambda w: nn.init.normal_(w, 1, 2),
            "kaiming_uniform": lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"),
            "kaiming_uniform_out": lambda w: nn.init.kaiming_uniform_(
                w, a=0.2, mode="fan_out", nonlinearity="leaky_relu"),
            "kaiming_normal": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
            "xavier_uniform": lambda w: nn.init.xavier_uniform_(w, 5 / 3),
            "xavier_normal": lambda w: nn.init.xavier_normal_(w),
            "orthogonal": lambda w: nn.init.orthogonal_(w, 2),
        }.items():
            for dtype in [torch.float32, torch.float64]:
                torch.manual_seed(7)
                w = fill(torch.empty(shape, dtype=dtype))
                yield {"name": name, "dtype": "f32" if dtype == torch.float32 else "f64",
                       "w": numbers(w)}
    torch.manual_seed(7)
    for name, module in [("Embedding", nn.Embedding(5, 3)), ("Linear", nn.Linear(4, 3))]:
        yield {"name": name, "dtype": "f32", "w": numbers(module.weight)}


if __name__ == "__main__":
    rows = {"layers": list(layers()), "initializers": list(initializers())}
    print(json.dumps(rows, separators=(",", ":")).replace('},{"name"', '},\n{"name"'))
