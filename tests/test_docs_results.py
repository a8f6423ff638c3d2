"""The tables of what was measured on the demo are those of the lines that ship."""

import math
from collections import defaultdict
from pathlib import Path

import pytest
from shipped import shipped_results

ROOT = Path(__file__).parent.parent
CORPORA = ("demo-code", "demo-stories", "demo-math", "demo-recipes")
BLEND = ["demo-code", "demo-math", "demo-stories"]


@pytest.fixture(scope="module")
def measured():
    """(criterion, size, tokens of its repair) -> corpus -> lines, of even plans in 16 bits.

    All draws of Random are one plan.
    """
    plans = defaultdict(lambda: defaultdict(list))
    for line in shipped_results():
        plan = line["plan"]
        name = plan["criterion"].partition(":")[0]
        is_even = plan["schedule"] in ("", "uniform") and plan.get("granularity") != "neuron"
        if is_even and "bits" not in plan and sorted(plan["corpora"]) in ([], BLEND):
            key = name, plan["sparsity"], plan.get("repair_tokens", 0)
            plans[key][line["corpus"]["name"]].append(line)
    return plans


def increase(line):
    return line["metrics"]["nll"]["mean"] - line["full"]["nll"]["mean"]


def right(line, marks="right"):
    return sum(line["right_answers"][marks]) / len(line["right_answers"][marks])


def means(plan, value):
    """By corpus; several draws count as one."""
    assert set(plan) == set(CORPORA)
    return [sum(map(value, plan[name])) / len(plan[name]) for name in CORPORA]


def rows(page, part):
    """Name -> other cells, of a table that is written from the code."""
    text = (ROOT / page).read_text().partition(f"<!-- written: {part} -->\n")[2]
    lines = text.partition("<!-- /written -->")[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: others for name, *others in cells}


def test_the_result_of_the_readme(measured):
    table = rows("README.md", "losses")
    for name, key in {
        "REAP + repair on 32k tokens": ("reap", "50%", 32_256),
        "REAP": ("reap", "50%", 0),
        "random experts, mean of 20 draws": ("random", "50%", 0),
    }.items():
        plan = measured[key]
        loss, share = sum(means(plan, increase)) / 4, sum(means(plan, right)) / 4
        assert table[name] == [f"{loss:+.2f}", f"{math.exp(loss):.2f} times", f"{share:.0%}"]
    assert len(measured["random", "50%", 0]["demo-code"]) == 20
    original = means(measured["reap", "50%", 0], lambda line: right(line, "full_right"))
    assert table["all experts"] == ["", "", f"{sum(original) / 4:.0%}"]
    assert len(table) == 4


def test_right_answers_by_corpus(measured):
    table = rows("docs/reference/demo-model.md", "right")
    for removed in ("25%", "50%", "75%"):
        for name, criterion in {"EAN": "ean", "REAP": "reap", "AIMER": "aimer"}.items():
            shares = means(measured[criterion, removed, 0], right)
            wanted = [f"{share:.0%}" for share in (*shares, sum(shares) / 4)]
            assert table[f"{name}, {removed} removed"] == wanted
        shares = means(measured["random", removed, 0], right)
        assert table[f"Random, {removed} removed, mean of 20 draws"][0] == f"{shares[0]:.0%}"


def test_losses_before_and_after_repair(measured):
    table = rows("docs/concepts/repair.md", "repairs")
    for name, key in {
        "REAP": ("reap", "50%", 0),
        "REAP + repair on 32k tokens": ("reap", "50%", 32_256),
        "EAN + repair on 65k tokens": ("ean", "50%", 65_280),
    }.items():
        losses = means(measured[key], increase)
        assert table[name][:5] == [f"{loss:.3f}" for loss in (*losses, sum(losses) / 4)]
