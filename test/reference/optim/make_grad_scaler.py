"""Writes grad_scaler.json: the scale and the weights of torch.amp.GradScaler, 50 steps each.

Usage: python make_grad_scaler.py    (needs torch; the tests do not)

Step i has the inputs and targets below. At the steps in `overflows` one target is 1e38: its squared
error is infinite in f32, and so are gradients.
"""

import json
import math
import pathlib

import torch

overflows = [3, 4, 17, 18, 19, 33]


def values(n, phase):
    return [math.sin(1.7 * k + phase) for k in range(n)]


def run(clip):
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(values(6, 0.3)).view(2, 3))
        model.bias.copy_(torch.tensor(values(2, 0.9)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    scales, weights = [], []
    for i in range(50):
        x = torch.tensor(values(12, 0.1 * i)).view(4, 3)
        y = torch.tensor(values(8, 5 + 0.1 * i)).view(4, 2)
        if i in overflows:
            y[1, 1] = 1e38
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        weights.append(model.weight.detach().view(-1).tolist())
    return {"scales": scales, "weights": weights}


result = {"overflows": overflows, "plain": run(False), "clipped": run(True)}
path = pathlib.Path(__file__).parent / "grad_scaler.json"
path.write_text(json.dumps(result) + "\n")
