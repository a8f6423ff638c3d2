"""Builds the demo model from nothing but the Python installation: `python -m tools.demo.build`.

Trains a small OLMoE on code, prose and math in equal parts, seeded, on the CPU or a GPU, and
writes checkpoint, tokenizer and a manifest that says how it was made and its held-out losses.
"""

import argparse
import json
import logging
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

from analysis.corpora import Document, Sampling, demo_document, tokenize
from analysis.demo.texts import TEXTS, demo_texts
from analysis.durable import partial_of
from analysis.model import DEMO_CHECKPOINT
from tools.demo.tokenizer import VOCAB_SIZE, train_tokenizer

logger = logging.getLogger(__name__)

_EVERYTHING = 1 << 40
_TOKENIZER_CHARS = 1_500_000


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of one training run."""

    steps: int = 3000
    batch_size: int = 16
    seq_len: int = 256
    peak_rate: float = 2e-3
    final_rate: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    balance: float = 0.01
    seed: int = 0


def demo_config(training: Training, tokenizer: PreTrainedTokenizerFast) -> OlmoeConfig:
    """6 layers of 32 experts, top-4: small, yet every mechanism of the large ones."""
    return OlmoeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=32,
        num_experts_per_tok=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        output_router_logits=True,
        router_aux_loss_coef=training.balance,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )


def _documents(corpus: str, *, held_out: bool) -> list[Document]:
    texts = demo_texts(corpus, held_out=held_out)
    return [demo_document(text.prompt, text.response) for text in texts]


def sequences_of(
    corpus: str, tokenizer: PreTrainedTokenizerFast, training: Training, *, held_out: bool
) -> NDArray[np.int32]:
    """(sequences, seq_len) ids of a corpus, all of its text."""
    sampling = Sampling(_EVERYTHING, training.seq_len, training.seed)
    documents = _documents(corpus, held_out=held_out)
    return np.stack(tokenize(documents, tokenizer, sampling, corpus=corpus).rows)


def _tokenizer_texts() -> Iterator[str]:
    for corpus in TEXTS:
        used = 0
        for text in demo_texts(corpus):
            if used >= _TOKENIZER_CHARS:
                break
            used += len(text.prompt) + len(text.response)
            yield text.prompt + text.response


def mixed_batches(
    corpora: dict[str, NDArray[np.int32]], training: Training
) -> Iterator[NDArray[np.int32]]:
    """Batches with an equal share of each corpus, without end; every epoch is reshuffled."""
    rng = np.random.default_rng(training.seed)
    queues: dict[str, list[int]] = {name: [] for name in corpora}
    names = list(corpora)
    turn = 0
    while True:
        rows = []
        for _ in range(training.batch_size):
            name = names[turn % len(names)]
            turn += 1
            if not queues[name]:
                queues[name] = rng.permutation(len(corpora[name])).tolist()
            rows.append(corpora[name][queues[name].pop()])
        yield np.stack(rows)


def _rate(step: int, training: Training) -> float:
    if step < training.warmup:
        return training.peak_rate * (step + 1) / training.warmup
    share = (step - training.warmup) / max(1, training.steps - training.warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * share))
    return training.final_rate + (training.peak_rate - training.final_rate) * cosine


def _optimizer(model: OlmoeForCausalLM, training: Training) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.peak_rate, betas=(0.9, 0.95))


def train(
    model: OlmoeForCausalLM, batches: Iterator[NDArray[np.int32]], training: Training
) -> None:
    """Train in place; logs the loss every 50 steps."""
    device = next(model.parameters()).device
    optimizer = _optimizer(model, training)
    model.train()
    started = time.monotonic()
    for step, rows in enumerate(islice(batches, training.steps)):
        ids = torch.from_numpy(rows.astype(np.int64)).to(device)
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, training)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == training.steps - 1:
            elapsed = time.monotonic() - started
            logger.info("step %d loss %.3f after %.0f s", step, loss.item(), elapsed)


@torch.no_grad()
def held_out_loss(model: OlmoeForCausalLM, rows: NDArray[np.int32], batch_size: int = 16) -> float:
    """Mean next-token loss in nats over all positions of `rows`."""
    model.eval()
    device = next(model.parameters()).device
    total, positions = 0.0, 0
    for start in range(0, len(rows), batch_size):
        ids = torch.from_numpy(rows[start : start + batch_size].astype(np.int64)).to(device)
        logits = model(input_ids=ids, use_cache=False, output_router_logits=False).logits
        targets = ids[:, 1:].reshape(-1)
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(len(targets), -1).float(), targets, reduction="sum"
        )
        total += losses.item()
        positions += len(targets)
    return total / positions


def _manifest(training: Training, losses: dict[str, float], seconds: float) -> dict[str, object]:
    return {
        "schema_version": 1,
        "about": "A small model trained for this demo; its rankings are its own.",
        "command": "python -m tools.demo.build",
        "training": asdict(training)
        | {"tokens": training.steps * training.batch_size * training.seq_len},
        "corpora": "code: standard library modules without docstrings and comments; "
        "prose: docstrings and language topics; math: generated word problems; equal parts",
        "held_out_loss_nats": {name: round(loss, 4) for name, loss in losses.items()},
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "seconds": round(seconds),
    }


def build(out: Path, training: Training) -> dict[str, object]:
    """Train the demo model and write it to `out`, which must not exist; returns the manifest."""
    if out.exists():
        raise FileExistsError(f"{out} exists; remove it or name another folder.")
    torch.manual_seed(training.seed)
    started = time.monotonic()
    tokenizer = train_tokenizer(_tokenizer_texts())
    corpora = {name: sequences_of(name, tokenizer, training, held_out=False) for name in TEXTS}
    for name, rows in corpora.items():
        logger.info("%s: %d training tokens", name, rows.size)
    model = OlmoeForCausalLM(demo_config(training, tokenizer))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    train(model, mixed_batches(corpora, training), training)
    # The losses are those of the weights that ship.
    model.to(dtype=torch.bfloat16)
    model.config.output_router_logits = False
    losses = {
        name: held_out_loss(model, sequences_of(name, tokenizer, training, held_out=True))
        for name in TEXTS
    }
    partial = partial_of(out)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    manifest = _manifest(training, losses, time.monotonic() - started)
    (partial / "demo_manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    partial.replace(out)
    return manifest


def main() -> None:
    """Command line of the builder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEMO_CHECKPOINT, help="folder to write")
    parser.add_argument("--steps", type=int, default=Training().steps, help="training steps")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    manifest = build(arguments.out, Training(steps=arguments.steps))
    logger.info("held-out losses: %s", manifest["held_out_loss_nats"])


if __name__ == "__main__":
    main()
