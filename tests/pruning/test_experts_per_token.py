"""Fewer experts per token: masked, exported and evaluated alike, and equal to the definition."""

import json
from dataclasses import replace

import pytest
import torch
from exports import export, tensors_of, verified
from oracles import TOKENS, logits_of
from torch.nn.functional import linear, silu
from transformers import AutoModelForCausalLM

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from builders import edit_json, tiny_model
from families.configs import BY_NAME
from families.tiny_models import tiny_model as tiny_case
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, Repair, fit_plan, keep_all, with_top_k
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import size_report
from pruning.plan.tables import plan_summary
from pruning.planning.make import make_plan
from pruning.planning.per_token import order_per_token
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.repair_files import with_repair_files
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.plan import SpecRequest
from pruning.requests.repair import RepairRequest
from pruning.serving.engines import contents_of, verdicts
from pruning.spec.base import validated
from pruning.study import Study
from pruning.surgery.verify import verify_export
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.repair import repair_run

KEPT = (0, 2, 3, 5)


def by_definition(block, kept, top_k, *, normalised):
    """The block's output, token by token: softmax over the kept experts, then the best few."""

    def forward(_module, args, _output):
        (hidden,) = args
        rows, experts = hidden.reshape(-1, hidden.shape[-1]), block.experts
        outputs = torch.zeros_like(rows)
        for number, row in enumerate(rows):
            gates = (block.gate.weight[list(kept)] @ row).softmax(0)
            best = sorted(range(len(kept)), key=lambda i: -float(gates[i]))[:top_k]
            total = sum(gates[i] for i in best) if normalised else 1.0
            for i in best:
                gate, up = linear(row, experts.gate_up_proj[kept[i]]).chunk(2)
                down = linear(silu(gate) * up, experts.down_proj[kept[i]])
                outputs[number] += gates[i] / total * down
        return outputs.reshape(hidden.shape)

    return block.register_forward_hook(forward)


@pytest.mark.parametrize("top_k", [{}, {0: 1, 1: 1}, {0: 2, 1: 1}])
@pytest.mark.parametrize(("model_type", "normalised"), [("olmoe", False), ("mixtral", True)])
def test_a_masked_model_selects_as_the_definition_says(model_type, normalised, top_k):
    model = tiny_model(model_type, dtype=torch.float64)
    model.set_experts_implementation("eager")
    layers = range(len(model.model.layers))
    plan = PruningPlan(ModelRef("tiny", "00" * 32), dict.fromkeys(layers, KEPT))
    before = logits_of(model)
    with masked(model, FAMILIES[model_type], replace(plan, top_k=top_k)):
        inside = logits_of(model)
    assert torch.equal(logits_of(model), before)
    for layer in layers:
        block, number = model.model.layers[layer].mlp, top_k.get(layer, 2)
        by_definition(block, KEPT, number, normalised=normalised)
    # Routers compute their softmax in float32, also in a float64 model.
    torch.testing.assert_close(inside, logits_of(model), atol=2e-6, rtol=2e-6)
    assert TOKENS.numel() == 48


@pytest.fixture
def demo():
    return load_model_index("demo")


def half(model, **fields):
    values = {"model": "demo", "criterion": "aimer", "sparsity": "50%", **fields}
    request = validated(SpecRequest, values)
    ranking = drain(Study.of(request, model, stats_store(None)).rank(request.plan))
    return make_plan(ranking, request.plan)


def test_an_export_computes_what_the_evaluation_measures(demo, tmp_path):
    plan = half(demo, top_k=2)
    assert (plan.top_k, plan.provenance.spec["budget"]["top_k"]) == (dict.fromkeys(range(6), 2), 2)
    assert plan_from_dict(plan.to_dict()) == plan != half(demo)
    export(demo, plan, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["num_experts_per_tok"] == 2
    report = verified(tmp_path / "out", source=demo.checkpoint.path)
    assert report.ok and report.max_abs_diff == 0
    assert "2 experts per token" in report.checks[-1].detail
    common = {"corpora": ("demo-math",), "samples": 2, "measures": "nll", "dtype": "float32"}
    stats = {"stats_dir": tmp_path / "stats"}

    def losses(model, **fields):
        request = validated(EvaluateRequest, {"model": str(model), **common, **stats, **fields})
        (record,) = drain(evaluate_run(request))
        return record

    planned = losses("demo", plans=(plan.to_dict(),))
    asked = losses("demo", plans=(half(demo).to_dict(),), top_k=2)
    exported = losses(tmp_path / "out")
    # The export as it is, the plan, and the same plan asked for by the option.
    assert planned.metrics["nll"].mean == asked.metrics["nll"].mean
    assert exported.full["nll"].mean == planned.metrics["nll"].mean != planned.full["nll"].mean
    assert asked.plan_digest == planned.plan_digest
    assert asked.plan.variant_words == ", top-2" and asked.plan.columns["top_k"] == "2"


def test_the_balancing_loss_is_off_where_only_the_number_changes(tmp_path):
    tiny_case(BY_NAME["olmoe"]).save_pretrained(tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", output_router_logits=True)
    model = load_model_index(str(tmp_path / "model"))
    export(model, with_top_k(keep_all(model), model, 1), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_experts_per_tok"], config["output_router_logits"]) == (1, False)


def test_verification_notices_another_number(demo, tmp_path):
    export(demo, half(demo, top_k=2), tmp_path / "out")
    config = tmp_path / "out/config.json"
    config.write_text(config.read_text().replace('_tok": 2', '_tok": 3'))
    report = drain(verify_export(tmp_path / "out"))
    failed = {check.name for check in report.checks if not check.ok}
    assert failed == {"files", "top-k"}


def test_work_per_token_shrinks_and_bytes_stay(demo, tmp_path):
    full, fewer = keep_all(demo), with_top_k(keep_all(demo), demo, 1)
    before, after = size_report(demo, full), size_report(demo, fewer)
    # 6 layers, 3 experts less for each token, 3 matrices of 128 x 64.
    assert before.active_after - after.active_after == 6 * 3 * 3 * 128 * 64
    assert before.expert_flops_after == 4 * after.expert_flops_after
    # Engines cannot tie the head, so it is written beside the embedding: vocabulary x 128, bf16.
    head = demo.config["vocab_size"] * 128 * 2
    assert after.bytes_after - before.bytes_after == head
    export(demo, fewer, tmp_path / "out")
    assert (
        sum(tensor.nbytes for tensor in tensors_of(tmp_path / "out").values()) == after.bytes_after
    )
    assert verified(tmp_path / "out", source=demo.checkpoint.path).max_abs_diff == 0
    assert full.digest != fewer.digest
    assert "top_k" not in full.to_dict()  # plans of before keep their digest


def test_each_layer_has_its_own_number(demo, tmp_path):
    plan = fit_plan(replace(half(demo), top_k={0: 3, 2: 1}), demo)
    assert plan.top_k == {0: 3, 1: 4, 2: 1, 3: 4, 4: 4, 5: 4}
    raw = plan.to_dict()
    assert plan_from_dict(raw) == plan and raw["top_k"]["2"] == 1
    # Of before, and as files say where all layers have one: a number, with the digest of before.
    even = with_top_k(plan, demo, 2)
    assert even.to_dict()["top_k"] == 2 and plan_from_dict(even.to_dict()) == even
    # It is that of all layers, also of those that the file does not name.
    for kept in ({}, {"1": list(KEPT)}):
        read = plan_from_dict({**raw, "kept": kept, "top_k": 2})
        assert plan_from_dict(read.to_dict()) == read
        assert fit_plan(read, demo).top_k == even.top_k
    assert even.digest == half(demo, top_k=2).digest != plan.digest
    # 1 + 3 experts less in all, 3 matrices of 128 x 64 each.
    before, after = size_report(demo, half(demo)), size_report(demo, plan)
    assert before.active_after - after.active_after == (1 + 3) * 3 * 128 * 64
    assert plan_summary(plan, demo)["top_k"].tolist() == [3, 4, 1, 4, 4, 4]
    assert plan.of_layer(2).top_k == {2: 1}
    facts = plan_facts(plan, demo)
    assert facts.top_k == "3.4.1.4.4.4" and facts.variant_words == ", top-3.333 by layer"
    with pytest.raises(PlanError, match=r"selects 1 to 4 .* num_experts_per_tok; .*--top-k 3"):
        export(demo, plan, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_family_that_reads_a_list_has_it_written(tmp_path):
    tiny_case(BY_NAME["hunyuan_v1_moe"]).save_pretrained(tmp_path / "model")
    model = load_model_index(str(tmp_path / "model"))
    plan = fit_plan(replace(keep_all(model), top_k={1: 1}), model)
    export(model, plan, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["moe_topk"] == [2, 1]
    assert [layer.top_k for layer in load_model_index(str(tmp_path / "out")).layers] == [2, 1]
    report = verified(tmp_path / "out", source=tmp_path / "model")
    assert report.ok and report.max_abs_diff == 0
    # A plan of it that says its own numbers says nothing, and its layers have no curves.
    cut = load_model_index(str(tmp_path / "out"))
    assert fit_plan(replace(keep_all(cut), top_k={1: 1}), cut) == keep_all(cut)
    with pytest.raises(PlanError, match="Layer 1 of out selects one expert per token and cannot"):
        order_per_token(cut)
    # transformers itself selects as many, and no engine is said to.
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert [layer.mlp.gate.top_k for layer in loaded.model.layers] == [2, 1]
    said = {verdict.engine: verdict for verdict in verdicts(contents_of(model, plan))}
    assert "differ by layer" in said["vLLM"].reason


@pytest.mark.parametrize(
    ("top_k", "message"),
    [
        ({"0": 0}, "'top_k' of layer 0 is 0; give experts per token, 1 or more"),
        ({"x": 1}, "names layer 'x'; give decoder indices"),
        ({"7": 1}, "names layer 7, which has no routed experts in demo"),
        ({"0": 5, "1": 1}, "demo selects 4 experts per token; choose a top-k of 1 to 3"),
        ({"0": 4, "1": 4}, "demo selects 4 experts per token; choose a top-k of 1 to 3"),
        (2.5, "'top_k' is 2.5; give experts per token, 1 or more"),
        ({"9" * 5000: 1}, "names layer '9+'; give decoder indices"),
        (dict.fromkeys("012345", 2), "is 2 in every layer that 'kept' names; write 2 if"),
    ],
)
def test_numbers_that_cannot_be_are_refused(demo, top_k, message):
    with pytest.raises(PlanError, match=message):
        fit_plan(plan_from_dict({**keep_all(demo).to_dict(), "top_k": top_k}), demo)


def test_records_of_before_have_a_number():
    assert PlanFacts.model_validate({"top_k": 2}).top_k == "2"
    assert PlanFacts.model_validate({"top_k": 0}).is_plain


def test_a_repair_is_of_its_own_number(demo):
    repaired = replace(keep_all(demo), repair=Repair("r", "d"))
    with pytest.raises(PlanError, match="plan with --top-k, and repair that plan"):
        with_top_k(repaired, demo, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [("phimoe", "always selects 2 experts per token"), ("deepseek_v4", "in a table of 2 for each")],
)
def test_routers_that_cannot_select_fewer_are_refused(name, message, tmp_path):
    tiny_case(BY_NAME[name]).save_pretrained(tmp_path)
    model = load_model_index(str(tmp_path))
    with pytest.raises(PlanError, match=message):
        with_top_k(keep_all(model), model, 1)


def test_a_repair_makes_up_for_the_smaller_number_in_every_layer(demo, tmp_path):
    plan = with_top_k(keep_all(demo), demo, 1)
    common = {"model": "demo", "corpora": ("demo-math",), "dtype": "float32"}
    common["stats_dir"] = tmp_path / "stats"
    fields = {**common, "plan": plan.to_dict(), "tokens": 2048, "seq_len": 128}
    record = drain(repair_run(validated(RepairRequest, fields)))
    # No layer loses an expert, and each has something to make up for.
    assert [fit.layer for fit in record.layers] == list(range(6))
    repaired = with_repair_files(replace(plan, repair=record.reference), [tmp_path / "stats"])
    fields = {"plans": (plan.to_dict(), repaired.to_dict()), "samples": 4, "measures": "nll"}
    before, after = drain(evaluate_run(validated(EvaluateRequest, {**common, **fields})))
    assert after.metrics["nll"].mean < before.metrics["nll"].mean
    export(demo, repaired, tmp_path / "out")
    checks = {"source": demo.checkpoint.path, "directories": [tmp_path / "stats"]}
    assert verified(tmp_path / "out", **checks).max_abs_diff == 0
