"""Numbers on screen equal what a few lines of plain Python make of the shipped files."""

import json
import re
from itertools import combinations
from math import floor
from pathlib import Path

import pytest
from page_texts import SCORES, deltas_of, gone
from permanent_names import EXPONENTS
from safetensors import safe_open

from analysis.families.base import MoELayer
from pruning.plan.layer_words import experts_text

ROOT = Path(__file__).parents[2]


def shared(first, second):
    shares = [len(first[layer] & second[layer]) / len(first[layer]) for layer in first]
    return sum(shares) / len(shares)


@pytest.mark.parametrize(
    ("criterion", "percent"),
    [("reap", 75), ("frequency", 25), ("squared-gate-energy", 50)],
)
def test_overlap_across_texts(open_page, demo_moments, criterion, percent):
    test = open_page("explore", sparsity=f"{percent}%")
    test.selectbox(key="criterion").set_value(criterion).run()
    sets = [pruned_sets(table, criterion, percent) for table in demo_moments.values()]
    pairs = [shared(a, b) for a, b in combinations(sets, 2)]
    expected = 100 * sum(pairs) / len(pairs)
    (words,) = (text.value for text in test.markdown if "Two corpora agree on" in text.value)
    agreed, by_chance = map(int, re.findall(r"(\d+)%", words))
    assert agreed == pytest.approx(expected, abs=0.51)
    assert by_chance == percent  # two random sets share the sparsity


def test_experts_that_the_other_criterion_drops(open_page, demo_moments):
    corpus = "demo-stories"
    test = open_page("explore", corpora=corpus, criterion="man", sparsity="25%")
    table = demo_moments[corpus]
    first, second = (pruned_sets(table, name, 25) for name in ("man", "frequency"))
    (words,) = (
        text.value for text in test.markdown if " experts that Frequency drops" in text.value
    )
    apart = sum(len(second[layer] - first[layer]) for layer in first)
    assert words.startswith(f"MAN keeps **{apart}** experts")


@pytest.mark.parametrize("percent", [0, 85])
def test_size_after_pruning_and_experts_kept(open_page, demo_checkpoint, percent):
    kept = 32 - floor(32 * percent / 100)
    size = 0
    with safe_open(demo_checkpoint / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            tensor = file.get_tensor(name)
            depends = ".experts." in name or name.endswith("mlp.gate.weight")
            size += tensor.numel() * tensor.element_size() * (kept if depends else 32) // 32
            # An export that removes something writes it as the head too.
            if percent and name == "model.embed_tokens.weight":
                size += tensor.numel() * tensor.element_size()
    shown = f"{size / 2**20:.1f} MiB"
    test = open_page("explore", sparsity=f"{percent}%")
    assert any(f"**{shown}** (" in text.value for text in test.markdown)
    on_export = deltas_of(open_page("export", sparsity=f"{percent}%"))
    assert on_export["On disk"][0] == shown
    assert on_export["Experts kept"][0] == f"{6 * kept} of 192"
    assert on_export["Per layer"][0] == str(kept)


def test_overlap_map_reads_every_variant(open_page, demo_moments):
    test = open_page("explore", variants="By agreement of corpora")
    charts = [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]
    (readings,) = (
        trace["text"]
        for chart in charts
        for trace in chart["data"]
        if len(trace.get("text", ())) == 18
    )
    found = {text.split("<br>")[0][-9:]: text.split("<br>")[1] for text in readings}
    assert found["(1, 0, 0)"].endswith("the same score")
    for criterion in SCORES:
        sets = [pruned_sets(table, criterion, 50) for table in demo_moments.values()]
        pairs = [shared(a, b) for a, b in combinations(sets, 2)]
        assert found[str(EXPONENTS[criterion])] == (
            f"overlap {sum(pairs) / len(pairs):.3f}, by chance 0.500"
        )


def test_layers_of_unlike_size_are_told_from_the_fewest_experts_to_the_most():
    layers = [MoELayer(3, 64, 2), MoELayer(5, 33, 2), MoELayer(6, 48, 2)]
    assert experts_text(layers) == "33-64"
    assert experts_text(layers[:1]) == "64"


def test_signed_numbers_are_formatted_without_a_minus_before_nothing():
    # `z` of a format makes 0.00 of -0.00; plotly's formats, after `%{`, are of d3 and lack it.
    lines = [
        (path.relative_to(ROOT).as_posix(), line.strip())
        for folder in ("analysis", "pruning", "app", "tools/reference")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    signed = [line for line in lines if re.search(r"(?<!%)\{[^{}%]*:\+", line[1])]
    signed = [line for line in signed if "%{" not in line[1]]
    assert len(signed) > 40
    assert [line for line in signed if not re.search(r":\+z", line[1])] == []


def pruned_sets(table, name, percent):
    """Layer -> experts that go."""
    sets = {layer: set() for layer in table["layer"]}
    for layer, expert in gone(table, SCORES[name](table), percent):
        sets[layer].add(expert)
    return sets
