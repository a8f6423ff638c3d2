"""Prune a checkpoint by llm-compressor's REAP; runs in its environment, by `run_llm_compressor`.

    python run_llm_compressor.py reap_llm_compressor.py CHECKPOINT OUT REPORT SPARSITY

Calibrated on random tokens. REPORT is the list of kept experts that it writes.
"""

import sys

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.pruning.reap import REAPPruningModifier
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

source, out, report, sparsity = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
tokens = torch.randint(3, model.config.vocab_size, (8, 1, 32))
rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in tokens]
oneshot(
    model=model,
    processor=AutoTokenizer.from_pretrained(source),
    dataset=DataLoader(rows, batch_size=None),
    recipe=REAPPruningModifier(sparsity=float(sparsity), report_path=report),
    pipeline="sequential",
)
model.save_pretrained(out)
