"""Writes schedules.json: learning rates of PyTorch's schedules, 60 steps each.

Usage: python make_schedules.py    (needs torch; the tests do not)
"""

import json
import math
import pathlib

import torch
from torch.optim import lr_scheduler as s


def rates(make, steps=60, losses=None):
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=0.8)
    schedule = make(optimizer)
    out = []
    for i in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step(losses[i]) if losses else schedule.step()
    return out


losses = [3 * math.exp(-0.2 * i) + 0.3 + 0.05 * math.sin(3.7 * i) for i in range(60)]
result = {
    "step_decay": rates(lambda o: s.StepLR(o, 7, 0.3)),
    "exponential": rates(lambda o: s.ExponentialLR(o, 0.93)),
    "multi_step_decay": rates(lambda o: s.MultiStepLR(o, [5, 20, 21], 0.5)),
    "warm_up": rates(lambda o: s.LinearLR(o, 0.05, 1.0, 11)),
    "cosine": rates(lambda o: s.CosineAnnealingLR(o, 59, 0.08)),
    "one_cycle": rates(lambda o: s.OneCycleLR(o, 0.8, total_steps=61)),
    "one_cycle, other options": rates(
        lambda o: s.OneCycleLR(o, 0.8, total_steps=61, pct_start=0.45, div_factor=10,
                               final_div_factor=50)),
    "warm_up * cosine": [
        a * b / 0.8
        for a, b in zip(rates(lambda o: s.LinearLR(o, 0.05, 1.0, 11)),
                        rates(lambda o: s.CosineAnnealingLR(o, 59, 0.08)))],
    "losses": losses,
    "plateau": rates(lambda o: s.ReduceLROnPlateau(o, factor=0.5, patience=3, threshold=0.01),
                     losses=losses),
}
path = pathlib.Path(__file__).parent / "schedules.json"
path.write_text(json.dumps(result, indent=1) + "\n")
