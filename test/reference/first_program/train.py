# The usual training with PyTorch's DistributedDataParallel: what samples/first_program.cpp does.
# In the folder of the sources:  torchrun --nproc-per-node 2 test/reference/first_program/train.py
# wrote losses.txt, with PyTorch 2.15.

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_digits():
    folder = "samples/data/digits/digits-"
    x = np.fromfile(folder + "images-idx3-ubyte", dtype=np.uint8)[16:].reshape(-1, 64)
    y = np.fromfile(folder + "labels-idx1-ubyte", dtype=np.uint8)[8:]
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y, dtype=torch.int64)
    is_test = torch.arange(len(y)) % 6 == 5
    return TensorDataset(x[~is_test], y[~is_test]), TensorDataset(x[is_test], y[is_test])


# region main
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, test = load_digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler)

    for epoch in range(30):
        sampler.set_epoch(epoch)  # forgotten, every epoch has the same order
        loss_sum = torch.zeros((), dtype=torch.float64)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()  # ready gradients travel while this runs
            optimizer.step()
            loss_sum += loss.item() * len(y)
        dist.all_reduce(loss_sum)
        if rank == 0:
            print(f"epoch {epoch + 1:>2}: loss {loss_sum.item() / len(train):.4f}")
    x, y = test.tensors
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum().item()
    if rank == 0:
        print(f"{right} of {len(test)} are right")
    dist.destroy_process_group()
# endregion main


if __name__ == "__main__":
    main()
