"""The cache: what is refused, what damage is seen, merges and blends against plain sums."""

import os
import shutil
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file as save_safetensors

from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import StatsError
from analysis.files.content import file_sha256
from analysis.files.naming import digest_of, run_name
from analysis.files.shipped import DEMO_CHECKPOINT, SHIPPED_VARIABLE
from analysis.stats.blend import blend
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST, MOMENT_COLUMNS
from analysis.stats.manifest import EXPERTS, VECTORS, Part
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats, load_weight_stats, read_vectors, verify_run
from analysis.stats.store import StatsStore, read_run, stats_store
from analysis.stats.writing import save_weight_stats
from builders import edit_json, set_byte
from builders.statistics import grid_of, random_stats, run_manifest

SUMS = list(MOMENT_COLUMNS)


def edit_manifest(run, **changes):
    edit_json(run.path / "manifest.json", **changes)


def weight_table(counts=(5, 3)):
    table = grid_of(*counts).index()
    table = table.merge(pd.DataFrame({"projection": ["gate", "up", "down"]}), how="cross")
    return table.assign(l1=1.0 + table["expert"], l2_squared=2.0, numel=12)


@pytest.fixture
def weights(tmp_path):
    """A run of weight statistics, stored with those of `save_run`."""
    manifest = run_manifest(kind="weights", corpora=())
    return save_weight_stats(tmp_path / "stats", manifest, weight_table())


def test_a_run_is_read_as_it_was_written(save_run):
    run = save_run(4)
    again = read_run(run.path)
    assert again == run
    stats = load_expert_stats(again)
    assert list(stats.table.columns) == [*EXPERT_COLUMNS, "damage"]
    assert dict(stats.table.dtypes.astype(str)) == {**EXPERT_COLUMNS, "damage": "float64"}
    written = random_stats(4).table[[*EXPERT_COLUMNS, "damage"]]
    pd.testing.assert_frame_equal(stats.table, written, check_exact=True)
    vectors = read_vectors(again)
    assert vectors.dtype == np.float64
    assert (vectors**2).sum(axis=1).tolist() == stats.table["vector_sum_sq"].tolist()
    assert stats.layers == run.manifest.model.layers
    assert run.manifest.num_tokens == 40


def test_weight_statistics_are_read_as_they_were_written(weights):
    verify_run(weights)
    stats = load_weight_stats(read_run(weights.path))
    pd.testing.assert_frame_equal(stats.table, weight_table(), check_dtype=False)
    whole = stats.per_expert()
    assert whole[["l1", "l2_squared", "numel"]].iloc[1].tolist() == [6.0, 6.0, 36.0]
    with pytest.raises(StatsError, match="weight statistics do not cover every expert"):
        replace(stats, table=stats.table.query("expert != 2"))
    (weights.path / "weights.parquet").write_bytes(b"PAR1")
    with pytest.raises(StatsError, match="has changed"):
        verify_run(weights)


def test_the_name_of_a_run_is_safe_and_ends_in_its_digest():
    digest = digest_of({"a": 1})
    assert run_name("My Model", "c4", digest=digest) == f"my-model-c4-{digest[:8]}"
    assert run_name("../..", "x/y", digest=digest) == f"x-y-{digest[:8]}"
    assert len(run_name("m" * 300, digest=digest)) == 80 + 1 + 8
    assert digest == digest_of({"a": 1})
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_a_second_save_of_the_same_run_keeps_the_first(save_run):
    first = save_run(4)
    stamp = (first.path / "manifest.json").stat().st_mtime_ns
    assert save_run(4) == first
    assert (first.path / "manifest.json").stat().st_mtime_ns == stamp
    assert not list(first.path.parent.glob("*.partial"))


def test_runs_are_listed_by_name_and_partial_ones_are_not(save_run, tmp_path):
    # A corpus may be called partial.
    corpora = ("c", "a", "my.partial.text")
    names = [save_run(i, corpora=(name,)).manifest.run_id for i, name in enumerate(corpora)]
    stats = tmp_path / "stats"
    shutil.copytree(stats / names[0], stats / "tiny-z-00000000.partial")
    (stats / "tiny-empty-00000000").mkdir()
    (stats / ".lock").write_text("")
    found = [run.manifest.run_id for run in StatsStore(stats).runs()]
    assert found == sorted(names)


def test_the_own_folder_is_written_to_and_the_shipped_one_read_first(save_run, tmp_path):
    own, ships = tmp_path / "own", tmp_path / "ships"
    shadowed = save_run(1, corpora=("a",), parent=own)
    mine = save_run(2, corpora=("b",), parent=own)
    shipped = save_run(1, corpora=("a",), parent=ships)
    assert shadowed.manifest.run_id == shipped.manifest.run_id
    store = StatsStore(own, ships)
    assert store.target == own
    found = [(run.path, run.is_shipped) for run in store.runs()]
    assert found == [(shipped.path, True), (mine.path, False)]
    with pytest.raises(StatsError, match="ships with the program and is not removed"):
        store.remove(store.runs()[0])
    store.remove(store.runs()[1])
    assert [run.path for run in store.runs()] == [shipped.path]
    assert StatsStore(own, tmp_path / "nowhere").runs() == [shadowed]


@pytest.mark.parametrize("place", [".", "evaluations", "../ships/new"])
def test_a_store_never_writes_where_the_shipped_records_lie(tmp_path, monkeypatch, place):
    (tmp_path / "ships").mkdir()
    monkeypatch.setenv(SHIPPED_VARIABLE, str(tmp_path / "ships"))
    with pytest.raises(StatsError, match="ships with the program"):
        stats_store(tmp_path / "ships" / place)
    (tmp_path / "link").symlink_to(tmp_path / "ships")
    with pytest.raises(StatsError, match="ships with the program"):
        stats_store(tmp_path / "link")
    assert stats_store(tmp_path).directories == (tmp_path, tmp_path / "ships")


@pytest.mark.parametrize("content", ["{", "[]", "5", "{}", '{"schema_version": 1}', "\x00"])
def test_unreadable_runs_are_reported_and_left_out(save_run, tmp_path, content):
    good, bad = save_run(1, corpora=("a",)), save_run(2, corpora=("b",))
    (bad.path / "manifest.json").write_text(content)
    problems = []
    assert StatsStore(tmp_path / "stats").runs(problems.append) == [good]
    (problem,) = problems
    assert bad.path.name in str(problem)
    assert "\n" not in str(problem)
    assert StatsStore(tmp_path / "stats").runs() == [good]


def test_a_manifest_is_parsed_again_when_its_file_changes(save_run):
    run = save_run(0)
    file, long_ago = run.path / "manifest.json", 1_000_000_000
    os.utime(file, (long_ago, long_ago))
    known = read_run(run.path).manifest
    assert known == run.manifest
    assert read_run(run.path).manifest is known
    raw = file.read_text()
    changed = raw.replace(run.manifest.digest, run.manifest.digest[::-1])
    # In place, of the same length and at the same second: the clock's fine steps tell.
    file.write_text(changed)
    assert read_run(run.path).manifest.digest == run.manifest.digest[::-1]
    os.utime(file, ns=(long_ago * 10**9, long_ago * 10**9 + 1))
    assert read_run(run.path).manifest.digest == run.manifest.digest[::-1]
    # Written twice within one tick: what was written just now is not remembered.
    file.write_text(raw)
    state = file.stat()
    assert read_run(run.path).manifest.digest == run.manifest.digest
    file.write_text(changed)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert read_run(run.path).manifest.digest == run.manifest.digest[::-1]


def test_a_run_is_found_by_a_unique_beginning(save_run, tmp_path):
    a, b = save_run(1, corpora=("code",)), save_run(2, corpora=("cooking",))
    store = StatsStore(tmp_path / "stats")
    assert store.get("tiny-cod") == a
    assert store.get(b.manifest.run_id) == b
    assert store.get(a.manifest.run_id.rpartition("-")[2][:6]).manifest.run_id == a.manifest.run_id
    with pytest.raises(StatsError, match=rf"'tiny-co' is not unique.*{a.manifest.run_id}, "):
        store.get("tiny-co")
    with pytest.raises(StatsError, match=rf"'math' is unknown. Runs: {a.manifest.run_id}"):
        store.get("math")
    with pytest.raises(StatsError, match="Runs: none"):
        StatsStore(tmp_path / "nowhere").get("x")
    # A whole name wins over a longer one.
    longer = a.path.with_name(a.path.name + "-more")
    shutil.copytree(a.path, longer)
    edit_manifest(read_run(longer), run_id=longer.name)
    assert store.get(a.manifest.run_id) == a


def test_runs_of_a_model_are_those_of_its_identity_and_kind(save_run, weights, tmp_path):
    mine = save_run(1)
    save_run(2, identity="other")
    store = StatsStore(tmp_path / "stats")
    assert store.of_model("tiny", "routed") == [mine]
    assert store.of_model("tiny", "weights") == [weights]
    assert store.of_model("unknown", "routed") == []


def test_a_removed_run_is_gone_and_what_an_interruption_left_of_it(save_run, tmp_path):
    run, other = save_run(1, corpora=("a",)), save_run(2, corpora=("b",))
    run.path.with_name(run.path.name + ".partial").mkdir()
    store = StatsStore(tmp_path / "stats")
    store.remove(run)
    assert store.runs() == [other]
    assert [path.name for path in store.target.iterdir()] == [other.path.name]


def replaced(change):
    """Another table of experts, which the manifest knows."""

    def damage(run):
        file = run.path / EXPERTS
        pq.write_table(change(pq.read_table(file)), file)
        edit_manifest(run, files={**run.manifest.files, EXPERTS: file_sha256(file)})

    return damage


DAMAGE = {
    "a changed byte": (lambda run: set_byte(run.path / VECTORS, 50), "vectors.*has changed"),
    "a cut file": (lambda run: (run.path / EXPERTS).write_bytes(b"PAR1"), "has changed"),
    "no file": (lambda run: (run.path / VECTORS).unlink(), r"vectors\.parquet is missing"),
    "no column": (replaced(lambda table: table.drop_columns(["g0_f2"])), "lacks the columns g0_f2"),
    "no row": (replaced(lambda table: table.slice(len(table))), "do not cover every expert"),
    "no expert": (replaced(lambda table: table.slice(1)), "do not cover every expert"),
}


def of_first(column, value):
    """A change of a column's first number."""

    def change(table):
        frame = table.to_pandas()
        frame.loc[0, column] = value(frame.loc[0, column])
        return type(table).from_pandas(frame, preserve_index=False)

    return change


@pytest.mark.parametrize("name", [EXPERTS, VECTORS])
def test_no_number_is_read_from_a_file_that_changed(save_run, name):
    run, read = save_run(4), {EXPERTS: load_expert_stats, VECTORS: read_vectors}
    file, read_changed, (read_other,) = run.path / name, read.pop(name), read.values()
    read_changed(run)
    pq.write_table(pq.read_table(file), file, compression="none")  # equal numbers, other bytes
    with pytest.raises(StatsError, match=rf"{name} of the run .* has changed since it was written"):
        read_changed(run)
    read_other(run)
    file.write_bytes(b"junk")
    with pytest.raises(StatsError, match=rf"{name} .*runs remove {run.path.name}"):
        read_changed(run)


IMPOSSIBLE = {
    "a negative count": ("num_tokens", lambda _: -1, "num_tokens holds a negative number"),
    "a count beyond all tokens": ("num_tokens", lambda _: 2**62, "num_tokens says 4,611,686,"),
    "a negative norm": ("g0_f1", lambda _: -5.0, "g0_f1 holds a negative number"),
    "a negative gate": ("renormalized_g1_f0", lambda _: -0.5, "renormalized_g1_f0 holds a neg"),
    "an output beyond its norm": (LARGEST, lambda _: 1e6, "the squares in g0_f2 rule out"),
    "a norm a thousand times": ("g0_f1", lambda value: 1000 * value, "its squares in g0_f2 rule"),
}


@pytest.mark.parametrize(("column", "value", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_sums_that_cannot_be_are_named(save_run, column, value, message):
    run = save_run(4)
    replaced(of_first(column, value))(run)
    with pytest.raises(StatsError, match=rf"{run.manifest.run_id} is damaged.*{message}"):
        load_expert_stats(read_run(run.path))


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_verify_sees_damage(save_run, tmp_path, damage, message):
    run = save_run(1)
    verify_run(run)
    damage(run)
    with pytest.raises(StatsError, match=message) as caught:
        verify_run(read_run(run.path))
    assert "\n" not in str(caught.value)


def test_a_merge_equals_the_plain_sums(save_run, tmp_path):
    runs = [save_run(i, corpora=(name,)) for i, name in enumerate(("prose", "code", "math"))]
    merged = merge_runs(runs, tmp_path / "stats")
    tables = [load_expert_stats(run).table for run in runs]
    found = load_expert_stats(merged).table
    for column in SUMS:
        # One after the other: the sum of Python 3.12 makes up for rounding.
        expected = [a + b + c for a, b, c in zip(*(t[column] for t in tables), strict=True)]
        assert found[column].tolist() == expected, column
    assert found["num_tokens"].dtype == np.int64
    assert found[LARGEST].tolist() == np.max([t[LARGEST] for t in tables], axis=0).tolist()
    vectors = read_vectors(runs[0]) + read_vectors(runs[1]) + read_vectors(runs[2])
    assert np.array_equal(read_vectors(merged), vectors)
    # Not the sum of the squares: the square of the sum.
    assert found["vector_sum_sq"].tolist() == pytest.approx((vectors**2).sum(axis=1).tolist())
    assert merged.manifest.corpus == "prose+code+math"
    assert merged.manifest.num_tokens == 120
    assert merged.manifest.made["merged_from"] == [run.manifest.run_id for run in runs]
    assert merge_runs(runs[::-1], tmp_path / "stats").path == merged.path
    verify_run(merged)


def test_runs_of_earlier_versions_have_no_largest_output(save_run, tmp_path):
    runs = [save_run(i, corpora=(name,)) for i, name in enumerate(("prose", "code"))]
    replaced(lambda table: table.drop_columns(LARGEST))(runs[0])
    old = read_run(runs[0].path)
    assert LARGEST not in load_expert_stats(old).table
    assert LARGEST in load_expert_stats(runs[1]).table
    merged = load_expert_stats(merge_runs([old, runs[1]], tmp_path / "stats")).table
    assert list(merged.columns) == list(load_expert_stats(old).table.columns)


def tokens_of(table, layer=3):
    return table["num_tokens"][table["layer"] == layer].sum() / 2  # top_k is 2


def test_a_blend_equals_the_weighted_sums_per_token(save_run):
    runs = [save_run(i, corpora=(name,)) for i, name in enumerate(("prose", "code"))]
    weights = (0.5, 2.0)
    blended = blend([Part(*pair) for pair in zip(runs, weights, strict=True)])
    found = blended.table
    assert blended.manifest.corpus == "prose+code"
    tables = [load_expert_stats(run).table for run in runs]
    factors = [weight / tokens_of(table) for weight, table in zip(weights, tables, strict=True)]
    a, b = (factor / max(factors) for factor in factors)  # no corpus counts more than once
    for column in SUMS:
        expected = a * tables[0][column] + b * tables[1][column]
        assert found[column].tolist() == pytest.approx(expected.tolist(), rel=1e-14), column
    vectors = a * read_vectors(runs[0]) + b * read_vectors(runs[1])
    expected = (vectors**2).sum(axis=1).tolist()
    assert found["vector_sum_sq"].tolist() == pytest.approx(expected, rel=1e-13)


def test_the_shipped_statistics_are_of_the_shipped_model():
    store = StatsStore(Path(__file__).parents[2] / "cached_stats")
    problems = []
    runs = store.runs(problems.append)
    assert problems == []
    identity = open_checkpoint(DEMO_CHECKPOINT).identity
    corpora = {run.manifest.corpus for run in store.of_model(identity, "routed")}
    assert {"demo-code", "demo-stories", "demo-math"} <= corpora
    for run in runs:
        verify_run(run)


def test_another_schema_or_no_manifest_is_refused(save_run, tmp_path):
    run = save_run(1)
    for version in (0, 2):
        edit_manifest(run, schema_version=version)
        with pytest.raises(StatsError, match=rf"schema {version}, .* reads 1; remake .*calibrate"):
            read_run(run.path)
    with pytest.raises(StatsError, match=r"has no manifest\.json; it is not a finished run"):
        read_run(tmp_path)


def test_leftovers_of_an_interrupted_save_are_replaced(save_run, tmp_path):
    # Under the run's own .partial name, as a killed calibration leaves them.
    partial = tmp_path / "stats" / (run_manifest().run_id + ".partial")
    partial.mkdir(parents=True)
    (partial / "experts.parquet").write_bytes(b"half")
    save_safetensors({"moments.3": np.zeros(2)}, partial / "state.safetensors")
    run = save_run(1)
    verify_run(run)
    assert len(list(run.path.iterdir())) == 3
    assert not partial.exists()


def test_what_cannot_be_merged_is_refused(save_run, weights):
    run, parent = save_run(1), weights.path.parent
    half = save_run(3, corpora=("c",), dtype="bfloat16")
    other = save_run(2, corpora=("b",), identity="other")
    before = {path.name for path in parent.iterdir()}
    for runs, message in (
        ([run], "needs at least two"),
        ([run, other], "of different models"),
        ([run, half], "computed in float32, .* in bfloat16"),
        ([run, run], "The tokens of prose are in two of the runs"),
        ([run, weights], "Only calibration runs can be added"),
    ):
        with pytest.raises(StatsError, match=message):
            merge_runs(runs, parent)
    assert {path.name for path in parent.iterdir()} == before
    merged = merge_runs([run, save_run(4, corpora=("d",))], parent)
    with pytest.raises(StatsError, match="use them once"):
        merge_runs([merged, run], parent)


def test_a_blend_of_one_run_is_that_run(save_run):
    run = save_run(1)
    alone = blend([Part(run, 5.0)])
    pd.testing.assert_frame_equal(alone.table, load_expert_stats(run).table)
    assert alone.manifest == run.manifest


def test_what_cannot_be_blended_is_refused(save_run):
    run = save_run(1)
    other = save_run(2, corpora=("b",), identity="other")
    half = save_run(3, corpora=("c",), dtype="bfloat16")
    for parts, message in (
        ([], "name at least one corpus"),
        ([Part(run), Part(other)], "statistics of different models"),
        ([Part(run), Part(run, 2.0)], "The tokens of prose are in two of the runs"),
        ([Part(run), Part(half)], "in float32, .* in bfloat16"),
        *(
            ([Part(run, weight)], f"The weight {weight} of prose")
            for weight in (0.0, -1.0, nan, inf)
        ),
    ):
        with pytest.raises(StatsError, match=message):
            blend(parts)
