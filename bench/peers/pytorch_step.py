"""The step of bench/step.cpp in PyTorch: DistributedDataParallel over gloo, one thread per rank.

Usage: pytorch_step.py LAYERS BATCH RANKS OPTIMIZER DEVICE PRECISION, for example 64,128,64,10 32 2
sgd cpu f32

Speaks the protocol of bench/peer.h on stdin and stdout, and answers `loss` with `loss X`, the mean
over the ranks of the loss of the first step. The same seeds give the same weights and the same data
as there, so the first losses must agree.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def make_step(rank, world, layers, batch, optimizer, device, precision):
    torch.manual_seed(0)
    modules = []
    for i in range(len(layers) - 1):
        if i > 0:
            modules.append(nn.ReLU())
        modules.append(nn.Linear(layers[i], layers[i + 1]))
    model = nn.Sequential(*modules).to(device)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    if optimizer == "sgd":
        stepper = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    else:
        stepper = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(1000 + rank)
    x = torch.randn(batch, layers[0]).to(device)
    y = torch.randint(0, layers[-1], (batch,)).to(device)
    criterion = nn.CrossEntropyLoss()
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def step():
        stepper.zero_grad()
        with torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            loss = criterion(model(x), y)
        loss.backward()
        stepper.step()
        return loss

    return step


def work(rank, world, port, layers, batch, optimizer, device, precision):
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    step = make_step(rank, world, layers, batch, optimizer, device, precision)
    loss = step().detach().cpu()
    if world > 1:
        dist.all_reduce(loss)
    if rank == 0:
        kind = "DDP + gloo" if world > 1 else "eager"
        print(f"ready PyTorch {torch.__version__.split('+')[0]} {kind}", flush=True)
    while True:
        steps = torch.zeros(1, dtype=torch.long)
        if rank == 0:
            line = sys.stdin.readline().split()
            while line == ["loss"]:
                print(f"loss {loss.item() / world!r}", flush=True)
                line = sys.stdin.readline().split()
            steps[0] = int(line[1]) if line else 0
        if world > 1:
            dist.broadcast(steps, 0)
        if steps.item() == 0:
            break
        start = time.perf_counter()
        for _ in range(steps.item()):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if rank == 0:
            print(f"us {(time.perf_counter() - start) / steps.item() * 1e6}", flush=True)
    if world > 1:
        dist.destroy_process_group()


def main():
    layers = [int(width) for width in sys.argv[1].split(",")]
    batch, world, optimizer = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    device = torch.device(sys.argv[5])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rest = (world, port, layers, batch, optimizer, device, sys.argv[6])
    others = [mp.Process(target=work, args=(r, *rest), daemon=True) for r in range(1, world)]
    for process in others:
        process.start()
    work(0, *rest)
    for process in others:
        process.join()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
