"""allocate MODEL: what it predicts, the plan it writes, and what evaluate and fit make of it."""

import json
from dataclasses import replace
from itertools import product

import pytest

from analysis.model.opening import load_model_index
from pruning.plan.plan import fit_plan, keep_all
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import weight_bytes
from pruning.planning.measured_bits import bits_costs
from pruning.records.sensitivity import SensitivityStore
from pruning.serving.tensor_types import tensor_types


@pytest.fixture
def own(here):
    return here / "own"


@pytest.fixture
def measured(works, tiny, corpora, own):
    """What layers lose in fewer bits and without experts, on one corpus."""
    where = ("--corpus", corpora[1], "--samples", "3", "--seq-len", "9", "--stats-dir", own)
    words = ("--criterion", "aimer", "--levels", "2", "--bits", "4", "--bits", "2")
    works("sensitivity", tiny, *words, "--cost", "nll", *where)
    return where


def test_bits_alone_are_the_best_of_all_combinations(measured, works, tiny, own, here):
    model = load_model_index(str(tiny))
    (costs,) = bits_costs(model, SensitivityStore([own]), "nll").values()
    original, best = keep_all(model), {}
    four = weight_bytes(model, replace(original, bits="4"))
    nbytes = (four + weight_bytes(model, replace(original, bits="2"))) // 2 // 1024 * 1024
    for row in product(("16", "4", "2"), repeat=len(model.layers)):
        pairs = zip(model.layers, row, strict=True)
        plan = replace(original, layer_bits={n.index: b for n, b in pairs if b != "16"})
        if weight_bytes(model, plan) <= nbytes:
            best[row] = sum(own[b] for own, b in zip(costs, row, strict=True))
    words = ("--cost", "nll", "--stats-dir", own)
    printed = works("allocate", tiny, "--target-size", f"{nbytes // 1024}KiB", *words, "--json")
    told = json.loads(printed)["result"]
    plan = load_plan(here / "allocated.json", model=model)
    chosen = tuple(layer["bits"] for layer in told["layers"])
    assert best[chosen] == pytest.approx(min(best.values()))
    assert told["cost"] == pytest.approx(min(best.values()))
    assert tuple(plan.bits_by_layer.values()) == chosen
    assert told["bytes"] == weight_bytes(model, plan) <= nbytes
    shown = works("plans", "show", "allocated.json", "--model", tiny)
    assert "allocated.json: all experts, bits by layer" in shown
    last = {line.split("│")[-1].strip() for line in shown.splitlines() if "│" in line}
    assert set(chosen) <= last
    # Measured, it is a way of its own to this size.
    works("evaluate", tiny, "--plan", "allocated.json", "--measure", "nll", *measured)
    size = f"{-(-told['bytes'] // 1024)}KiB"
    words = ("fit", tiny, "--target-size", size, "--stats-dir", own)
    ways = json.loads(works(*words, "--json"))["result"]["ways"]
    (way,) = (way for way in ways if way["bits"] == "by layer")
    assert (way["bytes"], way["removed"], way["is_measured"]) == (told["bytes"], 0, True)
    printed = works(*words)
    assert "original, bits by layer" in printed
    # Where it is the best way, its commands name a type for each layer.
    if told["cost"] < 0 or "llama-quantize" in printed:
        assert "--tensor-type" in printed


def test_experts_of_a_criterion_or_of_a_plan(measured, works, tiny, own, here):
    model = load_model_index(str(tiny))
    size = weight_bytes(model, replace(keep_all(model), bits="2")) - 1024
    where = ("--target-size", f"{size // 1024}KiB", "--cost", "nll", "--stats-dir", own)
    printed = works("allocate", tiny, "--criterion", "aimer", *where)
    plan = load_plan(here / "allocated.json", model=model)
    assert weight_bytes(model, plan) <= size
    assert {len(ids) for ids in plan.kept.values()} != {6}
    made = plan.provenance
    assert (made.criterion, made.schedule, made.spec) == ("aimer", "measured", {})
    assert "All layers alike" in printed
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", own)
    half = load_plan(here / "plan.json", model=model)
    size = (weight_bytes(model, half) + weight_bytes(model, replace(half, bits="2"))) // 2
    where = ("--target-size", f"{size // 1024}KiB", "--stats-dir", own, "--force")
    works("allocate", tiny, "--plan", "plan.json", *where)
    plan = load_plan(here / "allocated.json", model=model)
    assert plan.in_own_bits == half
    assert set(plan.bits_by_layer.values()) <= {"16", "4", "2"} and plan.named_bits


def test_corpora_that_differ_in_formats_are_named(measured, works, refused, tiny, corpora, own):
    where = ("--corpus", corpora[0], "--samples", "3", "--seq-len", "9", "--stats-dir", own)
    words = ("--criterion", "aimer", "--levels", "2", "--bits", "4")
    works("sensitivity", tiny, *words, *where)
    size = ("allocate", tiny, "--target-size", "1GiB", "--stats-dir", own)
    said = refused(*size)
    assert "in 4 on" in said and "in 4, 2 on" in said and "--measured-on" in said
    assert f"--bits 2 --stats-dir {own}` first" in refused(*size, "--bits", "2")
    works(*size, "--bits", "4")


def test_a_repair_of_bits_by_layer_is_that_of_the_export(works, tiny, corpora, own, here):
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", own)
    model = load_model_index(str(tiny))
    half = load_plan(here / "plan.json", model=model)
    mixed = fit_plan(replace(half, layer_bits={model.layers[0].index: "4"}), model)
    mixed.save(here / "mixed.json")
    where = ("--corpus", corpora[1], "--tokens", "36", "--seq-len", "9", "--stats-dir", own)
    for name in ("plan", "mixed"):
        works("repair", tiny, "--plan", f"{name}.json", *where, "-o", f"{name}-repaired.json")
    repaired = load_plan(here / "mixed-repaired.json", model=model)
    assert repaired.layer_bits == mixed.layer_bits
    works("export", tiny, "out", "--plan", "mixed-repaired.json", "--stats-dir", own)
    exported = load_plan(here / "out", model=model)
    assert exported == load_plan(here / "plan-repaired.json", model=model)
    assert exported.repair == repaired.repair


def test_an_export_has_the_weights_as_they_are_and_names_the_bits_for_llama_cpp(works, here):
    model = load_model_index("demo")
    layers = [layer.index for layer in model.layers]
    half = replace(keep_all(model), kept=dict.fromkeys(layers, tuple(range(16))))
    plan = fit_plan(replace(half, layer_bits={layers[0]: "8", layers[-1]: "2"}), model)
    plan.save(here / "mixed.json")
    printed = works("export", "demo", "out", "--plan", "mixed.json")
    assert load_plan(here / "out", model=model) == fit_plan(half, model)
    flags = [f"--tensor-type '{words}'" for words in tensor_types(plan.bits_by_layer, "bf16")]
    assert f"llama-quantize {' '.join(flags)} model.gguf model-Q8_0.gguf Q8_0" in printed
    assert "types of K need rows of 256 weights" in printed
