"""The ranks of gloo in `bench allreduce`: torch.distributed over the loopback, one thread per rank.

Usage: gloo_allreduce.py RANKS CAPACITY FOLDER

Takes turns as bench/allreduce_rank.h says.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CHUNK = 1 << 18


def pattern(begin, count, factor, offset):
    """Elements [begin, begin + count) of what allreduce_rank.cpp calls value and sum_of_values."""
    index = torch.arange(begin, begin + count) % 65521
    return (index * factor + offset).to(torch.float32)


def verify(memory, rank, world):
    for begin in range(0, memory.numel(), CHUNK):
        part = memory[begin:begin + CHUNK]
        part.copy_(pattern(begin, part.numel(), 8, rank))
    dist.barrier()
    dist.all_reduce(memory)
    for begin in range(0, memory.numel(), CHUNK):
        part = memory[begin:begin + CHUNK]
        right = pattern(begin, part.numel(), 8 * world, world * (world - 1) // 2)
        if not torch.equal(part, right):
            raise SystemExit(f"gloo: rank {rank} has wrong sums in elements from {begin}")
    memory.zero_()
    dist.barrier()


def microseconds_per_call(memory, calls):
    for _ in range(1 + calls // 10):
        dist.all_reduce(memory)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(memory)
    return (time.perf_counter() - start) / calls * 1e6


def work(rank, world, port, capacity, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)

    def answer(text):
        if rank == 0:
            print(text, flush=True)

    # As the ranks of the others: rank.cpp. gloo's own thread stays free.
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= world:
        os.sched_setaffinity(0, {cores[rank]})
    memory = torch.empty(capacity)
    with open(os.path.join(folder, str(rank))) as turns:
        dist.barrier()
        answer(f"ready gloo of PyTorch {torch.__version__.split('+')[0]}")
        for line in iter(turns.readline, ""):
            what, number = line.split()
            if what == "verify":
                part = memory[:int(number)]
                verify(part, rank, world)
                answer(f"verified {part.numel()}")
            else:
                answer(f"us {microseconds_per_call(part, int(number))}")
    dist.destroy_process_group()


def main():
    world, capacity, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rest = (world, port, capacity, folder)
    others = [mp.Process(target=work, args=(r, *rest), daemon=True) for r in range(1, world)]
    for process in others:
        process.start()
    work(0, *rest)
    for process in others:
        process.join()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
