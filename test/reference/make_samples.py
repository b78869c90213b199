"""Writes samples.json: what PyTorch computes for five of the samples, line by line.

Usage: python make_samples.py    (needs torch and numpy; the tests need neither)

Each function is the program samples/NAME.cpp in one process: the same seeds, the same draws in the
same order, and the epochs' orders of DistributedSampler (randperm, seeded seed + epoch).
"""

import copy
import csv
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).parent
DATA = HERE / "../../samples/data"
BATCH = 48


def digits():
    images = np.fromfile(DATA / "digits/digits-images-idx3-ubyte", dtype=np.uint8)[16:]
    labels = np.fromfile(DATA / "digits/digits-labels-idx1-ubyte", dtype=np.uint8)[8:]
    x = torch.tensor(images.reshape(-1, 64), dtype=torch.float32) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    test = torch.arange(len(y)) % 6 == 5
    return (x[~test], y[~test]), (x[test], y[test])


def batches(x, y, epoch):
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
    for begin in range(0, len(y), BATCH):
        batch = order[begin:begin + BATCH]
        yield x[batch], y[batch]


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def fit(x, y, model, optimizer, criterion, epochs, after=lambda: []):
    """[epoch, mean loss, what `after` says] of each epoch."""
    lines = []
    for epoch in range(epochs):
        total = 0
        for bx, by in batches(x, y, epoch):
            loss = criterion(model(bx), by)
            step(optimizer, loss)
            total += loss.item() * len(by)
        lines.append([epoch, total / len(y)] + after())
    return lines


def regression_csv():
    torch.manual_seed(0)
    with open(DATA / "diabetes.csv") as file:
        rows = [[float(value) for value in row] for row in list(csv.reader(file))[1:]]
    table = torch.tensor(rows)
    n = round(0.8 * len(table))
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    train, test = table[order[:n]], table[order[n:]]
    mean, std = train.mean(0), train.std(0)
    (x, y), (tx, ty) = [((part - mean) / std).split([10, 1], 1) for part in (train, test)]
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def explained():
        with torch.no_grad():
            return [1 - (F.mse_loss(model(tx), ty) / ty.var()).item()]

    return fit(x, y, model, torch.optim.Adam(model.parameters(), lr=0.003), F.mse_loss, 30,
               explained)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Transpose(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class MeanToken(nn.Module):
    def forward(self, x):
        return x.mean(1)


def mixer():
    def mix_tokens():
        return Residual(nn.LayerNorm(32), Transpose(), nn.Linear(8, 16), nn.GELU(),
                        nn.Linear(16, 8), Transpose())

    def mix_channels():
        return Residual(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    torch.manual_seed(0)
    train, test = digits()
    model = nn.Sequential(nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), mix_tokens(), mix_channels(),
                          mix_tokens(), mix_channels(), MeanToken(), nn.LayerNorm(32),
                          nn.Linear(32, 10))
    return fit(*train, model, torch.optim.Adam(model.parameters(), lr=0.005), F.cross_entropy, 10,
               lambda: [accuracy(model, *test)])


def characters():
    torch.manual_seed(0)
    text = (DATA / "sonnets.txt").read_text()
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(c) for c in text])
    x, y = codes[:-1].unfold(0, 8, 1), codes[8:]
    model = nn.Sequential(nn.Embedding(len(alphabet), 16), nn.Flatten(), nn.Linear(128, 128),
                          nn.Tanh(), nn.Linear(128, len(alphabet)))
    return fit(x, y, model, torch.optim.Adam(model.parameters(), lr=0.003), F.cross_entropy, 20)


def ema_teacher():
    torch.manual_seed(0)
    (x, y), test = digits()
    noise, wrong = torch.randint(0, 10, y.shape), torch.rand(y.shape) < 0.4
    y = torch.where(wrong, noise, y)
    student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    lines = []
    for epoch in range(20):
        total = 0
        for bx, by in batches(x, y, epoch):
            with torch.no_grad():
                taught = teacher(bx).softmax(1)
            logits = student(bx)
            loss = F.cross_entropy(logits, by) + 10 * F.mse_loss(logits.softmax(1), taught)
            step(optimizer, loss)
            total += loss.item() * len(by)
            with torch.no_grad():
                for mean, new in zip(teacher.parameters(), student.parameters()):
                    mean.lerp_(new, 0.01)
        lines.append([epoch, total / len(y), accuracy(student, *test), accuracy(teacher, *test)])
    return lines


def gan():
    def centers(n):
        angle = (torch.arange(n) % 8).float() * (2 * math.pi / 8)
        return torch.stack([angle.cos(), angle.sin()], 1)

    def mlp(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64),
                             nn.LeakyReLU(0.2), nn.Linear(64, outputs))

    def truth(logits, p):
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, p))

    torch.manual_seed(0)
    generator, critic = mlp(8, 2), mlp(2, 1)
    generator_adam = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    critic_adam = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    lines = []
    for i in range(1001):
        real = centers(128) + 0.05 * torch.randn(128, 2)
        z = torch.randn(128, 8)
        fake = generator(z).detach()
        critic_loss = truth(critic(real), 1) + truth(critic(fake), 0)
        step(critic_adam, critic_loss)
        generator_loss = truth(critic(generator(z)), 1)
        step(generator_adam, generator_loss)
        if i % 100 == 0:
            with torch.no_grad():
                distance, center = torch.cdist(generator(torch.randn(500, 8)), centers(8)).min(1)
            found = torch.bincount(center[distance < 0.15], minlength=8) >= 10
            lines.append([i, critic_loss.item(), generator_loss.item(), found.sum().item()])
    return lines


def main():
    torch.set_num_threads(1)
    programs = [regression_csv, mixer, gan, characters, ema_teacher]
    lines = {program.__name__: program() for program in programs}
    tables = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(line) for line in table) + "\n]"
        for name, table in lines.items())
    (HERE / "samples.json").write_text(f'{{"torch": "{torch.__version__}",\n{tables}\n}}\n')


if __name__ == "__main__":
    main()
