"""Plans and super experts: what is said when one goes, and what keeps it.

The demo's runs mark one expert each: 0:20 on demo-code, 4:21 on demo-math, 1:8 on demo-prose.
"""

import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from calibrations import calibrated

from analysis.content import file_sha256
from analysis.drain import drain
from analysis.errors import PlanError, UserError
from analysis.model import load_model_index
from analysis.ranking.super_experts import super_experts
from analysis.stats.store import StatsStore, read_run, stats_store
from analysis.stats.tables import LARGEST
from builders import edit_json, tiny_checkpoint
from pruning.plan import keep_all
from pruning.planning.make import plan_from_stats
from pruning.planning.measured import order_of
from pruning.planning.ranking import select_measured
from pruning.planning.super_experts import super_note
from pruning.requests.base import validated
from pruning.requests.plan import SpecRequest
from pruning.spec import PlanSpec, spec_of

CODE = {"corpora": ("demo-code",), "sparsity": "50%"}


@pytest.fixture(scope="module")
def demo():
    return load_model_index("demo")


def request(model="demo", **fields):
    return validated(SpecRequest, {"model": model, **fields})


def decided(model, store, **fields):
    return drain(plan_from_stats(request(str(model.name), **fields), model, store))[0]


def said(decision):
    return [note for note in decision.notes if "super expert" in note]


def rewrite(run, change):
    """Change the table of a run as if it had been measured so."""
    file = run.path / "experts.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    files = {**run.manifest.files, file.name: file_sha256(file)}
    edit_json(run.path / "manifest.json", files=files)


def test_a_plan_that_drops_one_far_above_the_others_says_so(demo, tmp_path):
    (run,) = (r for r in stats_store().runs() if r.manifest.run_id.startswith("demo-demo-code"))
    shutil.copytree(run.path, tmp_path / run.path.name)
    store = StatsStore(tmp_path)

    def times_ten(table):
        frame = table.to_pandas()
        frame.loc[(frame["layer"] == 0) & (frame["expert"] == 20), LARGEST] *= 10
        return table.set_column(
            table.column_names.index(LARGEST), LARGEST, pa.array(frame[LARGEST])
        )

    (copy,) = store.runs()
    rewrite(copy, times_ten)
    dropped = decided(demo, store, criterion="reap", **CODE)
    assert 20 not in dropped.plan.kept[0]
    (note,) = said(dropped)
    assert "removes 1 of 1 super experts" in note
    assert "0:20 at 28.9; --keep-super keeps them" in note  # ten times 2.89
    assert said(decided(demo, store, criterion="reap", keep_super=True, **CODE)) == []


def test_those_of_the_demo_are_ordinary_and_stay_if_asked(demo):
    dropped = decided(demo, stats_store(), criterion="reap", **CODE)
    assert 20 not in dropped.plan.kept[0]
    assert said(dropped) == []  # at 2.89 median experts
    kept = decided(demo, stats_store(), criterion="reap", keep_super=True, **CODE)
    assert 20 in kept.plan.kept[0]
    assert said(kept) == []
    assert kept.plan.provenance.constraints == {"pinned": {"0": [20]}}
    assert kept.plan.provenance.spec["limits"] == {"keep_super": True}
    # One goes for the one that stays, and nothing else changes.
    assert [len(ids) for ids in kept.plan.kept.values()] == [16] * 6
    assert len(set(kept.plan.kept[0]) - set(dropped.plan.kept[0])) == 1
    pinned = decided(demo, stats_store(), criterion="reap", pin={0: [20]}, **CODE)
    assert kept.plan.digest == pinned.plan.digest


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        # What reads no text takes the corpora for this alone.
        ({"criterion": "aimer", "corpora": ("demo-math",)}, {4: 21}),
        ({"criterion": "random:1", "corpora": ("demo-math",), "schedule": "late"}, {4: 21}),
        # A blend sees the maximum of each expert over its corpora: 4:21 outdoes the other two.
        ({"criterion": "reap", "corpora": ("demo-code", "demo-math", "demo-prose")}, {4: 21}),
        ({"criterion": "heapr", "corpora": ("demo-code",), "granularity": "neuron"}, {0: 20}),
        ({"criterion": "reap", "corpora": ("demo-code",), "pin": {0: [3]}}, {0: 20}),
    ],
    ids=str,
)
def test_they_stay_whatever_ranks(demo, fields, places):
    decision = decided(demo, stats_store(), sparsity="75%", keep_super=True, **fields)
    for layer, expert in places.items():
        assert expert in decision.plan.kept.get(layer, range(32))
        assert expert not in decision.plan.kept_neurons.get(layer, {})
    assert said(decision) == []


def test_the_order_of_sensitivity_is_that_with_the_experts_pinned(demo):
    asked = request(criterion="reap", keep_super=True, **CODE)
    selection = drain(select_measured(asked, demo, stats_store()))
    pinned = asked.plan.changed(keep_super=False, pin={0: [20]})
    kept, named = (order_of(selection, spec).ref for spec in (asked.plan, pinned))
    assert kept == named
    assert kept.digest != order_of(selection, asked.plan.changed(keep_super=False)).ref.digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"criterion": "reap", "drop": {0: [20]}}, "--keep-super keeps and --drop removes"),
        ({"criterion": "neuron-norms", "granularity": "neuron"}, "reads no calibration, which"),
        ({"criterion": "", "corpora": (), "config_only": True}, "--keep-super chooses experts"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(demo, fields, message):
    with pytest.raises(UserError, match=message):
        decided(demo, stats_store(), keep_super=True, **CODE | fields)


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
