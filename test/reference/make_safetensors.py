"""Writes safetensors.json: a file that PyTorch has saved, in hex, and what is in it.

Usage: python make_safetensors.py    (needs torch and safetensors; the tests need neither)
"""

import json
import pathlib
import tempfile

import safetensors.torch
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
model_file = safetensors.torch.save(model.state_dict())

tensors = {
    "f64": torch.tensor([0.1, -2.5], dtype=torch.float64),
    "f32": torch.tensor([[1.5], [3e38]]),
    "f16": torch.tensor([0.1, 65504.0], dtype=torch.float16),
    "bf16": torch.tensor([0.1, -3e38], dtype=torch.bfloat16),
    "i64": torch.tensor([-(2**62), 7]),
    "i32": torch.tensor([[-5, 2**31 - 1]], dtype=torch.int32),
    "u8": torch.tensor([0, 255, 7], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(0.25),
    "nothing": torch.zeros(0, 4),
    "a \"name\" ü": torch.tensor([1.0]),
}
all_file = safetensors.torch.save(tensors, metadata={"made by": "PyTorch"})

# Tied weights: PyTorch's state_dict() has both names. A file has both, if they are copies, or what
# save_model() has left.
tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
tied[2].weight = tied[0].weight
with tempfile.TemporaryDirectory() as folder:
    safetensors.torch.save_model(tied, folder + "/tied")
    one_name = pathlib.Path(folder + "/tied").read_bytes()
both_names = safetensors.torch.save({n: t.clone() for n, t in tied.state_dict().items()})

result = {
    "tied": {"one name": one_name.hex(), "both names": both_names.hex(), "x": x.tolist(),
             "y": tied(x).tolist()},
    "model": {"hex": model_file.hex(), "x": x.tolist(), "logits": model(x).tolist()},
    "all": {
        "hex": all_file.hex(),
        "tensors": {
            name: {
                "dtype": str(t.dtype).removeprefix("torch."),
                "shape": list(t.shape),
                "values": t.to(torch.float64 if t.is_floating_point() else torch.int64)
                .flatten()
                .tolist(),
            }
            for name, t in tensors.items()
        },
    },
    "other dtypes": {
        name: safetensors.torch.save({"t": torch.zeros(2, dtype=getattr(torch, name))}).hex()
        for name in ["int8", "int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "complex64"]
    },
}
path = pathlib.Path(__file__).parent / "safetensors.json"
path.write_text(json.dumps(result, indent=1) + "\n")
