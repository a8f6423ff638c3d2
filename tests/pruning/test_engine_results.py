"""The rows that came out of the engines, and what is said of them."""

import json
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from engines.asking import question_of
from engines.checkpoints import ENGINE_CASES, engine_case, save
from safetensors.torch import load_file, save_file

from analysis.model.opening import load_model_index
from pruning.serving.commands import REQUEST, SERVING, serve_commands, served_by
from pruning.serving.engine_results import CUTS, ENGINES, causes, results
from pruning.serving.engine_traits import MLA, traits_of
from pruning.serving.engines import Contents, Reads, contents_of, summary, verdicts

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "serving.md"


def by_engine(contents):
    return {verdict.engine: verdict for verdict in verdicts(contents)}


def test_the_rows_are_those_that_were_written_for_the_questions_as_they_are():
    rows = results()
    assert len({row.id for row in rows}) == len(rows)
    assert {row.engine for row in rows} <= set(ENGINES)
    assert {row.case for row in rows} <= set(ENGINE_CASES)
    assert {row.cut for row in rows} <= set(CUTS)
    asked = {name: question_of(engine_case(name)) for name in {row.case for row in rows}}
    old = sorted({row.case for row in rows if row.question != asked[row.case]})
    assert old == [], "run them again: python -m pytest -m engines --write-engine-results"


def test_traits_of_rows_are_those_of_the_checkpoints_as_they_are_made_today(tmp_path):
    rows = results()
    made = {name: save(engine_case(name), tmp_path / name) for name in {row.case for row in rows}}
    for row in rows:
        assert row.traits == traits_of(made[row.case], is_pruned=row.cut != "original"), row
        assert bool(row.condition) is (row.engine == "vllm" and MLA in row.traits), row


@pytest.mark.parametrize(
    ("name", "keys", "trait"),
    [
        ("qwen3_moe", {"mlp_only_layers": [1], "num_hidden_layers": 3}, "dense layers between"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "dense layers first"),
        ("qwen3_moe", {"tie_word_embeddings": True}, "tied embeddings"),
        ("qwen3_moe", {"attention_bias": True}, "attention biases"),
        ("mixtral", {"sliding_window": 4}, "sliding windows"),
        # What engines ignore, or was left at 1, in what was tried.
        ("mixtral", {"hidden_act": "gelu"}, "gelu activation"),
        ("olmoe", {"clip_qkv": 1.0}, "clipped attention"),
        ("granitemoeshared", {"embedding_multiplier": 12.0}, "multipliers"),
        ("lfm2_moe", {"routed_scaling_factor": 1.5}, "scaled gates"),
        ("laguna", {"moe_router_logit_softcapping": 1.0}, "soft caps"),
        ("glm4_moe", {"use_qk_norm": True}, "query and key norms"),
    ],
    ids=str,
)
def test_a_variant_that_was_not_tried_is_not_said_to_load(tmp_path, name, keys, trait):
    case = engine_case(name)
    plain = contents_of(save(case, tmp_path / "plain"))
    model = save(replace(case, settings={**case.settings, **keys}), tmp_path / "variant")
    before, found = map(by_engine, (plain, contents_of(model)))
    for engine in ENGINES.values():
        loaded = before[engine].reads is Reads.TRIED
        assert found[engine].reads is (Reads.NOT_TRIED if loaded else before[engine].reads)
    assert before["llama.cpp"].reads is Reads.TRIED
    assert found["llama.cpp"].reason.startswith(
        "a tiny model of this family loaded; this variant was not tried (it has "
    )
    assert trait in found["llama.cpp"].reason


def test_prediction_heads_are_a_variant_that_an_export_drops(tmp_path):
    folder = save(engine_case("deepseek_v3"), tmp_path / "model").checkpoint.path
    index = folder / "model.safetensors"
    tensors = load_file(index)
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    prefix, head = f"model.layers.{last}.", f"model.layers.{last + 1}."
    copied = {head + n.removeprefix(prefix): t.clone() for n, t in tensors.items() if prefix in n}
    save_file({**tensors, **copied}, index, {"format": "pt"})
    model = load_model_index(str(folder))
    assert "prediction heads" in traits_of(model)
    assert "prediction heads" not in traits_of(model, is_pruned=True)
    assert "prediction heads" in traits_of(model, is_pruned=True, keeps_heads=True)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"])
def test_the_condition_of_a_row_travels_with_it(name):
    for more in ((), ("attention biases",)):
        rows = {row.id: row for row in results()}
        tried = rows.get(f"vllm-{name}-experts")
        traits = (*rows[f"mlx-{name}-experts"].traits, *more)
        contents = Contents((3, 3), name, removes="experts", traits=traits)
        found = by_engine(contents)
        vllm = found["vLLM"]
        assert vllm.reads is (Reads.TRIED if tried and not more else Reads.NOT_TRIED)
        assert vllm.condition in vllm.reason
        assert vllm.condition in summary(found.values())
        (line,) = (
            line
            for line in serve_commands(served_by(found.values(), "out", "BF16"))
            if "vllm." in line
        )
        words = shlex.split(line, comments=True)
        assert json.loads(words[words.index("--compilation-config") + 1]) == {
            "custom_ops": ["none"]
        }


def test_what_gives_other_tokens_is_called_wrong_and_has_no_command():
    for row in results():
        contents = Contents((3, 3), row.model_type, removes=row.cut, traits=row.traits)
        if row.works or row.is_rounded or row.is_of_cpu or "per layer" in row.cut:
            continue
        label = ENGINES[row.engine]
        found = by_engine(contents)
        assert found[label].reads is (Reads.WRONG if row.differs else Reads.FAILS), row
        begins = "wrong results in: " if row.differs else "fails in: "
        assert label in summary(found.values()).partition(begins)[2].partition(";")[0]
        begins = SERVING[label].commands[0].partition("{")[0]
        lines = serve_commands(served_by(found.values(), "out", "BF16"))
        assert not any(line.startswith(begins) for line in lines)


def test_what_an_engine_only_rounds_is_served_and_said():
    row = {row.id: row for row in results()}["llama.cpp-gpt_oss-mxfp4-experts"]
    assert (row.works, row.is_rounded) == (False, True)
    contents = Contents((3, 3), row.model_type, removes=row.cut, traits=row.traits)
    found = by_engine(contents)
    verdict = found["llama.cpp"]
    assert verdict.reads is Reads.TRIED
    assert f"{row.equal} of 64 greedy tokens" in verdict.reason
    assert "rounds activations to 8 bits" in verdict.reason
    lines = serve_commands(served_by(found.values(), "out", "U8"))
    assert any("convert_hf" in line for line in lines)
    # Of a variant that was not tried nothing is known.
    variant = Contents((3, 3), row.model_type, removes=row.cut, traits=(*row.traits, "soft caps"))
    assert by_engine(variant)["llama.cpp"].reads is Reads.NOT_TRIED


def test_equal_tokens_do_not_hide_a_fault_that_another_cut_shows():
    lucky = [row for row in results() if row.works and row.fault]
    assert {row.case for row in lucky} >= {"deepseek_v3-groups", "deepseek_v32-groups"}
    for row, more in product(lucky, ((), ("prediction heads",))):
        traits = (*row.traits, *more)
        contents = Contents((3, 3), row.model_type, removes=row.cut, traits=traits)
        found = by_engine(contents)[ENGINES[row.engine]]
        assert found.reads is Reads.WRONG
        assert row.fault in found.reason


def test_the_commands_are_those_of_the_guide():
    guide = GUIDE.read_text("utf-8").splitlines()
    names = {"out": "OUT", "copy": "OUT-float32", "outtype": "bf16", "options": "", "types": ""}
    for engine, serving in SERVING.items():
        for line in serving.commands:
            assert line.format(**names) in guide
        assert f"--port {serving.port}" in serving.commands[-1]
        assert REQUEST.format(port=serving.port) in guide or engine in ("vLLM", "SGLang")
    option = next(row.condition for row in results() if row.condition)
    (vllm,) = SERVING["vLLM"].commands
    assert vllm.format(out="OUT", options=f" {option}") in guide


def test_the_converter_is_told_of_no_prediction_heads_where_it_would_look_for_them():
    rows = {row.id: row for row in results()}
    for kind, is_told in (("qwen3_next", True), ("glm4_moe", True), ("qwen3_moe", False)):
        traits = rows[f"llama.cpp-{kind}-experts"].traits
        for heads in ((), ("prediction heads",)):
            contents = Contents((3, 3), kind, removes="experts", traits=(*traits, *heads))
            lines = serve_commands(served_by(verdicts(contents), "out", "F16"))
            (line,) = (line for line in lines if "convert_hf" in line)
            assert "--outtype f16" in line
            assert ("--no-mtp" in line) is (is_told and not heads)


def test_each_row_works_or_says_why_not():
    for row in results():
        assert row.works == (not row.reason), row
        assert (row.equal == row.tokens) or not row.works, row
        assert row.versions, row
        assert row.date, row


def said(engine, **contents):
    """The verdict on a checkpoint; by default one with the traits of the family's first row."""
    rows = (row for row in results() if row.model_type == contents["model_type"])
    traits = next((row.traits for row in rows), ())
    usual = {"counts": (3, 3), "removes": "experts", "traits": traits}
    return by_engine(Contents(**usual | contents))[engine]


def test_verdicts_on_engines_are_what_was_measured():
    rows = {row.id: row for row in results()}
    row = rows["mlx-olmoe-experts"]
    assert row.works
    found = said("MLX", model_type="olmoe")
    assert found.reads is Reads.TRIED
    assert row.versions in found.reason
    assert row.date in found.reason
    row = rows["mlx-olmoe-experts-per-layer"]
    found = said("MLX", model_type="olmoe", counts=(3, 6))
    assert found.reads is Reads.FAILS
    assert found.reason.startswith(row.reason)
    assert said("MLX", model_type="unheard_of").reads is Reads.NOT_TRIED
    assert said("SGLang", model_type="olmoe").reads is Reads.NOT_TRIED


def test_quantised_weights_have_rows_of_their_own():
    rows = {row.id: row for row in results()}
    plain, fp8 = (rows[f"mlx-deepseek_v3{form}-experts"] for form in ("", "-fp8"))
    assert {*fp8.traits} - {*plain.traits} == {"fp8 weights"}
    contents = {"model_type": "deepseek_v3", "quantisation": "fp8", "traits": fp8.traits}
    assert said("MLX", **contents).reads is Reads.TRIED
    assert fp8.date in said("MLX", **contents).reason
    assert Contents((3, 3), **contents).dequantised().traits == plain.traits
    # A family of which no quantised one was tried.
    traits = (*rows["mlx-olmoe-experts"].traits, "fp8 weights")
    untried = said("MLX", model_type="olmoe", quantisation="fp8", traits=traits)
    assert untried.reads is Reads.NOT_TRIED
    assert "it has fp8 weights" in untried.reason


def test_a_failure_of_the_engine_on_the_original_is_called_so():
    # MLX has no module for it at all.
    found = said("MLX", model_type="aria_text")
    assert found.reads is Reads.FAILS
    assert "so does the original" in found.reason


def test_a_silent_difference_is_called_so_and_no_number_is_not_printed_as_zero():
    rows = {row.id: row for row in results()}
    wrong = rows["vllm-olmoe-tied-neurons-per-layer"]
    assert (wrong.works, wrong.equal, wrong.difference) == (False, 0, None)
    assert wrong.differs
    assert wrong.why.endswith("0 of 64 greedy tokens equal, log-probabilities differ by NaN")
    broken = rows["mlx-olmoe-experts-per-layer"]
    assert not broken.differs
    assert broken.why == broken.reason


def test_a_known_cause_is_of_rows_that_differ_and_is_said():
    caused = {(row.engine, row.case): row for row in results() if row.cause}
    assert set(causes()) == set(caused)
    for pair, row in caused.items():
        assert row.why.endswith(causes()[pair])


def test_what_only_an_engine_without_a_gpu_lacks_is_no_failure_of_the_export():
    rows = {row.id: row for row in results()}
    assert not rows["vllm-minimax_m2-experts"].works
    found = said("vLLM", model_type="minimax_m2")
    assert found.reads is Reads.NOT_TRIED
    assert found.reason.startswith("it cannot be tried on a CPU: its router there takes sigmoid")
    assert said("llama.cpp", model_type="minimax_m2").reads is Reads.TRIED


def test_the_summary_says_which_way_of_transformers_fails():
    found = verdicts(Contents(counts=(3, 6), model_type="olmoe"))
    loads, fails, *_ = summary(found).split("; ")
    assert loads == "loads in: transformers (trust_remote_code=True), moeprune (load_pruned)"
    assert fails.startswith("fails in: transformers (without trust_remote_code), ")
