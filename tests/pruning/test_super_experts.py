"""Plans and super experts: what is said when one goes, and what keeps it."""

import shutil
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from calibrations import calibrated

from analysis.drain import drain
from analysis.errors import PlanError, UserError
from analysis.files.content import file_sha256
from analysis.model.opening import load_model_index
from analysis.ranking.super_experts import super_experts
from analysis.stats.columns import LARGEST
from analysis.stats.store import StatsStore, read_run, stats_store
from builders import edit_json, tiny_checkpoint
from pruning.plan.plan import keep_all
from pruning.plan.super_experts import super_note
from pruning.planning.measured import order_of
from pruning.requests.plan import SpecRequest
from pruning.spec.base import validated
from pruning.spec.spec import PlanSpec, spec_of
from pruning.study import Study

CODE = {"corpora": ("demo-code",), "sparsity": "50%"}


@pytest.fixture(scope="module")
def demo():
    return load_model_index("demo")


def request(model="demo", **fields):
    return validated(SpecRequest, {"model": model, **fields})


def decided(model, store, **fields):
    asked = request(str(model.name), **fields)
    return drain(Study.of(asked, model, store).make(asked.plan))[0]


def said(decision):
    return [note for note in decision.notes if "super expert" in note]


def rewrite(run, change):
    """Change the table of a run as if it had been measured so."""
    file = run.path / "experts.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    files = {**run.manifest.files, file.name: file_sha256(file)}
    edit_json(run.path / "manifest.json", files=files)


def run_of(corpus):
    (run,) = (run for run in stats_store().runs() if run.manifest.corpus == corpus)
    return run


def seen(*corpora):
    """Experts of the demo's first layers, 4.5 of 6 by the rule, that got tokens of the corpora."""
    tables = [pd.read_parquet(run_of(corpus).path / "experts.parquet") for corpus in corpora]
    table = pd.concat(tables)
    return table[(table["layer"] <= 4) & (table["num_tokens"] > 0)]


def largest_of_demo(*corpora):
    """(layer, expert) with the largest output."""
    table = seen(*corpora).sort_values(LARGEST)
    return tuple(table[["layer", "expert"]].iloc[-1].tolist())


@pytest.fixture
def with_outlier(tmp_path):
    """Makes a run of demo-code with an expert at so many medians, and all others at most at 3."""
    median = seen("demo-code")[LARGEST].median()

    def made(place, medians):
        run = run_of("demo-code")
        shutil.copytree(run.path, tmp_path / run.path.name)

        def change(table):
            frame = table.to_pandas()
            is_outlier = (frame["layer"] == place[0]) & (frame["expert"] == place[1])
            outputs = frame[LARGEST].clip(upper=3 * median).mask(is_outlier, medians * median)
            return table.set_column(
                table.column_names.index(LARGEST), LARGEST, pa.array(outputs.tolist())
            )

        store = StatsStore(tmp_path)
        rewrite(store.runs()[0], change)
        return store

    return made


@pytest.mark.parametrize(("medians", "is_said"), [(9.9, False), (28.9, True)])
def test_a_plan_that_drops_one_far_above_the_others_says_so(demo, with_outlier, medians, is_said):
    usual = decided(demo, stats_store(), criterion="reap", **CODE)
    # The largest squares of those removed: no output is above their root.
    places = seen("demo-code").sort_values("g0_f2")[["layer", "expert"]].to_numpy().tolist()
    layer, lost = [(at, expert) for at, expert in places if expert not in usual.kept[at]][-1]
    store = with_outlier((layer, lost), medians)
    dropped = decided(demo, store, criterion="reap", **CODE)
    assert dropped.kept == usual.kept  # the ranking does not read the largest output
    if is_said:
        (note,) = said(dropped)
        assert "removes 1 of 1 super experts" in note
        assert f"{layer}:{lost} at 28.9; --keep-super keeps them" in note
    else:
        assert said(dropped) == []
    kept = decided(demo, store, criterion="reap", keep_super=True, **CODE)
    assert said(kept) == []
    assert kept.provenance.constraints == {"pinned": {str(layer): [lost]}}
    assert kept.provenance.spec["limits"] == {"keep_super": True}
    # One goes for the one that stays, and nothing else changes.
    assert [len(ids) for ids in kept.kept.values()] == [16] * 6
    assert set(kept.kept[layer]) - set(dropped.kept[layer]) == {lost}
    pinned = decided(demo, store, criterion="reap", pin={layer: [lost]}, **CODE)
    assert kept.digest == pinned.digest


def test_frequency_drops_that_of_the_demo_and_says_so(demo):
    layer, expert = largest_of_demo("demo-code")
    dropped = decided(demo, stats_store(), criterion="frequency", **CODE | {"sparsity": "75%"})
    assert expert not in dropped.kept[layer]
    (note,) = said(dropped)
    assert f"{layer}:{expert} at 29.5" in note  # 528.9 of a median of 17.95


@pytest.mark.parametrize(
    "fields",
    [
        # What reads no text takes the corpora for this alone.
        {"criterion": "magnitude", "corpora": ("demo-math",)},
        {"criterion": "random:1", "corpora": ("demo-math",), "schedule": "late"},
        # A blend sees the maximum of each expert over its corpora.
        {"criterion": "frequency", "corpora": ("demo-code", "demo-math", "demo-stories")},
        {"criterion": "heapr", "corpora": ("demo-code",), "granularity": "neuron"},
        {"criterion": "frequency", "corpora": ("demo-code",), "pin": {0: [3]}},
    ],
    ids=str,
)
def test_they_stay_whatever_ranks(demo, fields):
    layer, expert = largest_of_demo(*fields["corpora"])
    fields = {"sparsity": "75%", **fields}
    decision = decided(demo, stats_store(), keep_super=True, **fields)
    assert is_whole(decision, layer, expert)
    assert said(decision) == []
    if fields["criterion"] in ("magnitude", "random:1"):
        fields["corpora"] = ()
    without = decided(demo, stats_store(), **fields)
    assert not is_whole(without, layer, expert)


def is_whole(plan, layer, expert):
    is_kept = expert in plan.kept.get(layer, range(32))
    return is_kept and expert not in plan.kept_neurons.get(layer, {})


def test_the_order_of_sensitivity_is_that_with_the_experts_pinned(demo):
    layer, expert = largest_of_demo("demo-code")
    asked = request(criterion="frequency", keep_super=True, **CODE)
    selection = drain(Study.of(asked, demo, stats_store()).rank(asked.plan))
    pinned = asked.plan.changed(keep_super=False, pin={layer: [expert]})
    kept, named = (order_of(selection, spec).ref for spec in (asked.plan, pinned))
    assert kept == named
    assert kept.digest != order_of(selection, asked.plan.changed(keep_super=False)).ref.digest


def test_one_that_is_kept_cannot_be_removed(demo):
    layer, expert = largest_of_demo("demo-code")
    with pytest.raises(UserError, match="--keep-super keeps and --drop removes"):
        decided(
            demo, stats_store(), criterion="reap", keep_super=True, drop={layer: [expert]}, **CODE
        )


def test_specs_without_it_are_recorded_as_before():
    assert "keep_super" not in str(spec_of(criterion="reap", sparsity="50%").to_json())
    spec = spec_of(criterion="reap", sparsity="50%", keep_super=True)
    assert PlanSpec.model_validate(spec.to_json()) == spec


def test_runs_of_earlier_versions_say_that_nothing_is_known(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    model = load_model_index(str(tmp_path / "model"))
    store = StatsStore(tmp_path / "stats")
    run = calibrated(model, store)
    rewrite(run, lambda table: table.drop_columns(LARGEST))  # as versions without it wrote it
    assert super_experts([read_run(run.path)]).unknown == (run.manifest.run_id,)
    model = replace(model, name=str(tmp_path / "model"))
    fields = {"criterion": "reap", "sparsity": "50%"}
    decision = decided(model, store, **fields)
    (note,) = said(decision)
    assert f"is not known: {run.manifest.run_id} is of an earlier version" in note
    with pytest.raises(PlanError, match="does not have; `moeprune runs remove` it"):
        decided(model, store, keep_super=True, **fields)
    assert super_note(keep_all(model), model, StatsStore(tmp_path / "none")) is None
