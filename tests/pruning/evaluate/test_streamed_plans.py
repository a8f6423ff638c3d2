"""Many plans in one pass through the layers: the numbers of one plan at a time, bit for bit."""

import shutil
from dataclasses import replace

import pytest
from neuron_cases import neuron_plan
from nonuniform_cases import keeps_of, plan_of

from analysis.calibration.skeleton import StoredTensor
from analysis.drain import drain
from analysis.errors import StatsError, UnsupportedModelError
from analysis.model.opening import load_model_index
from families.built import HAND_ON_MORE
from families.configs import BY_NAME, DISTINCT
from families.tiny_models import tiny_model
from pruning.engine import changed_weights, streamed
from pruning.engine.run import run_evaluations
from pruning.engine.streamed import Branch, split
from pruning.plan.experts_per_token import possible_top_k
from pruning.plan.plan import fit_plan, keep_all

MEASURES = ("esap", "sap", "kl", "nll", "ppl")
MIXTRAL = BY_NAME["mixtral"]


@pytest.fixture
def ask_streamed(ask):
    return lambda described, plans, name, streams=True, **placed: ask(
        described, plans, MEASURES, name, corpora=2, stream_layers=streams, **placed
    )


def saved(path, case, **options):
    tiny_model(case).save_pretrained(path, **options)
    return load_model_index(str(path))


def plans_for(described, case):
    """The original, experts of all layers, of the last, neurons; in bits, a smaller top-k.

    Bits are those of all layers or of the last alone, and so is the smaller top-k.
    """
    plan = plan_of(described, case, keeps_of(case))
    last = replace(plan, kept={case.sparse[-1]: plan.kept[case.sparse[-1]]})
    bits = [
        replace(plan, bits="4"),
        replace(keep_all(described), layer_bits={case.sparse[-1]: "2"}),
    ]
    least = possible_top_k(described)[-1]
    of_all = dict.fromkeys(case.sparse, least)
    fewer = [
        replace(fit_plan(last, described), top_k={**of_all, **own})
        for own in (({}, dict.fromkeys(case.sparse[:-1], case.top_k)) if least else ())
    ]
    return [keep_all(described), plan, last, neuron_plan(described, case), *bits, *fewer]


def outcomes(records):
    return [(record.plan_digest, record.corpus["digest"], record.metrics) for record in records]


@pytest.mark.parametrize("case", DISTINCT)
def test_every_kind_of_family_gives_the_bits_of_one_plan_at_a_time(case, ask_streamed, tmp_path):
    """Whole layers, blocks of experts, and in two families that differ much blocks of one."""
    described = saved(tmp_path / "model", case)
    plans = plans_for(described, case)
    if case.model_type in HAND_ON_MORE:
        with pytest.raises(UnsupportedModelError, match="a layer hands on more than hidden states"):
            drain(run_evaluations(ask_streamed(described, plans, "together")))
        return
    alone = drain(run_evaluations(ask_streamed(described, plans, "alone", streams=False)))
    for at_once in (0, 3, 1) if case.name in ("deepseek_v3-groups", "gpt_oss") else (0, 3):
        asked = ask_streamed(described, plans, f"in {at_once}", experts_at_once=at_once)
        together = drain(run_evaluations(asked))
        assert outcomes(together) == outcomes(alone)
        assert [record.samples for record in together] == [record.samples for record in alone]
    assert not list(tmp_path.rglob("*.partial"))


def test_what_blocks_need_is_said_where_it_lacks(ask_streamed, tmp_path):
    described = saved(tmp_path / "model", MIXTRAL)
    asked = ask_streamed(described, [keep_all(described)], "stats", experts_at_once=2)
    wide = replace(asked, settings=replace(asked.settings, dtype="float64"))
    with pytest.raises(UnsupportedModelError, match=r"float64, .* choose another --dtype"):
        drain(run_evaluations(wide))


def test_a_pass_that_is_killed_after_its_last_result_leaves_nothing_behind(
    ask_streamed, tmp_path, monkeypatch
):
    def killed(_):
        raise KeyboardInterrupt

    described = saved(tmp_path / "model", MIXTRAL)
    asked = ask_streamed(described, [keep_all(described)], "stats")
    with monkeypatch.context() as patch:
        patch.setattr(streamed.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            drain(run_evaluations(asked))
    assert list((tmp_path / "stats").rglob("*.partial"))
    drain(run_evaluations(asked))
    assert not list((tmp_path / "stats").rglob("*.partial"))


def test_plans_part_where_they_first_differ():
    """Five plans, 0 the original: what they keep of three layers, and the slots by hand."""
    start = [Branch(0, (0, 1, 2, 3, 4))]
    first = split(start, [None, None, "a", "a", "b"])
    assert first == [
        (start[0], Branch(1, (0, 1))),
        (start[0], Branch(2, (2, 3))),
        (start[0], Branch(0, (4,))),  # the last one takes the slot that was read
    ]
    second = split([child for _, child in first], [None, "c", "d", "d", "d"])
    assert [(parent.slot, child) for parent, child in second] == [
        (1, Branch(3, (0,))),
        (1, Branch(1, (1,))),
        (2, Branch(2, (2, 3))),
        (0, Branch(0, (4,))),
    ]


def stop_in_layer_1(task):
    next(step for step in task if step.at == "layer 1")
    task.close()


@pytest.fixture
def mixtral(tmp_path):
    return saved(tmp_path / "model", MIXTRAL)


@pytest.mark.parametrize("at_once", [0, 4])
def test_each_weight_is_read_once_for_all_plans(mixtral, at_once, ask_streamed, monkeypatch):
    read, plans = [], plans_for(mixtral, MIXTRAL)
    whole = StoredTensor.read_into

    def noted(self, target):
        read.append(self.entry.name)
        whole(self, target)

    monkeypatch.setattr(StoredTensor, "read_into", noted)
    drain(run_evaluations(ask_streamed(mixtral, plans, "stats", experts_at_once=at_once)))
    assert sorted(read) == sorted(mixtral.checkpoint.tensors)


@pytest.mark.parametrize(("at_once", "blocks"), [(0, 1), (2, 3)])
def test_changed_weights_are_made_once_for_all_batches(
    mixtral, at_once, blocks, ask_streamed, monkeypatch
):
    made, change = [], changed_weights._changed
    monkeypatch.setattr(
        changed_weights, "_changed", lambda *given: made.append(given) or change(*given)
    )
    plans = [replace(keep_all(mixtral), bits="4")]
    asked = ask_streamed(mixtral, plans, "stats", experts_at_once=at_once)
    steps = []
    drain(run_evaluations(asked), steps.append)
    assert len(made) == blocks * len(mixtral.layers)
    said = [step.note for step in steps if "experts at once" in step.note]
    assert len(said) == bool(at_once)


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_interrupted_pass_resumes_after_its_last_layer(
    mixtral, ask_streamed, tmp_path, monkeypatch, on_disk
):
    monkeypatch.setattr(streamed, "_SAVE_EVERY_SECONDS", 0)
    place = {"hidden_states_dir": tmp_path / "hidden"} if on_disk else {}
    plans = plans_for(mixtral, MIXTRAL)
    once = drain(run_evaluations(ask_streamed(mixtral, plans, "once")))
    asked, steps = ask_streamed(mixtral, plans, "stopped", **place), []
    stop_in_layer_1(run_evaluations(asked))
    again = drain(run_evaluations(asked), steps.append)
    assert "resumed after 1 of 2 layers" in [step.note for step in steps]
    assert outcomes(again) == outcomes(once)
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.rglob("hidden-*"))


def test_results_that_were_saved_before_an_interruption_stay_and_the_rest_resumes(
    mixtral, ask_streamed, monkeypatch
):
    monkeypatch.setattr(streamed, "_SAVE_EVERY_SECONDS", 0)
    plans = plans_for(mixtral, MIXTRAL)
    once = drain(run_evaluations(ask_streamed(mixtral, plans, "once")))
    asked = ask_streamed(mixtral, plans, "stopped")
    task = run_evaluations(asked)
    next(step for step in task if len(asked.store.records()) == 2)
    task.close()
    steps = []
    assert outcomes(drain(run_evaluations(asked), steps.append)) == outcomes(once)
    assert "resumed after 2 of 2 layers" in [step.note for step in steps]
    assert not any(step.at == "layer 1" and step.done for step in steps)


def test_a_pass_whose_hidden_states_are_gone_starts_anew(mixtral, ask_streamed, tmp_path):
    plans = plans_for(mixtral, MIXTRAL)
    once = drain(run_evaluations(ask_streamed(mixtral, plans, "once")))
    asked = ask_streamed(mixtral, plans, "stats", hidden_states_dir=tmp_path / "hidden")
    stop_in_layer_1(run_evaluations(asked))
    shutil.rmtree(tmp_path / "hidden")
    assert outcomes(drain(run_evaluations(asked))) == outcomes(once)


def test_other_plans_start_anew(mixtral, ask_streamed, monkeypatch):
    monkeypatch.setattr(streamed, "_SAVE_EVERY_SECONDS", 0)
    plans = plans_for(mixtral, MIXTRAL)
    stop_in_layer_1(run_evaluations(ask_streamed(mixtral, plans[:2], "stats")))
    steps = []
    found = drain(run_evaluations(ask_streamed(mixtral, plans[2:], "stats")), steps.append)
    assert not any(step.note.startswith("resumed") for step in steps)
    wanted = drain(run_evaluations(ask_streamed(mixtral, plans[2:], "alone", streams=False)))
    assert outcomes(found) == outcomes(wanted)


def test_a_pass_that_runs_is_left_alone(mixtral, ask_streamed):
    task = run_evaluations(ask_streamed(mixtral, plans_for(mixtral, MIXTRAL), "stats"))
    next(step for step in task if step.at == "layer 0")
    with pytest.raises(StatsError, match="by another process; wait for it"):
        drain(run_evaluations(ask_streamed(mixtral, [keep_all(mixtral)], "stats")))
    task.close()
