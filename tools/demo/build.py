"""Builds the demo model from generated texts: `python -m tools.demo.build`.

Trains a small OLMoE on functions, stories, problems and recipes, seeded, on the CPU or a GPU, and
writes checkpoint, tokenizer, the list of held-out documents, and a manifest that says how it was
made and its held-out losses.
"""

import argparse
import json
import logging
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

from analysis.corpora.documents import demo_document
from analysis.corpora.encoding import encode
from analysis.corpora.near_copies import TokenRuns
from analysis.corpora.tokens import ChatFormat
from analysis.demo.held_out import BENCHMARKED, EVALUATED, HELD_OUT_FILE
from analysis.demo.listing import DEMO_CORPORA, HELD_OUT_FROM, TRAINING_DOCUMENTS, DemoCorpus
from analysis.demo.texts import demo_text
from analysis.files.durable import partial_of
from analysis.files.shipped import DEMO_CHECKPOINT
from tools.demo.first_weights import set_first_weights
from tools.demo.tokenizer import VOCAB_SIZE, train_tokenizer

logger = logging.getLogger(__name__)

_TOKENIZER_DOCUMENTS = 4_000
Ids = NDArray[np.int32]  # (tokens,) of a document, or (sequences, tokens)


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of one training run."""

    steps: int = 7_000
    batch_size: int = 8
    seq_len: int = 256
    # Sequences of 16 by corpus: stories and functions take longest to learn.
    code: int = 5
    stories: int = 5
    math: int = 4
    recipes: int = 2
    peak_rate: float = 3e-3
    final_rate: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    initial: float = 0.06  # standard deviation of the first weights
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
        initializer_range=training.initial,
        tie_word_embeddings=True,
        output_router_logits=True,
        router_aux_loss_coef=training.balance,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )


def _tokens(corpus: DemoCorpus, number: int, tokenizer: PreTrainedTokenizerFast) -> Ids:
    """A document with its end."""
    document = demo_document(demo_text(corpus.name, number))
    ids = encode(document, tokenizer, ChatFormat(), corpus.name).ids
    end = tokenizer.eos_token_id
    return ids if ids[-1] == end else np.append(ids, end).astype(np.int32)


def training_tokens(corpus: DemoCorpus, tokenizer: PreTrainedTokenizerFast) -> list[Ids]:
    """The documents that are not held out."""
    return [_tokens(corpus, number, tokenizer) for number in range(TRAINING_DOCUMENTS)]


def held_out_tokens(
    corpus: DemoCorpus, tokenizer: PreTrainedTokenizerFast, training: Sequence[Ids]
) -> dict[int, Ids]:
    """Number -> held-out document: the first that share no run with a training document."""
    known = TokenRuns.of(training)
    documents = dict[int, Ids]()
    number = HELD_OUT_FROM
    while len(documents) < EVALUATED + BENCHMARKED:
        document = _tokens(corpus, number, tokenizer)
        if not known.covers(document).any():
            documents[number] = document
        number += 1
    return documents


def packed(documents: Sequence[Ids], seq_len: int) -> Ids:
    """Documents one after another, cut into sequences; what is left of the last is dropped."""
    stream = np.concatenate(documents)
    count = len(stream) // seq_len
    return stream[: count * seq_len].reshape(count, seq_len)


def mixed_batches(corpora: Mapping[str, Ids], training: Training) -> Iterator[Ids]:
    """Batches with each corpus' share, without end; every epoch is reshuffled."""
    rng = np.random.default_rng(training.seed)
    queues: dict[str, list[int]] = {name: [] for name in corpora}
    shares = {name: getattr(training, name.removeprefix("demo-")) for name in corpora}
    turns = [name for name in corpora for _ in range(shares[name])]
    turn = 0
    while True:
        rows = []
        for _ in range(training.batch_size):
            turn = (turn + 7) % len(turns)  # so that a batch has all corpora
            name = turns[turn]
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
    return torch.optim.AdamW(groups, lr=training.peak_rate, betas=(0.9, 0.95), fused=True)


def train(model: OlmoeForCausalLM, batches: Iterator[Ids], training: Training) -> None:
    """Train in place; logs the loss every 50 steps."""
    device = next(model.parameters()).device
    optimizer = _optimizer(model, training)
    model.train()
    started = time.monotonic()
    for step, rows in enumerate(islice(batches, training.steps)):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, training)
        ids = torch.from_numpy(rows.astype(np.int64)).to(device)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == training.steps - 1:
            elapsed = time.monotonic() - started
            logger.info("step %d loss %.3f after %.0f s", step, loss.item(), elapsed)


@torch.no_grad()
def held_out_loss(
    model: OlmoeForCausalLM, sequences: NDArray[np.int32], batch_size: int = 16
) -> float:
    """Mean next-token loss in nats over all positions of (sequences, seq_len) token ids."""
    model.eval()
    device = next(model.parameters()).device
    total, positions = 0.0, 0
    for start in range(0, len(sequences), batch_size):
        ids = torch.from_numpy(sequences[start : start + batch_size].astype(np.int64)).to(device)
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
        "corpora": {corpus.name: corpus.about for corpus in DEMO_CORPORA.values()},
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
    torch.set_num_threads(1)  # sums over several would give other weights where there are more
    started = time.monotonic()
    numbers = range(_TOKENIZER_DOCUMENTS)
    texts = (
        demo_text(corpus.name, number).whole
        for corpus in DEMO_CORPORA.values()
        for number in numbers
    )
    tokenizer = train_tokenizer(texts)
    rows, held_out = dict[str, Ids](), dict[str, dict[int, Ids]]()
    for name, corpus in DEMO_CORPORA.items():
        documents = training_tokens(corpus, tokenizer)
        rows[name] = packed(documents, training.seq_len)
        held_out[name] = held_out_tokens(corpus, tokenizer, documents)
        logger.info("%s: %d training tokens", name, rows[name].size)
        tried = max(held_out[name]) - HELD_OUT_FROM + 1
        logger.info("%s: %d of %d documents are held out", name, len(held_out[name]), tried)
    model = OlmoeForCausalLM(demo_config(training, tokenizer))
    set_first_weights(model)
    model.set_experts_implementation("grouped_mm")  # the fastest way to train it on a CPU
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    train(model, mixed_batches(rows, training), training)
    # The losses are those of the weights that ship.
    model.to(dtype=torch.bfloat16)
    model.config.output_router_logits = False
    losses = {}
    for name, documents in held_out.items():
        evaluated = packed(list(documents.values())[:EVALUATED], training.seq_len)
        losses[name] = held_out_loss(model, evaluated)
    partial = partial_of(out)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    listed = {name: list(documents) for name, documents in held_out.items()}
    (partial / HELD_OUT_FILE).write_text(json.dumps(listed, separators=(",", ":")) + "\n")
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
