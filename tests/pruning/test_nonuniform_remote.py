"""Readers with plain transformers and `trust_remote_code=True`, without this program."""

import ast
from functools import partial

import pytest
import torch
import transformers
from exports import export
from neuron_cases import with_fewer_experts
from nonuniform_cases import NAMED, config_of
from remote_reader import read_by_others

from analysis.families.listing import FAMILIES
from analysis.nonuniform.modeling_file import auto_map, modeling_file
from families.physical import logits_of
from pruning import load_pruned
from pruning.plan.widths import WidthChoice, WidthMode

CLOSE = 1e-5  # of logits in float32, with products in another order
# Cases with different numbers of experts, and with different widths; the others are slow.
FEW = (("flex_olmo", "gpt_oss"), (("olmoe", "ragged"), ("jamba", "per-layer")))
MANY = (
    (
        *("qwen3_moe", "mixtral", "minimax", "phimoe", "granitemoe", "deepseek_v3-groups"),
        *("ernie4_5_moe", "hunyuan_v1_moe", "nemotron_h", "qwen3_5_moe", "aria"),
        *("gemma4", "kimi_k25"),
    ),
    (
        *(("qwen3_moe", "per-layer"), ("mixtral", "ragged"), ("deepseek_v3", "ragged")),
        *(("gpt_oss", "per-layer"), ("nemotron_h", "ragged"), ("qwen3_5_moe", "ragged")),
        *(
            ("granitemoe", "per-layer"),
            ("aria", "per-layer"),
            ("gemma4", "per-layer"),
            ("hunyuan_v1_moe", "ragged"),
        ),
    ),
)


@pytest.mark.parametrize(
    ("counts", "widths"), [FEW, pytest.param(*MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_plain_transformers_reads_runs_and_saves_it(
    pruned_case, width_export, neuron_source, tmp_path, counts, widths
):
    cases = {name: pruned_case(NAMED[name]) for name in counts}
    exports = {name: (pruned.path, pruned.logits) for name, pruned in cases.items()}
    for name, mode in widths:
        path = width_export(NAMED[name], mode).path
        exports[f"{name}-{mode}"] = path, logits_of(load_pruned(path))
    # Numbers and widths differ; and once more, as it is after it was loaded and saved here.
    source = neuron_source(NAMED["flex_olmo"])
    plan = with_fewer_experts(source, {0: (0, 2, 3, 5), 1: (1, 2, 6)})
    export(source.described, plan, tmp_path / "both", widths=WidthChoice(WidthMode.RAGGED))
    model = load_pruned(tmp_path / "both")
    model.save_pretrained(tmp_path / "saved")
    exports |= {name: (tmp_path / name, logits_of(model)) for name in ("both", "saved")}
    # In one process.
    read = read_by_others(exports, tmp_path / "remote")
    assert read.keys() == exports.keys()
    for name, found in read.items():
        assert found["module"].startswith("transformers_modules."), name
        assert found["class"].endswith(("ForCausalLM", "ForConditionalGeneration")), name
        assert not found["info"], name
        assert found["exact"] and found["exact_again"], name
        assert found["new"] == 4 + 3, name
        # In the file of Kimi-K2.5 there are no experts, so transformers sets less of the whole.
        first, taken = ("eager", set()) if name == "kimi_k25" else ("grouped_mm", {"grouped_mm"})
        assert found["implementations"] == [first, "eager"], name
        assert found["differences"].keys() == taken | {"batched_mm", "eager"}, name
        assert max(found["differences"].values()) <= CLOSE, name
        # A checkpoint of a text model and more is read by either class, if transformers has both.
        if name in counts:
            both = name in ("qwen3_5_moe", "gemma4")
            assert len(found["auto_classes"]) == (2 if both else 1), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_widths_that_grouped_products_cannot_take(neuron_source, tmp_path, dtype):
    source = neuron_source(NAMED["olmoe"])
    # Widths of 13 and 7: 52 and 28 bytes in float32, 26 and 14 in bfloat16; 16 are asked for.
    export(source.described, source.plan, tmp_path / "out", widths=WidthChoice(WidthMode.RAGGED, 1))
    auto = transformers.AutoModelForCausalLM
    multiple = 4 if dtype is torch.float32 else 8
    problem = rf"layer 0 have 13 neurons, .*multiple of {multiple} in .*eager or batched_mm"
    for load in (load_pruned, partial(auto.from_pretrained, trust_remote_code=True)):
        model = load(tmp_path / "out", dtype=dtype)
        assert model.config._experts_implementation == "eager"
        if dtype is torch.float32:
            assert (logits_of(model) - source.logits).abs().max() <= CLOSE
        model.set_experts_implementation("batched_mm")
        assert logits_of(model).isfinite().all()
        with pytest.raises(ValueError, match=problem):
            model.set_experts_implementation("grouped_mm")
        with pytest.raises(ValueError, match=problem):
            load(tmp_path / "out", dtype=dtype, experts_implementation="grouped_mm")


def test_the_file_is_in_exports_of_known_families(pruned_case):
    path = pruned_case(NAMED["olmoe"]).path
    assert config_of(path)["auto_map"] == {
        "AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"
    }
    assert (path / "modeling_pruned.py").read_text() == modeling_file(FAMILIES["olmoe"])
    # transformers has no class to build on, only this program has.
    path = pruned_case(NAMED["deepseek"]).path
    assert "auto_map" not in config_of(path)
    assert not (path / "modeling_pruned.py").exists()


@pytest.mark.parametrize("widths", [False, True], ids=["counts", "widths"])
@pytest.mark.parametrize(
    "family", [f for f in FAMILIES.values() if auto_map(f)], ids=lambda family: family.model_type
)
def test_the_file_needs_only_torch_and_transformers(family, widths):
    text = modeling_file(family, widths=widths)
    tree = ast.parse(text)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    own = {"dataclasses", "collections.abc", "torch", "torch.nn.functional"}
    own |= {"transformers.core_model_loading"}
    assert modules == {"copy", "typing", "transformers"} | (own if widths else set())
    assigned = {
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    }
    assert {name.removeprefix("modeling_pruned.") for name in auto_map(family).values()} <= assigned
    assert max(map(len, text.splitlines())) <= 100
    assert "type: ignore" not in text
