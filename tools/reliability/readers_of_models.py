"""Readers of checkpoints that go on to run, measure or export the model; see `readers`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.calibration.loading import load_tokenizer
from analysis.calibration.weights import weight_statistics
from analysis.checkpoint.index import CONFIG_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.corpora.encoding import encode
from analysis.corpora.fields import DEFAULT_FIELDS
from analysis.corpora.files import open_documents
from analysis.corpora.representatives import CheckpointEmbedding
from analysis.corpora.tokens import ChatFormat
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.ranking.norms import neuron_norms
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from pruning.plan.plan import keep_all
from pruning.requests.calibration import CalibrateRequest
from pruning.surgery.card import CARD_NAME
from pruning.surgery.export import export_checkpoint
from pruning.surgery.verify import verify_export
from pruning.tasks.calibration import calibrate_run
from tools.reliability import examples
from tools.reliability.mutations import bytes_changed
from tools.reliability.reader import JSON, TENSORS, TEXT, Reader, scratch

_SHARD = "model-00002-of-00004.safetensors"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def _calibrated(folder: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        with scratch(root) as made:
            request = CalibrateRequest(
                model=str(root / folder),
                corpus=str(root / examples.TEXTS / "rows.jsonl"),
                tokens=16,
                seq_len=8,
                device="cpu",
                dtype="float32",
                stats_dir=made,
            )
            stats = load_expert_stats(drain(calibrate_run(request)))
            assert np.isfinite(stats.table.to_numpy(dtype="float64")).all()

    return read


def _exported(root: Path) -> None:
    model = load_model_index(str(root / examples.MODEL))
    whole = keep_all(model)
    plan = replace(whole, kept={layer: kept[:-1] for layer, kept in whole.kept.items()})
    with scratch(root) as made:
        drain(export_checkpoint(model, plan, made / "out"))
        drain(verify_export(made / "out", source=root / examples.MODEL, level="bytes"))


def _measured(root: Path) -> None:
    model = load_model_index(str(root / examples.MODEL))
    with scratch(root) as made:
        drain(weight_statistics(model, StatsStore(made)))
    for scores in drain(neuron_norms(model)).values():
        assert all(np.isfinite(score).all() for score in scores)


def _embedded(root: Path) -> None:
    rows = CheckpointEmbedding(open_checkpoint(root / examples.MODEL)).rows(np.array([0, 5, 95]))
    assert rows.shape[0] == 3


def _worded(folder: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        tokenizer = load_tokenizer(load_model_index(str(root / folder)))
        for name in ("text", "messages", "pairs"):
            for document in open_documents(
                root / examples.TEXTS / f"{name}.jsonl", DEFAULT_FIELDS
            ).read([0]):
                for count in ("all",) if name == "text" else ("all", "response"):
                    encoded = encode(document, tokenizer, ChatFormat(count), name)
                    assert encoded.counted is None or len(encoded.counted) == len(encoded.ids)

    return read


def readers() -> Iterator[Reader]:
    model = examples.MODEL
    for folder in (model, examples.UNEVEN, *examples.FAMILIES):
        file = f"{folder}/{CONFIG_NAME}"
        yield Reader(f"{folder} calibrated, config.json", file, JSON, _calibrated(folder))
    shard = f"{model}/{_SHARD}"
    yield Reader("model calibrated, safetensors", shard, TENSORS, _calibrated(model))
    general = f"{model}/generation_config.json"
    yield Reader("model calibrated, generation_config.json", general, JSON, _calibrated(model))
    yield Reader("model exported, config.json", f"{model}/{CONFIG_NAME}", JSON, _exported)
    yield Reader("model exported, README.md", f"{model}/{CARD_NAME}", TEXT, _exported)
    yield Reader("weights measured, safetensors", shard, TENSORS, _measured)
    first = f"{model}/model-00001-of-00004.safetensors"
    yield Reader("embeddings, safetensors", first, TENSORS, _embedded)
    for name in _TOKENIZER:
        mutate = bytes_changed if name.endswith("jinja") else JSON
        yield Reader(name, f"{model}/{name}", mutate, _worded(model))
    pieces = examples.PIECES
    yield Reader("tokenizer.json, pieces", f"{pieces}/tokenizer.json", JSON, _worded(pieces))
