#!/usr/bin/env python3
"""Writes files.json: files of NumPy and of Python's csv module, and what they hold.

    pip install torch==2.15 numpy && python3 make_files.py

Files are in hex. Elements are a flat list in row-major order. "refused" is a part of the message.
Also: the indices of PyTorch's random_split, and the numbers of Philox4x32-10, written down here
once more from the paper (Salmon et al., SC 2011) and checked with its known answers.
"""

import csv
import io
import json
import math
import pathlib
import struct
import zipfile

import numpy as np
import torch


def array(dtype, shape, order="C"):
    n = math.prod(shape)
    values = np.arange(n) * 3 - 4 if np.dtype(dtype).kind in "fi" else np.arange(n) * 7 % 256
    if np.dtype(dtype).kind == "f":
        values = values * 0.375
    if np.dtype(dtype).kind == "b":
        values = np.arange(n) % 3 == 1
    return np.array(values.reshape(shape).astype(dtype), order=order)


def holds(a):
    return {"dtype": a.dtype.str[1:], "shape": list(a.shape),
            "values": [x.item() for x in a.astype(np.float64).flatten()]}


def npy(a, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, a, version=version)
    return file.getvalue().hex()


def npy_files():
    arrays = [array(t, s) for t in ("<f2", "<f4", "<f8", "<i4", "<i8", "|u1", "|b1")
              for s in ((5,), (2, 3), (), (0, 4), (2, 1, 3))]
    arrays += [array("<f4", (2, 3), "F"), array("<i8", (2, 3, 4), "F"), array("|b1", (3, 2), "F"),
               array("<f8", (1, 2, 1, 3, 2, 2), "F"), array("<f4", (0, 3), "F")]
    arrays.append(np.array([np.inf, -np.inf, 3e38, 1e-45], np.float32)[2:])
    files = [{"hex": npy(a), **holds(a)} for a in arrays]
    for version in ((1, 0), (2, 0), (3, 0)):
        a = array("<f4", (3, 2))
        files.append({"hex": npy(a, version), **holds(a)})
    bad = [(array(">f4", (3,)), "big-endian elements (>f4)"),
           (array(">i8", (2, 2)), "big-endian elements (>i8)"),
           (np.array([1j], np.complex64), "elements of type <c8 are not supported"),
           (np.array([1], np.int16), "elements of type <i2"),
           (np.array([1], np.uint64), "elements of type <u8"),
           (np.array(["ab"]), "elements of type <U2"),
           (np.array([None], object), "Python objects (|O)"),
           (np.array([(1, 2)], [("a", "<f4"), ("b", "<i4")]), "structured arrays"),
           (array("<f4", (1,) * 7), "7 dimensions; at most 6")]
    return files, [{"hex": npy(a), "refused": why} for a, why in bad]


class Pipe(io.RawIOBase):
    """Cannot seek."""

    def __init__(self):
        self.bytes = b""

    def writable(self):
        return True

    def write(self, data):
        self.bytes += bytes(data)
        return len(data)


def npz_files():
    several = {"x": array("<f4", (40, 3)), "y": array("<i8", (40,)), "scalar": array("<f8", ()),
               "none": array("|u1", (0, 2)), "zeros": np.zeros(2000, np.uint8),
               "turned": array("<f8", (3, 4), "F"), "a/b": array("|b1", (4,))}
    files = []
    for save in (np.savez, np.savez_compressed):
        for members in (several, {}):
            file = io.BytesIO()
            save(file, **members)
            files.append({"hex": file.getvalue().hex(), "compressed": save is not np.savez,
                          "members": {k: holds(a) for k, a in members.items()}})
    file = io.BytesIO()  # deflated, it is longer than the reader's buffer
    np.savez_compressed(file, mixed=np.arange(6000, dtype=np.int64) * 2654435761 % 2**32)
    mixed = file.getvalue().hex()
    pipe = Pipe()
    piped = array("<f4", (3,))
    np.savez(pipe, x=piped)
    files.append({"hex": pipe.bytes.hex(), "compressed": False, "members": {"x": holds(piped)}})
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as z:
        z.writestr(zipfile.ZipInfo("notes.txt"), "no array")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_BZIP2) as z:
        z.writestr(zipfile.ZipInfo("x.npy"), bytes.fromhex(npy(array("<f4", (3,)))),
                   zipfile.ZIP_BZIP2)
    lie = io.BytesIO()  # a few bytes that are said to be 2 GiB, by the array and by the archive
    np.lib.format.write_array_header_1_0(
        lie, {"descr": "|u1", "fortran_order": False, "shape": (2**31 - 2000,)})
    small = io.BytesIO()
    with zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(zipfile.ZipInfo("x.npy"), lie.getvalue(), zipfile.ZIP_DEFLATED)
    huge = small.getvalue().replace(struct.pack("<I", len(lie.getvalue())),
                                    struct.pack("<I", 2**31 - 1))
    bad = [(huge, "it holds at most"), (text.getvalue(), "notes.txt: it is no .npy array"),
           (packed.getvalue(), "compression method 12")]
    return files, [{"hex": b.hex(), "refused": why} for b, why in bad], mixed


def csv_file():
    """Numbers that are awkward to read, in columns with awkward names."""
    numbers = ["0.1", "-1.5e3", "+2", "1e-40", "3.4028234e38", "16777217", "-0", ".5", "7.", "1E2"]
    file = io.StringIO(newline="")
    writer = csv.writer(file)  # CRLF
    writer.writerow(["plain", 'with "quotes"', "with, comma", "two\nlines", "text"])
    columns = [numbers, numbers[::-1], [str(i * i - 9) for i in range(len(numbers))],
               [f" {n}\t" for n in numbers], ["some, text"] * len(numbers)]
    for row in zip(*columns):
        writer.writerow(row)
    f32 = [[np.float32(float(x)).item() for x in c] for c in (columns[0], columns[1], columns[3])]
    return {"text": file.getvalue(), "f32": {"plain": f32[0], 'with "quotes"': f32[1],
                                             "two\nlines": f32[2]},
            "f64": {"plain": [float(x) for x in numbers]},
            "i64": {"with, comma": [int(x) for x in columns[2]]}}


def philox(counter, key):
    a, b, c, d = counter
    k0, k1 = key & 0xffffffff, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xffffffff, (p >> 32) ^ d ^ k1, p & 0xffffffff
        k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
    return [a, b, c, d]


def random_numbers():
    ones = 0xffffffff
    assert philox([0] * 4, 0) == [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]
    assert philox([ones] * 4, 2**64 - 1) == [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
    streams = []
    for seed, epoch, sample in ((0, 0, 0), (7, 3, 5), (2**63 + 5, 2**31 - 1, 2**33 + 1)):
        words = [w for block in range(6)
                 for w in philox([block, epoch, sample & ones, sample >> 32], seed)]
        wide = [(words[i] << 32) | words[i + 1] for i in range(0, 24, 2)]
        u = [(w >> 11) / 2**53 for w in wide]
        streams.append({
            "seed": seed, "epoch": epoch, "sample": sample, "words": words,
            "uniform": u, "below_10": [w % 10 for w in wide],
            "normal": [math.sqrt(-2 * math.log(1 - u[i])) * math.cos(2 * math.pi * u[i + 1])
                       for i in range(0, 12, 2)]})
    return streams


def splits():
    cases = []
    for sizes, seed in (([8, 2], 0), ([5, 0, 3, 3], 42), ([1], 1)):
        parts = torch.utils.data.random_split(range(sum(sizes)), sizes,
                                              torch.Generator().manual_seed(seed))
        cases.append({"sizes": sizes, "seed": seed, "parts": [list(p.indices) for p in parts]})
    return cases


good_npy, bad_npy = npy_files()
good_npz, bad_npz, mixed = npz_files()
everything = {"npy": good_npy, "bad_npy": bad_npy, "npz": good_npz, "bad_npz": bad_npz,
              "mixed_npz": mixed, "csv": csv_file(), "random": random_numbers(), "splits": splits()}
pathlib.Path(__file__).with_name("files.json").write_text(
    "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in everything.items()) + "\n}\n")
