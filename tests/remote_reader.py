"""A process with plain transformers and `trust_remote_code=True` that reads exports."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from families.physical import TOKENS

# It gets folders; beside each lies what the model must compute.
READER = """
import json, sys, warnings

class OnlyTransformers:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("analysis", "pruning", "app"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, OnlyTransformers())
sys.path = [entry for entry in sys.path if entry]
import torch, transformers
from pathlib import Path
from safetensors.torch import load_file

torch.set_num_threads(1)

def load(auto, folder):
    # transformers maps files, and some processors round unaligned weights otherwise: decision 0009.
    model, info = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model, info

results = {}
for folder in map(Path, sys.argv[1:]):
    wanted = load_file(folder.parent / "wanted.safetensors")
    ids = wanted["ids"]
    # If there are two, the first reads the text part, the second the whole.
    names = list(json.loads((folder / "config.json").read_text())["auto_map"])
    for name in names[1:]:
        whole, _ = load(getattr(transformers, name), folder)
        with torch.no_grad():
            assert torch.equal(whole(input_ids=ids, use_cache=False).logits, wanted["logits"])
    auto = getattr(transformers, names[0])
    model, info = load(auto, folder)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    start = ids[:1, :4]
    new = model.generate(input_ids=start, max_new_tokens=3, do_sample=False, eos_token_id=None)
    before = model.config._experts_implementation
    differences = {}
    for implementation in ("grouped_mm", "batched_mm", "eager"):
        try:
            model.set_experts_implementation(implementation)
        except ValueError:
            continue
        with torch.no_grad():
            other = model(input_ids=ids, use_cache=False).logits
        differences[implementation] = float((other - wanted["logits"]).abs().max())
    again = folder.parent / "again"
    model.save_pretrained(again)
    second, _ = load(auto, again)
    with torch.no_grad():
        difference = (second(input_ids=ids, use_cache=False).logits - wanted["logits"]).abs().max()
    results[str(folder)] = {
        "exact": torch.equal(logits, wanted["logits"]),
        "exact_again": float(difference) == 0,
        "info": any(info.values()),
        "new": new.shape[1],
        "implementations": [before, model.config._experts_implementation],
        "differences": differences,
        "class": type(model).__name__,
        "module": type(model).__module__,
        "auto_classes": names,
    }
print(json.dumps(results))
"""


def read_by_others(
    exports: Mapping[str, tuple[Path, torch.Tensor]], parent: Path
) -> dict[str, dict[str, Any]]:
    """What a process with plain transformers says of each export, by its name.

    `exports`: name -> folder, and the logits that the model must compute.
    """
    folders = {}
    for name, (path, logits) in exports.items():
        folders[name] = parent / name / "pruned"
        shutil.copytree(path, folders[name])
        wanted = {"ids": TOKENS, "logits": logits.contiguous()}
        save_file(wanted, parent / name / "wanted.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", READER, *map(str, folders.values())],
        cwd=parent,
        env={**os.environ, "HF_HOME": str(parent / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.splitlines()[-1])
    return {name: results[str(path)] for name, path in folders.items()}
