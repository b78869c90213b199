"""Writes training.json: PyTorch's losses, step by step, for `lockstep train` on the digits.

Usage: python make_training.py    (needs torch and numpy; the tests need neither)

One process, 64-128-64-10, batch 32, seed 0, the epoch's order from torch.randperm with a generator
seeded seed + epoch, as in DistributedSampler. Every sixth image (index % 6 == 5) is left out for
testing.
"""

import json
import pathlib

import numpy as np
import torch
from torch import nn

from lion import Lion

HERE = pathlib.Path(__file__).parent
DIGITS = HERE / "../../samples/data/digits"
SEED, BATCH, STEPS = 0, 32, 100


def digits():
    images = np.fromfile(DIGITS / "digits-images-idx3-ubyte", dtype=np.uint8)[16:].reshape(-1, 64)
    labels = np.fromfile(DIGITS / "digits-labels-idx1-ubyte", dtype=np.uint8)[8:]
    keep = np.arange(len(labels)) % 6 != 5
    x = torch.tensor(images[keep], dtype=torch.float32) / 16
    return x, torch.tensor(labels[keep], dtype=torch.int64)


def train(make_optimizer):
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    start = {name: value[:4].reshape(-1)[:8].tolist() for name, value in model.state_dict().items()}
    optimizer = make_optimizer(model.parameters())
    criterion = nn.CrossEntropyLoss()
    x, y = digits()
    losses = []
    epoch = 0
    while len(losses) < STEPS:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED + epoch))
        for begin in range(0, len(y), BATCH):
            batch = order[begin:begin + BATCH]
            loss = criterion(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
    return start, losses[:STEPS]


def main():
    torch.set_num_threads(1)
    start, sgd = train(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    _, adam = train(lambda p: torch.optim.Adam(p, lr=0.001))
    _, adamw = train(lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=0.01))
    _, amsgrad = train(lambda p: torch.optim.Adam(p, lr=0.001, amsgrad=True))
    _, rmsprop = train(lambda p: torch.optim.RMSprop(p, lr=0.001))
    _, lion = train(lambda p: Lion(p, lr=0.0003))
    result = {"torch": torch.__version__, "start": start, "sgd": sgd, "adam": adam, "adamw": adamw,
              "amsgrad": amsgrad, "rmsprop": rmsprop, "lion": lion}
    (HERE / "training.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
