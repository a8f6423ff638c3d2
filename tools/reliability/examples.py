"""One valid example of every file that the program reads, made by the program itself."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from search_cases import searched
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from analysis.drain import drain
from analysis.files.shipped import DEMO_CHECKPOINT, SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.ranking.published import PUBLISHED
from analysis.stats.store import StatsStore
from app.jobs.store import JobStore
from app.jobs.table import canonical_json
from builders import tiny_checkpoint
from families.configs import CASES
from families.tiny_models import tiny_model
from pruning.measurements.shards import FOLDER
from pruning.plan.plan import Provenance, PruningPlan, model_ref
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.surgery.export import ExportSettings, export_checkpoint
from pruning.tasks.calibration import calibrate_run, weights_run
from tools.demo.rows import Whole
from tools.demo.work import id_of

# Families whose configurations differ most: groups, lists of layers, a text part, biases.
FAMILIES = ("deepseek_v3", "nemotron_h-latent", "gpt_oss", "aria", "jamba")
MODEL, STATS, TEXTS, FILES, EXPORT, STATE = "model", "stats", "texts", "files", "export", "state"
SHARD = f"{FOLDER}/shard.jsonl"  # below FILES: measurements of a search
UNEVEN = "uneven"  # an export whose layers have different numbers of experts
PIECES = "word-pieces"  # MODEL with a vocabulary of words, whose readers need one for unknown words
_LEAST_VOCAB = 64  # of the models here
CARD = """---
license: apache-2.0
base_model: one/two
tags: [a, b]
---
# A model
"""
RECIPE = """schema_version: 1
model: model
corpora: [rows.jsonl, {corpus: text.txt, weight: 2}]
tokens: 64
seq_len: 16
seed: 42
dtype: float32
calibrate: {batch_size: 2, packing: auto}
criterion: reap
gate: applied
granularity: expert
budget: {sparsity: 34%}
schedule: {name: file, file: counts.csv}
constraints:
  multiple_of: 2
  pin: {2: [0, 5]}
  drop: {1: [3]}
  set: {0: 4}
search: {corpus: rows.jsonl, samples: 4, population: 8, elites: 2, generations: 3}
evaluate: {corpus: rows.jsonl, fitness: [esap, kl], samples: 8}
export: {out: pruned, verify: true, max_shard_size: 2GB}
"""
# The forms in which two tools write what benchmarks gave.
LM_EVAL = {
    "results": {"arc": {"alias": "arc", "acc,none": 0.5, "acc_stderr,none": 0.1}},
    "configs": {"arc": {"num_fewshot": 0}},
    "versions": {"arc": 1.0},
    "n-samples": {"arc": {"original": 100, "effective": 50}},
    "higher_is_better": {"arc": {"acc": True}},
    "config": {"model": "hf", "limit": 50, "dtype": "float32"},
    "date": 1750000000.0,
    "lm_eval_version": "0.4.13",
}


def make_examples(root: Path) -> None:
    """Fill a folder: `model` and others, `stats`, `texts`, `files`, `export`, `state`."""
    tiny_checkpoint(root / MODEL, "olmoe")
    (root / MODEL / "README.md").write_text(CARD)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO_CHECKPOINT / name, root / MODEL)
    shutil.copytree(root / MODEL, root / PIECES)
    known = ("[UNK]", "some", "word", "##s", "and", "more", "?", ".")
    words = Tokenizer(WordPiece({word: number for number, word in enumerate(known)}))
    words.pre_tokenizer = Whitespace()
    words.save(str(root / PIECES / "tokenizer.json"))
    for case in CASES:
        if case.name in FAMILIES:
            tiny_model(case).save_pretrained(root / case.name, max_shard_size="40KB")
    _texts(root / TEXTS)
    _statistics(root)
    _files(root)
    _jobs(root / STATE)


def _texts(folder: Path) -> None:
    folder.mkdir()
    generator = np.random.default_rng(0)
    rows = [generator.integers(3, _LEAST_VOCAB, 9 - n % 3).tolist() for n in range(6)]
    beside = [{"input_ids": row, "labels": [-100, *row[1:]]} for row in rows]
    talk = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]
    forms = {
        "rows": beside,
        "messages": [{"messages": talk}] * 3,
        "text": [{"text": "some words\nand more"}] * 3,
        "pairs": [{"prompt": "How?", "response": "So."}] * 3,
    }
    for name, documents in forms.items():
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        (folder / f"{name}.jsonl").write_text(lines)
        pd.DataFrame(documents).to_parquet(folder / f"{name}.parquet")
    (folder / "array.json").write_text(json.dumps(forms["messages"]))
    (folder / "plain.txt").write_text("One text.\n\nAnother,\nof two lines.\r\n\r\nThe third.\n")


def _statistics(root: Path) -> None:
    stats, model = root / STATS, str(root / MODEL)
    stats.mkdir()
    for groups in (("router", "damage", "gradient"), ("dense",)):
        request = CalibrateRequest(
            model=model,
            corpus=str(root / TEXTS / "rows.jsonl"),
            tokens=32,
            seq_len=16,
            groups=groups,
            stats_dir=stats,
        )
        drain(calibrate_run(request))
    drain(weights_run(WeightsRequest(model=model, stats_dir=stats)))
    for number, run in enumerate(StatsStore(stats).runs()):
        # Names that do not depend on digests, for the list of readers.
        kind = "weights" if run.manifest.kind == "weights" else f"run{number}"
        dense = "dense" in run.manifest.groups
        run.path.rename(
            stats / ("dense" if dense else "weights" if kind == "weights" else "routed")
        )


def _files(root: Path) -> None:
    files = root / FILES
    files.mkdir()
    model = load_model_index(str(root / MODEL))
    kept = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in model.layers}
    made = Provenance("reap", "applied", ("red",), ("run",), "uniform", "42%", "0.1.0")
    plan = PruningPlan(model_ref(model), kept, made)
    plan.save(files / "plan.json")
    neurons = {layer: {experts[0]: (0, 2, 3)} for layer, experts in kept.items()}
    PruningPlan(model_ref(model), kept, made, "neuron", neurons).save(files / "neurons.json")
    (files / "recipe.yaml").write_text(RECIPE)
    (files / "counts.csv").write_text("layer,kept\n0,4\n1,5\n2,7\n")
    (files / "counts.json").write_text(json.dumps({"kept": {"0": 4, "1": 5}}))
    by_module = {"model.layers.0.mlp": {"kept": [0, 1, 2, 4]}, "1": [0, 1, 3, 4, 5]}
    (files / "kept.json").write_text(json.dumps(by_module))
    by_line = [{"layer": 0, "experts": [0, 1, 2, 4]}, {"layer": 1, "experts": [0, 1, 3, 4, 5]}]
    (files / "kept.jsonl").write_text("".join(json.dumps(line) + "\n" for line in by_line))
    (files / "counts.yaml").write_text("removed:\n  0: 2\n  2: 1\n")
    for kind in ("evaluations", "bins", "variances", "benchmarks"):
        (files / kind).mkdir()
        lines = (SHIPPED_STATS / kind / "demo.jsonl").read_text().splitlines()
        (files / kind / "record.json").write_text(lines[0])
    (files / "lm-eval.json").write_text(json.dumps(LM_EVAL))
    for name in ("search.json", "known.json"):
        shutil.copy(SHIPPED_STATS / "searches" / "demo-reap.json", files / name)
    shutil.copy(PUBLISHED / "unified-table-1.csv", files / "published.csv")
    (files / "kept_neurons.json").write_text(json.dumps({"kept_neurons": {"1": {"0": [0, 2, 5]}}}))
    rows = [{"question": n, "prompt": f"How {n}?", "document_digest": f"{n:064x}"} for n in (1, 2)]
    task = files / "benchmark-tasks" / "demo-math-exact-0" / "demo-math-exact.jsonl"
    task.parent.mkdir(parents=True)
    task.write_text("".join(json.dumps(row) + "\n" for row in rows))
    searched(files)
    (shard,) = files.rglob(f"{FOLDER}/*.jsonl")
    (files / FOLDER).mkdir()
    shard.rename(files / SHARD)
    for kind in ("evaluations", "bins"):
        name = id_of(json.loads((files / kind / "record.json").read_bytes()))
        blocks = Whole(SHIPPED_STATS, kind).blocks([name])
        rows = b"".join(block.to_line() for block in blocks)
        (files / FOLDER / f"{kind}.jsonl").write_bytes(rows)
    drain(export_checkpoint(model, plan, root / EXPORT, ExportSettings(recipe=RECIPE.encode())))
    uneven = {layer: experts[: 4 - layer] for layer, experts in kept.items()}
    drain(export_checkpoint(model, PruningPlan(model_ref(model), uneven, made), root / UNEVEN))


def _jobs(state: Path) -> None:
    """A job table; `row.json` has the columns of one row, as they lie in it."""
    store = JobStore(state / "jobs.sqlite")
    request = CalibrateRequest(model="demo", corpus="demo-math").model_dump(mode="json")
    job = store.submit("calibrate", request, "a title", "moeprune calibrate", "me", ["x.partial"])
    row = {key: str(value) if key == "log_path" else value for key, value in asdict(job).items()}
    texts = {key: canonical_json(row[key]) for key in ("request", "partials")}
    (state / "row.json").write_text(json.dumps({**row, **texts, "result": '{"run": "a"}'}))
