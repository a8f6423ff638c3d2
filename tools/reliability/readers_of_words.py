"""Readers of what people type: words of a command line, values of requests, secrets; see `readers`.

Every example is a file, so that it can be changed as the other files are.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from analysis.corpora.spec import parse_corpus, parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.files.json_text import parse_json
from analysis.numbers.sparsity import num_removed, parse_sparsity
from app.jobs.slurm import parse_options
from app.widgets.login import read_login
from pruning.actions.ask import AskRequest
from pruning.actions.bins import BinsRequest
from pruning.actions.variance import VarianceRequest
from pruning.plan.budget import parse_gib
from pruning.plan.layer_words import parse_counts, parse_experts, parse_numbers
from pruning.plan.sizes import parse_size
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import (
    EvaluateRequest,
    SweepRequest,
)
from pruning.requests.model import ExportRequest, WeightsRequest
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import OverlapRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.schedules import get_schedule
from pruning.spec.base import Request, validated
from tools.reliability.mutations import word_changed
from tools.reliability.reader import JSON, TEXT, Reader

WORDS, REQUESTS, SERVER = "words", "requests", "server"
SECRETS = """[moeprune]
users = ["one@example.org", "@example.com"]

[auth]
redirect_uri = "https://example.org/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "a"
client_secret = "b"
server_metadata_url = "https://example.org/.well-known/openid-configuration"
"""


def _sparsity(word: str) -> None:
    assert 0 <= num_removed(60, parse_sparsity(word)) < 60


def _weight(word: str) -> None:
    found = parse_corpus_weight(word)
    assert found.weight > 0
    assert math.isfinite(found.weight)


def _counts(word: str) -> None:
    assert all(count >= 0 for count in parse_counts([word]).values())


# Name -> a valid word, and what reads it.
WORDS_READ: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "corpus": ("hub:one/two,config=a,split=train[:5%],text=body", parse_corpus),
    "corpus file": ("texts/rows.jsonl,prompt=question,response=answer", parse_corpus),
    "corpus with weight": ("demo-code:2.5", _weight),
    "criterion": ("1,2,0", get_criterion),
    "criterion with a number": ("camera-p:0.25", get_criterion),
    "criterion with paths": ("pathfinder:500", get_criterion),
    "sparsity": ("33.5%", _sparsity),
    "target size": ("13.25", parse_gib),
    "numbers": ("0,3-7,12", lambda word: parse_numbers(word, what="layers")),
    "experts": ("0-2,5:1,3-4", lambda word: parse_experts([word])),
    "counts": ("0-3=12", _counts),
    "schedule": ("global", get_schedule),
    "shard size": ("2.5GB", parse_size),
    "SLURM options": ("partition=gpu,gpus_per_node=1,mem_gb=64,time=240", parse_options),
}
_MODEL = {"model": "demo"}
_TEXT = {"corpora": ["demo-code"], "device_map": "auto", "max_memory": ["0=2GiB"]}
_GRID = {"criteria": ["reap", "1,2,0"], "sparsities": ["25%", "0.5"]}
_SEARCHED = """model: demo
criterion: aimer
budget: {sparsity: 50%}
search: {corpus: demo-code, generations: 2}
"""
# Kind -> a valid request of it.
REQUESTS_READ: Mapping[str, tuple[type[Request], Mapping[str, Any]]] = {
    "calibrate": (CalibrateRequest, {**_MODEL, "corpus": "demo-code", "groups": ["dense"]}),
    "weights": (WeightsRequest, _MODEL),
    "overlap": (OverlapRequest, {**_MODEL, "criterion": "reap", "sparsity": "50%"}),
    "select": (
        SpecRequest,
        {**_MODEL, "criterion": "reap", "sparsity": "50%", "set": ["0=4"]},
    ),
    "neurons": (
        SpecRequest,
        {**_MODEL, "granularity": "neuron", "criterion": "heapr", "sparsity": "25%"},
    ),
    "export": (ExportRequest, {**_MODEL, "plan": {"kept": {"0": [1]}}, "out": "out"}),
    "evaluate": (EvaluateRequest, {**_MODEL, **_TEXT, "plans": [{"kept": {}}]}),
    "sweep": (SweepRequest, {**_MODEL, **_TEXT, **_GRID}),
    "bins": (BinsRequest, {**_MODEL, **_TEXT, "criterion": "reap", "bins": 4}),
    "ask": (AskRequest, {**_MODEL, "prompt": "How?", "plans": [{"kept": {}}]}),
    "variance": (VarianceRequest, {**_MODEL, **_TEXT, **_GRID}),
    "search": (SearchRequest, {"recipe": _SEARCHED, "out": "out"}),
    "benchmark": (BenchmarkRequest, {**_MODEL, "tasks": ["demo-math-exact"], "limit": 5}),
    "import": (ImportRequest, {**_MODEL, "files": ["results.json"]}),
}


def make_words(root: Path) -> None:
    """One file for each word and request, and the secrets of a server."""
    for folder in (WORDS, REQUESTS, f"{SERVER}/.streamlit"):
        (root / folder).mkdir(parents=True)
    for name, (word, _) in WORDS_READ.items():
        (root / WORDS / name).write_text(word)
    for name, (_, values) in REQUESTS_READ.items():
        (root / REQUESTS / name).write_text(json.dumps(values))
    secrets = root / SERVER / ".streamlit" / "secrets.toml"
    secrets.write_text(SECRETS)
    secrets.chmod(0o600)


def _word(name: str) -> Callable[[Path], object]:
    # As Python decodes the words of a command line.
    return lambda root: WORDS_READ[name][1](
        (root / WORDS / name).read_bytes().decode(errors="surrogateescape")
    )


def _request(name: str) -> Callable[[Path], object]:
    kind, _ = REQUESTS_READ[name]

    def read(root: Path) -> None:
        try:
            raw = parse_json((root / REQUESTS / name).read_bytes())
        except ValueError:
            return  # of this file only the values matter
        if isinstance(raw, dict) and all(isinstance(key, str) for key in raw):
            request = validated(kind, raw)
            request.model_dump_json()
            assert validated(kind, request.model_dump()) == request
            if (command := getattr(request, "command", None)) is not None:
                command()

    return read


def _secrets(root: Path) -> None:
    place = root / SERVER
    with contextlib.chdir(place), patch.dict("os.environ", HOME=str(place)):
        login = read_login()
    assert login is None or all("@" in user for user in login.users)


def readers() -> Iterator[Reader]:
    for name in WORDS_READ:
        yield Reader(name, f"{WORDS}/{name}", word_changed, _word(name))
    for name in REQUESTS_READ:
        yield Reader(
            f"request, {name}", f"{REQUESTS}/{name}", JSON, _request(name), lists=name == "search"
        )
    yield Reader("secrets.toml", f"{SERVER}/.streamlit/secrets.toml", TEXT, _secrets)
