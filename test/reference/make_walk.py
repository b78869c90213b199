#!/usr/bin/env python3
"""Writes walk.json: PyTorch's numbers for samples/walk.cpp. Element (0, 0) of 4.weight's gradient
in the second step: each rank's contribution, the sum, and the parameter around the step."""
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

FOLLOWED, LR, ROWS = 4, 0.1, 32  # model.parameters()[4] is 4.weight


def walk(world):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                          nn.Linear(256, 10))
    labels = torch.zeros(ROWS, dtype=torch.long)
    for _ in range(2):
        own = []
        for rank in range(world):
            model.zero_grad()
            x = torch.full((ROWS, 784), 0.01 * (rank + 1))
            (F.cross_entropy(model(x), labels) / world).backward()
            own.append([p.grad.clone() for p in model.parameters()])
        total = [sum(gradients) for gradients in zip(*own)]
        value = list(model.parameters())[FOLLOWED]
        before = value[0, 0].item()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), total):
                parameter -= LR * gradient
    return {"own": [o[FOLLOWED][0, 0].item() for o in own], "sum": total[FOLLOWED][0, 0].item(),
            "before": before, "after": value[0, 0].item()}


torch.set_num_threads(1)
path = pathlib.Path(__file__).with_name("walk.json")
numbers = {"torch": torch.__version__.split("+")[0], **{str(n): walk(n) for n in (2, 3)}}
path.write_text(json.dumps(numbers, indent=1) + "\n")
