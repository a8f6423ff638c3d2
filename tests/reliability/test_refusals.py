"""What fuzzing found, one plain case each: a damaged file ends in one line that says so."""

import json
import shutil
import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from exports import export

from analysis.checkpoint import CONFIG_NAME, INDEX_NAME, open_checkpoint, read_config
from analysis.content import file_sha256
from analysis.corpora.documents import DEFAULT_FIELDS
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
from analysis.families import family_of
from analysis.json_text import parse_json
from analysis.model import load_model_index
from analysis.stats.neurons import load_neuron_stats
from analysis.stats.shards import stats_at
from analysis.stats.store import (
    MANIFEST,
    SHIPPED_STATS,
    load_expert_stats,
    load_weight_stats,
    read_run,
    read_vectors,
)
from app.jobs.store import JobStore
from pruning.plan import keep_all, plan_from_json
from pruning.search.run import open_log
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest

DEEP = "[" * 200_000 + "]" * 200_000


@pytest.fixture
def run(tmp_path):
    """A copy of a shipped calibration run."""
    (source,) = SHIPPED_STATS.glob("demo-demo-math-*")
    return shutil.copytree(source, tmp_path / "run")


def edit_json(path, change):
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_text(json.dumps(raw))


def edit_table(path, change):
    """Change a table of a run, and its hash in the manifest."""
    change(pd.read_parquet(path)).to_parquet(path)
    edit_json(
        path.with_name(MANIFEST), lambda raw: raw["files"].update({path.name: file_sha256(path)})
    )


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
    with pytest.raises(PlanError, match="nested too deeply"):
        plan_from_json(DEEP)
    (tmp_path / CONFIG_NAME).write_text(DEEP)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_config(tmp_path)
    (tmp_path / "rows.jsonl").write_text(DEEP)
    with pytest.raises(CorpusError, match="line 1 is not JSON: it is nested too deeply"):
        list(open_documents(tmp_path / "rows.jsonl", DEFAULT_FIELDS).read([0]))


def test_a_plan_of_more_layers_than_any_model():
    raw = {"schema_version": 1, "model": {"name": "m", "identity": "0"}}
    raw |= {"kept": {str(layer): [0] for layer in range(10_001)}}
    with pytest.raises(PlanError, match="names 10001 layers; no model has more than 10000"):
        plan_from_json(json.dumps(raw))


def test_a_plan_that_names_a_layer_twice():
    with pytest.raises(PlanError, match="holds 0 twice"):
        plan_from_json('{"schema_version": 1, "kept": {"0": [1, 2], "0": [3, 4]}}')


@pytest.mark.parametrize("where", ["kept", "kept_neurons"])
def test_a_plan_that_names_a_layer_by_more_digits_than_are_read(where):
    raw = {"schema_version": 1, "model": {"name": "m", "identity": "0"}, "kept": {"0": [0]}}
    raw |= {where: {"1" * 5001: [0] if where == "kept" else {}}}
    with pytest.raises(PlanError, match="layer '1111"):
        plan_from_json(json.dumps(raw))


@pytest.mark.parametrize("samples", [[], [1.7e308, 1.7e308], [float("nan")]])
def test_a_log_of_a_search_whose_samples_have_no_mean(tmp_path, samples):
    path = tmp_path / "search.jsonl"
    with open_log(path, {"name": "test"}):
        pass
    line = {"removed": [1], "samples": samples, "fitness": 1.0, "layers": 1, "seconds": 0.0}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.raises(PlanError, match="is damaged in line 2"), open_log(path, {"name": "test"}):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.iloc[::-1],
        lambda table: table.iloc[1:],
        lambda table: pd.concat([table, table]),
        lambda table: table.assign(layer=9),
        lambda table: table.iloc[:0],
    ],
)
def test_tables_with_other_rows(run, change):
    for name, load in (
        ("neurons.parquet", load_neuron_stats),
        ("shards.parquet", lambda run: stats_at(run, 2)),
    ):
        edit_table(run / name, change)
        with pytest.raises(StatsError, match=rf"{name} of the run .* in order; remove the run"):
            load(read_run(run))


@pytest.mark.parametrize("value", [b"\xff", "many"])
def test_a_column_that_not_every_run_has(run, value):
    edit_table(run / "experts.parquet", lambda table: table.assign(damage=value))
    with pytest.raises(StatsError, match=r"experts\.parquet of the run .* is damaged or missing"):
        load_expert_stats(read_run(run))


def test_vectors_that_are_too_few_or_no_vectors(run):
    for change in (lambda table: table.iloc[1:], lambda table: table.assign(vector_sum=1.0)):
        edit_table(run / "vectors.parquet", change)
        with pytest.raises(
            StatsError, match=r"not hold a vector for each expert|vector_sum holds list"
        ):
            read_vectors(read_run(run))


def test_weight_statistics_without_a_column(tmp_path):
    (source,) = SHIPPED_STATS.glob("demo-weights-*")
    run = shutil.copytree(source, tmp_path / "run")
    edit_table(run / "weights.parquet", lambda table: table.drop(columns="numel"))
    with pytest.raises(StatsError, match="lacks the columns numel"):
        load_weight_stats(read_run(run))


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


@pytest.mark.parametrize("text", ['{"a": ["\\ud800"]}', b'{"\\uDFFF": 1}'])
def test_half_of_a_surrogate_pair(text):
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        parse_json(text)
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["\N{GRINNING FACE}", "\\ud800"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """The text of an export's manifest."""
    model, out = load_model_index("demo"), tmp_path_factory.mktemp("export") / "out"
    export(model, keep_all(model), out)
    return (out / MANIFEST_NAME).read_text()


@pytest.mark.parametrize("name", ["../config.json", "/etc/hostname", "x" * 300, "a\nb", ""])
@pytest.mark.parametrize("where", ["files", "shards"])
def test_files_of_an_export_that_lie_elsewhere(tmp_path, manifest, where, name):
    raw = json.loads(manifest)
    if where == "shards":
        raw["shards"][0]["name"] = name
    else:
        raw["files"][name] = raw["files"].pop("config.json")
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(raw))
    with pytest.raises(ExportError, match="is no file of the export's own folder"):
        read_manifest(tmp_path)


def test_numbers_in_the_manifest_of_an_export_that_are_infinite(tmp_path, manifest):
    raw = json.loads(manifest)
    raw["shards"][0]["bytes"] = float("inf")
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(raw))
    with pytest.raises(ExportError, match="is damaged"):
        read_manifest(tmp_path)
