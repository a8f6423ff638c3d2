"""What fuzzing found, one plain case each: a damaged file ends in one line that says so."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from exports import export

from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint, read_config
from analysis.corpora.fields import DEFAULT_FIELDS
from analysis.corpora.files import open_documents
from analysis.errors import (
    CheckpointError,
    CorpusError,
    ExportError,
    JobError,
    PlanError,
    StatsError,
    UnsupportedModelError,
)
from analysis.families.listing import family_of
from analysis.files.content import file_sha256
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.manifest import MANIFEST
from analysis.stats.neurons import load_neuron_stats
from analysis.stats.reading import load_expert_stats, load_weight_stats, read_vectors
from analysis.stats.shards import stats_at
from analysis.stats.store import read_run
from app.jobs.store import JobStore
from pruning.measurements.block import SEAL, Block, SampleSet
from pruning.measurements.table import Measurements
from pruning.measures.result import SampleSums
from pruning.plan.plan import keep_all
from pruning.plan.plan_file import plan_from_json
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest

DEEP = "[" * 200_000 + "]" * 200_000


@pytest.fixture
def run(tmp_path):
    (source,) = SHIPPED_STATS.glob("demo-demo-math-*")
    return shutil.copytree(source, tmp_path / "run")


def edit_json(path, change):
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(kind="other"),
        lambda raw: raw["corpora"][0].update(name=7.5),
        lambda raw: raw["corpora"][0].update(num_tokens="many"),
        lambda raw: raw["model"].update(layers=[]),
        lambda raw: raw["model"].update(layers=[[0, 10**12, 4]]),
        lambda raw: raw["model"].update(layers=[[0, 32, 64]]),
        lambda raw: raw["model"].update(layers=[[10**30, 32, 4]]),
        lambda raw: raw["model"]["layers"].reverse(),
        lambda raw: raw["model"].update(layers="012"),
        lambda raw: raw.update(model=[]),
        lambda raw: raw.update(files=7),
    ],
)
def test_manifests_of_runs(run, change):
    edit_json(run / MANIFEST, change)
    with pytest.raises(StatsError, match=r"manifest of run cannot be read .*make the run again"):
        read_run(run)


def test_json_that_is_nested_too_deeply(run, tmp_path):
    (run / MANIFEST).write_text(DEEP)
    with pytest.raises(StatsError, match="nested too deeply"):
        read_run(run)
    (tmp_path / CONFIG_NAME).write_text(DEEP)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_config(tmp_path)
    (tmp_path / "rows.jsonl").write_text(DEEP)
    with pytest.raises(CorpusError, match="line 1 is not JSON: it is nested too deeply"):
        list(open_documents(tmp_path / "rows.jsonl", DEFAULT_FIELDS).read([0]))


def plan_text(**changes):
    raw = {"schema_version": 1, "model": {"name": "m", "identity": "0"}, "kept": {"0": [0]}}
    return json.dumps({**raw, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plan_text(kept={str(layer): [0] for layer in range(10_001)}), "names 10001 layers; no mo"),
        ('{"schema_version": 1, "kept": {"0": [1, 2], "0": [3, 4]}}', "holds 0 twice"),
        (plan_text(kept={"1" * 5001: [0]}), "layer '1111"),
        (plan_text(kept_neurons={"1" * 5001: {}}), "layer '1111"),
        (DEEP, "nested too deeply"),
    ],
    ids=["more layers than any model", "a layer twice", "digits", "digits of neurons", "deep"],
)
def test_plans(text, message):
    with pytest.raises(PlanError, match=message):
        plan_from_json(text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"sum": [[]], "sample": [], "count": [], "document": []},
            "a sample has no positions, or too many",
        ),
        ({"sum": [[1.0, float("inf")]]}, "its nll is inf, which is not in [0, inf]"),
        ({"sum": [[1.0, float("nan")]]}, "its nll is nan, which is not in [0, inf]"),
        ({"count": [1, 0]}, "a sample has no positions, or too many"),
        ({"count": [1, 10**30]}, "a sample has no positions, or too many"),
        ({"num_samples": None}, "num_samples is None"),
        ({"sum": [[1.7e308, 1.7e308]]}, "its sums are too large to add up"),
        ({"sum": [[1.0, 10**400]]}, f"sum has {10**400}"),
        ({"sum": [[1.0, {}]]}, "sum has {}"),
        ({"sum": [[1.0]]}, "it has not one sum for each measure and sample"),
        ({"measure": []}, "it has not one sum for each measure and sample"),
        ({"kept": [-1]}, "a layer keeps less than nothing"),
    ],
)
def test_measurements_that_cannot_be(tmp_path, change, problem):
    one = SampleSums(np.ones(2), np.ones(2, np.int64))
    where = SampleSet("text", "00", "float32", 1)
    line = Block("00", "00", (1,), where, 2, ("a", "b"), {"nll": one}, {}).to_line()
    raw = {**json.loads(line), **change}
    raw.pop(SEAL)
    body = json.dumps(raw, separators=(",", ":"))[:-1]
    seal = hashlib.sha256(body.encode()).hexdigest()
    (tmp_path / "measurements").mkdir()
    shard = tmp_path / "measurements" / "a.jsonl"
    shard.write_bytes(line + f'{body},"{SEAL}":"{seal}"}}\n'.encode())
    table = Measurements([tmp_path])
    assert len(table.blocks("00", "00", "float32")) == 1
    assert [str(problem) for problem in table.problems] == [
        f"Line 2 of the measurements a.jsonl cannot be read ({problem}); remove the line, and "
        "measure again what it was of."
    ]


ORDER = r"of the run .* in order; remove the run"
# Table -> what reads it, and what is made of it -> the words that matter.
TABLES = {
    **{
        (name, load): [
            (lambda table: table.iloc[::-1], ORDER),
            (lambda table: table.iloc[1:], ORDER),
            (lambda table: pd.concat([table, table]), ORDER),
            (lambda table: table.assign(layer=9), ORDER),
            (lambda table: table.iloc[:0], ORDER),
        ]
        for name, load in (("neurons", load_neuron_stats), ("shards", lambda run: stats_at(run, 2)))
    },
    # A column that not every run has.
    ("experts", load_expert_stats): [
        (lambda table: table.assign(damage=b"\xff"), "of the run .* is damaged or missing"),
        (lambda table: table.assign(damage="many"), "of the run .* is damaged or missing"),
    ],
    ("vectors", read_vectors): [
        (lambda table: table.iloc[1:], "vector_sum holds list"),
        (lambda table: table.assign(vector_sum=1.0), "not hold a vector for each expert"),
    ],
    ("weights", load_weight_stats): [
        (lambda table: table.drop(columns="numel"), "lacks the columns numel"),
    ],
}


@pytest.mark.parametrize(
    ("name", "load", "change", "message"),
    [(*reader, *row) for reader, rows in TABLES.items() for row in rows],
)
def test_tables_of_runs(tmp_path, name, load, change, message):
    (source,) = SHIPPED_STATS.glob("demo-weights-*" if name == "weights" else "demo-demo-math-*")
    run = shutil.copytree(source, tmp_path / "run")
    path = run / f"{name}.parquet"
    change(pd.read_parquet(path)).to_parquet(path)
    # As if it had been written so.
    edit_json(run / MANIFEST, lambda raw: raw["files"].update({path.name: file_sha256(path)}))
    with pytest.raises(StatsError, match=rf"{name}\.parquet .*{message}"):
        load(read_run(run))


@pytest.mark.parametrize(
    "change",
    [
        "request = '{'",
        "request = '7'",
        "partials = 7",
        "state = 'unheard of'",
        "done = 'many'",
        "result = '[1]'",
        "created_at = 'now'",
    ],
)
def test_rows_of_the_job_table(tmp_path, change):
    store = JobStore(tmp_path / "jobs.sqlite")
    job = store.submit("count", {"n": 1}, "title", "command", "me")
    with closing(sqlite3.connect(store.path)) as table, table:
        table.execute(f"UPDATE jobs SET {change}")  # noqa: S608
    with pytest.raises(JobError, match=f"The job '{job.id}' in the job table is damaged"):
        store.list()


CONFIG = {"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("olmoe", {"num_hidden_layers": 10**12}, "no model has more than 10000"),
        ("olmoe", {"num_experts": 10**9}, "no model has more than 65536"),
        ("jamba", {"expert_layer_offset": " "}, "expert_layer_offset = ' '; it must be a whole"),
        ("qwen3_moe", {"mlp_only_layers": 7}, "mlp_only_layers = 7; it must be a list"),
        ("deepseek", {"first_k_dense_replace": []}, ""),
        ("deepseek", {"first_k_dense_replace": [1]}, r"first_k_dense_replace = \[1\]"),
    ],
)
def test_numbers_of_configurations(model_type, change, message):
    config = {"model_type": model_type, **CONFIG, "n_routed_experts": 8, **change}
    family = family_of(config, {})
    if not message:
        assert family.layers(config)
        return
    with pytest.raises(CheckpointError, match=message):
        family.layers(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b\nc", r"names 'b\\nc', which is missing"),
        ("x" * 3000, "which is not a file in its folder"),
    ],
)
def test_names_of_shards_that_no_file_has(tmp_path, name, message):
    (tmp_path / CONFIG_NAME).write_text("{}")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_text_configuration_that_is_a_number():
    with pytest.raises(UnsupportedModelError, match="names no experts"):
        family_of({"model_type": "other", "text_config": 7}, {})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    model, out = load_model_index("demo"), tmp_path_factory.mktemp("export") / "out"
    export(model, keep_all(model), out)
    return (out / MANIFEST_NAME).read_text()


def renamed(where, name):
    def change(raw):
        if where == "shards":
            raw["shards"][0]["name"] = name
        else:
            raw["files"][name] = raw["files"].pop("config.json")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (renamed(where, name), "is no file of the export's own folder")
            for where in ("files", "shards")
            for name in ("../config.json", "/etc/hostname", "x" * 300, "a\nb", "")
        ),
        (lambda raw: raw["shards"][0].update(bytes=float("inf")), "is damaged"),
    ],
)
def test_manifests_of_exports(tmp_path, manifest, change, message):
    (tmp_path / MANIFEST_NAME).write_text(manifest)
    edit_json(tmp_path / MANIFEST_NAME, change)
    with pytest.raises(ExportError, match=message):
        read_manifest(tmp_path)
