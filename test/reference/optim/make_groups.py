"""Writes groups.json: what torch.optim's optimizers make of groups that give some of their options.

Usage: python make_groups.py    (needs torch; the tests do not)

Each optimizer is made with options for all groups; "a" gives none of its own, "b" the learning
rate, "c" joins after two steps with a learning rate, and "d" with another option. The learning rate
of all groups is changed before "d" joins, which begins with the first one. Every step's gradient of
a parameter p is 2 * factor * p * sin(step + 1).
"""

import json
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from lion import Lion

torch.set_default_dtype(torch.float64)
cases = {
    "SGD": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0.05),
            dict(momentum=0.5)),
    "SGD, Nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True),
                      dict(weight_decay=0.2)),
    "Adam": (torch.optim.Adam, dict(lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.05,
                                    amsgrad=True), dict(maximize=True)),
    "AdamW": (torch.optim.AdamW, dict(lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.2,
                                      amsgrad=True), dict(weight_decay=0.0)),
    "RMSprop": (torch.optim.RMSprop, dict(lr=0.1, alpha=0.8, eps=0.5, weight_decay=0.05,
                                          momentum=0.6, centered=True), dict(centered=False)),
    "Lion": (Lion, dict(lr=0.1, betas=(0.7, 0.8), weight_decay=0.3), dict(maximize=True)),
}


def run(make, options, other):
    a, b, c, d = (torch.nn.Parameter(torch.tensor(v)) for v in (
        [1.0, -2.0, 3.0], [4.0, -5.0], [0.5, 6.0], [-7.0, 0.25]))
    optimizer = make([{"params": [a]}, {"params": [b], "lr": 0.02}], **options)
    used = [a, b]
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": [c], "lr": 0.03})
            used.append(c)
        if step == 4:
            for group in optimizer.param_groups:
                group["lr"] = 0.05
            optimizer.add_param_group({"params": [d], **other})
            used.append(d)
        for p in used:
            p.grad = 2 * math.sin(step + 1) * p.detach()
        optimizer.step()
    return [p.tolist() for p in (a, b, c, d)]


result = {name: run(*case) for name, case in cases.items()}
path = pathlib.Path(__file__).parent / "groups.json"
path.write_text(json.dumps(result, indent=1) + "\n")
