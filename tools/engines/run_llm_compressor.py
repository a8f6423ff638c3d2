"""Run a script of llm-compressor on a CPU; runs in its environment.

    python run_llm_compressor.py SCRIPT [ARGUMENT...]

Two things that a GPU has are stood in for: torchvision's compiled operators, without which
transformers does not import its image processors, and pinned memory.
"""

import os
import runpy
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch

if not torch.accelerator.is_available():
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor")
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor

_, script, *arguments = sys.argv
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
