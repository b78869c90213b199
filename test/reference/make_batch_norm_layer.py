"""Writes batch_norm_layer.json: what PyTorch's BatchNorm1d computes over three training steps and
in evaluation, for test/nn/batch_norm_test.cpp.

The batches are of different sizes. Inputs are multiples of 1/64, exact in f32; results are computed
in f64.

Usage: python3 make_batch_norm_layer.py    (needs PyTorch; writes beside itself)
"""

import json
import pathlib

import torch

CHANNELS = 3
BATCHES = 5, 2, 7


def values(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 129, shape, generator=generator).double() / 64


def lists(**tensors):
    return {name: t.detach().reshape(-1).tolist() for name, t in tensors.items() if t is not None}


def pass_through(layer, rows, lengths, seed):
    """One forward and backward: operands, results, and what the layer holds afterwards."""
    x = values(rows, CHANNELS, *lengths, seed=seed) + torch.arange(CHANNELS).reshape(
        [CHANNELS] + [1] * len(lengths))
    x.requires_grad_()
    dy = values(rows, CHANNELS, *lengths, seed=seed + 1)
    layer.zero_grad()
    y = layer(x)
    y.backward(dy)
    affine = layer.affine
    result = lists(x=x, dy=dy, y=y, dx=x.grad, dweight=layer.weight.grad if affine else None,
                   dbias=layer.bias.grad if affine else None, running_mean=layer.running_mean,
                   running_var=layer.running_var)
    result["shape"] = list(x.shape)
    return result


def case(lengths=(), momentum=0.1, affine=True, track=True, eps=1e-5):
    layer_type = torch.nn.BatchNorm2d if len(lengths) == 2 else torch.nn.BatchNorm1d
    layer = layer_type(CHANNELS, eps=eps, momentum=momentum, affine=affine,
                       track_running_stats=track).double()
    if affine:
        layer.weight.data = values(CHANNELS, seed=1)
        layer.bias.data = values(CHANNELS, seed=2)
    steps = [pass_through(layer, rows, lengths, 10 * rows) for rows in BATCHES]
    layer.eval()
    evaluation = pass_through(layer, 4, lengths, 100)
    return dict(momentum=momentum, affine=affine, track=track, eps=eps, steps=steps,
                evaluation=evaluation,
                **(lists(weight=layer.weight, bias=layer.bias) if affine else {}))


cases = [case(), case(momentum=0.3, eps=1e-3), case(momentum=None), case(affine=False),
         case(track=False), case(lengths=(4,)), case(lengths=(3, 2), momentum=None)]
reference = {"made_with": f"PyTorch {torch.__version__}", "channels": CHANNELS, "cases": cases}
path = pathlib.Path(__file__).with_name("batch_norm_layer.json")
path.write_text(json.dumps(reference, indent=None, separators=(",", ":")) + "\n")
