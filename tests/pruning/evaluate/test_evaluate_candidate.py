"""Evaluation of masked candidates against plain forwards, in float64 and written out."""

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from neuron_cases import neuron_plan, zeroed
from nonuniform_cases import keeps_of, plan_of

from analysis.drain import drain
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from builders.tokens import answers
from families.configs import BY_NAME, SOURCES
from families.physical import physically_pruned
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.engine.full_side import OutputHead, run_full
from pruning.measures import positions
from pruning.measures.samples import make_samples
from pruning.plan.plan import PruningPlan

CASE = BY_NAME["olmoe"]
ALL = MeasureSettings(("esap", "sap", "kl", "nll", "ppl"))


def plan_for(case, kind="experts"):
    # Masking does not look at what a plan says of its model.
    if kind == "neurons":
        return neuron_plan(ModelRef("tiny", "00" * 32), case)
    return plan_of(ModelRef("tiny", "00" * 32), case, keeps_of(case))


def plain_scores(full, pruned, sequences):
    """esap, kl, nll of every sample from two plain forwards, sample by sample, in float64."""
    rows = {"esap": [], "kl": [], "nll": [], "full_nll": []}
    for ids, counted in zip(sequences.rows, sequences.counted, strict=True):
        with torch.no_grad():
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            p, q = (
                model(input_ids=tokens, use_cache=False).logits[0].double().softmax(-1)
                for model in (full, pruned)
            )
        at = [t for t in range(len(ids) - 1) if counted[t + 1]]
        rows["esap"].append([float(torch.minimum(p[t], q[t]).sum()) for t in at])
        rows["kl"].append([float((p[t] * (p[t] / q[t]).log()).sum()) for t in at])
        rows["nll"].append([-float(q[t, ids[t + 1]].log()) for t in at])
        rows["full_nll"].append([-float(p[t, ids[t + 1]].log()) for t in at])
    return rows


# Logits that are scaled, and a router with a bias; every head is tested below.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("granitemoe", "experts"),
        ("gpt_oss", "experts"),
        ("olmoe", "neurons"),
        ("gpt_oss", "neurons"),
    ],
)
def test_measures_equal_their_definitions_from_plain_forwards(name, kind):
    case = BY_NAME[name]
    model, plan, sequences = tiny_model(case), plan_for(case, kind), answers()
    full = drain(run_full(model, make_samples(sequences, batch_size=3)))
    result = drain(run_candidate(model, FAMILIES[case.model_type], plan, full, ALL))
    if kind == "experts":
        pruned = physically_pruned(model, case, plan.kept)
    else:
        pruned = zeroed(model, case, plan)
    wanted = plain_scores(model, pruned, sequences)
    for measure, values in wanted.items():
        got = result.samples[measure].means
        # The models compute in float32, in batches here and one by one there.
        np.testing.assert_allclose(got, [np.mean(v) for v in values], atol=1e-6, rtol=1e-6)
        if measure in result.metrics:
            metric = result.metrics[measure]
            assert metric.mean == pytest.approx(np.mean([np.mean(v) for v in values]), abs=1e-6)
            assert metric.pooled == pytest.approx(np.mean(np.concatenate(values)), abs=1e-6)
    assert 0 < result.metrics["esap"].mean < 0.99  # the plan does something
    assert result.num_tokens == sum(map(len, wanted["esap"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_unpruned_model_agrees_with_itself(dtype):
    case, ref = BY_NAME["granitemoe"], ModelRef("tiny", "00" * 32)
    model, family = tiny_model(case).to(dtype), FAMILIES[case.model_type]
    full = drain(run_full(model, make_samples(answers())))
    assert {hidden.dtype for hidden in full.in_memory.values()} == {dtype}
    whole = PruningPlan(ref, dict.fromkeys(case.sparse, tuple(range(case.experts))))
    for plan in (None, whole, PruningPlan(ref, {})):
        result = drain(run_candidate(model, family, plan, full, ALL))
        assert [result.metrics[name].mean for name in ("esap", "sap", "kl")] == [1, 1, 0]
        assert result.metrics["nll"] == result.full["nll"]
        assert result.metrics["ppl"] == result.full["ppl"]
    pruned = drain(run_candidate(model, family, plan_for(case), full, ALL))
    assert 0 < pruned.metrics["esap"].mean < 1


@pytest.mark.parametrize("case", SOURCES)
def test_the_head_gives_the_model_s_own_logits(case):
    model = tiny_model(case)
    for config in (model.config, model.config.get_text_config()):
        if hasattr(config, "logits_scaling"):
            config.logits_scaling = 3.0
    ids = torch.randint(3, 64, (1, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits[0]
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    assert torch.equal(OutputHead(model)(hidden), wanted)
    assert "forward" not in model.base_model.__dict__


def test_chunks_and_batches_do_not_change_results_and_bound_memory(monkeypatch):
    model, plan, sequences, sizes = tiny_model(CASE), plan_for(CASE), answers(), []

    def result(batch_size):
        full = drain(run_full(model, make_samples(sequences, batch_size)))
        held = sum(hidden.nbytes for hidden in full.in_memory.values())
        assert held == int(full.samples.num_scored.sum()) * model.config.hidden_size * 4
        return drain(run_candidate(model, FAMILIES[CASE.model_type], plan, full, ALL))

    wanted = result(4)
    monkeypatch.setattr(positions, "CHUNK_BYTES", 4 * 64 * 5)  # five positions at a time
    for batch_size in (1, 3):
        got = result(batch_size)
        for name, sums in wanted.samples.items():
            # Sums of a matrix product depend on its shape in the last bit.
            np.testing.assert_allclose(got.samples[name].sums, sums.sums, atol=2e-5)
    full = drain(run_full(model, make_samples(sequences, 3)))
    model.lm_head.register_forward_hook(lambda _m, _i, out: sizes.append(out[0].shape[0]))
    drain(run_candidate(model, FAMILIES[CASE.model_type], plan, full, ALL))
    assert max(sizes) == 5


def test_hidden_states_on_disk_give_the_same_and_leave_nothing(tmp_path):
    model, plan = tiny_model(CASE), plan_for(CASE)
    samples = make_samples(answers(), batch_size=3)
    results = []
    for folder in (None, tmp_path / "hidden"):
        full = drain(run_full(model, samples, folder=folder))
        results.append(drain(run_candidate(model, FAMILIES[CASE.model_type], plan, full, ALL)))
    assert len(list((tmp_path / "hidden").rglob("*.safetensors"))) == 2
    assert results[0].metrics == results[1].metrics
    full.folder.cleanup()
    assert list((tmp_path / "hidden").iterdir()) == []


def test_under_accelerate_s_offload_the_numbers_are_the_same():
    case = BY_NAME["qwen3_moe"]  # tied embeddings
    samples, plan = make_samples(answers()), plan_for(case)
    results = []
    for model in (tiny_model(case), cpu_offload(tiny_model(case), "cpu")):
        full = drain(run_full(model, samples))
        results.append(drain(run_candidate(model, FAMILIES[case.model_type], plan, full, ALL)))
    assert results[0].metrics == results[1].metrics
