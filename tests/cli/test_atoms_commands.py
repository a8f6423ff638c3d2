"""Plans of neurons on the command line: made, looked at, exported, verified."""

import json

import pandas as pd
import pytest

PLAN = ("plan", "demo", "--granularity", "atomic", "--criterion", "neuron-norms")


@pytest.fixture
def plan(works, here):
    works(*PLAN, "--sparsity", "0.25", "--multiple-of", "8", "-o", "plan.json")
    return json.loads((here / "plan.json").read_text())


def read(here, name):
    return (here / name).read_text()


def atoms_of(plan):
    """(layer, expert) -> neurons that stay, of the experts that lose some."""
    return {
        (int(layer), int(expert)): ids
        for layer, experts in plan["kept_atoms"].items()
        for expert, ids in experts.items()
    }


def test_a_plan_is_exported_and_proved(plan, works, here):
    assert plan["granularity"] == "atomic"
    # 64 neurons an expert in the demo model.
    assert {len(ids) for e in plan["kept_atoms"].values() for ids in e.values()} == {48}
    said = works("export", "demo", "out", "--plan", "plan.json", "--verify")
    assert "level logits" in said
    assert json.loads((here / "out" / "config.json").read_text())["intermediate_size"] == 48


def test_a_dry_run_shows_every_mode_and_writes_nothing(plan, works, here):
    said = works("export", "demo", "out", "--plan", "plan.json", "--dry-run")
    for word in ("uniform", "per-layer", "ragged", "every reader"):
        assert word in said
    assert not (here / "out").exists()


def test_neurons_from_a_file(works, here):
    (here / "atoms.json").write_text('{"2": {"5": [0, 7, 9], "6": []}}')
    works(*PLAN, "--kept-atoms", "atoms.json", "-o", "plan.json")
    made = json.loads((here / "plan.json").read_text())
    assert made["kept_atoms"] == {"2": {"5": [0, 7, 9], "6": []}}
    works("export", "demo", "out", "--plan", "plan.json", "--width-mode", "ragged")
    manifest = json.loads((here / "out" / "moeprune_manifest.json").read_text())
    assert manifest["widths"] == {"mode": "ragged", "multiple_of": 8}
    seen = works("inspect", "out")
    assert "0 to 64 on disk" in seen
    assert "one width" in " ".join(seen.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "needs --sparsity"),
        ("--sparsity 1.5", "out of range"),
        ("--sparsity 0.5 --atom-scope row", "row"),
        ("--sparsity 0.5 --schedule late", "--schedule is for plans of whole experts"),
        (
            "--sparsity 0.5 --criterion reap",
            "REAP scores no neurons; those that do: heapr",
        ),
        ("--sparsity 0.5 --criterion reep", "Unknown criterion 'reep'"),
        ("--sparsity 0.5 --corpus demo-math", "leave --corpus and --run out"),
        (
            "--sparsity 0.5 --atom-scope global --criterion camera-p",
            "does not compare neurons of different layers; use --atom-scope layer or expert",
        ),
        ("--kept-atoms no-such-file.json", "cannot be read"),
        ("--granularity row --sparsity 0.5", "no granularity 'row'"),
    ],
)
def test_bad_requests_get_one_line(moeprune, here, words, message):
    outcome = moeprune(*PLAN, *words.split(), "-o", "plan.json")
    assert outcome.code == 1
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (here / "plan.json").exists()


def test_a_width_mode_that_does_not_exist(plan, moeprune, here):
    outcome = moeprune("export", "demo", "out", "--plan", "plan.json", "--width-mode", "wide")
    assert outcome.code == 1
    assert "--width-mode" in outcome.err
    assert not (here / "out").exists()


def test_plans_are_shown_and_compared(plan, works, here):
    works(*PLAN, "--sparsity", "0.5", "--atom-scope", "global", "-o", "other.json")
    shown = works("plans", "show", "plan.json")  # the demo model is found by its name
    assert "12,288" in shown
    assert "9,216" in shown  # 192 experts of 48 neurons
    said = works("plans", "diff", "plan.json", "other.json", "--csv", "d.csv", "--experts")
    assert "experts differ; mean Jaccard of the kept neurons" in said
    table = pd.read_csv(here / "d.csv")
    assert list(table.columns) == ["layer", "expert", "both", "only_a", "only_b", "neither"]
    assert (table["only_a"] + table["only_b"] > 0).all()
    both = {key: set(ids) for key, ids in atoms_of(plan).items()}
    other = {key: set(ids) for key, ids in atoms_of(json.loads(read(here, "other.json"))).items()}
    for row in table.itertuples():
        first, second = (
            kept.get((row.layer, row.expert), set(range(64))) for kept in (both, other)
        )
        assert (row.both, row.only_a) == (len(first & second), len(first - second))
        assert row.neither == 64 - len(first | second)


def test_a_plan_of_a_model_that_is_not_here(plan, works, moeprune, here):
    away = {**plan, "model": {"name": "gone", "identity": "ab" * 32}}
    (here / "away.json").write_text(json.dumps(away))
    shown = works("plans", "show", "away.json")
    assert "gone (identity abababab) is not here" in shown
    assert "48" in shown
    refused = moeprune("plans", "show", "away.json", "--model", "demo")
    assert refused.code == 1
    # A folder of that name that is another model is not taken for it.
    (here / "gone").mkdir()
    (here / "gone" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "is not here" in works("plans", "show", "away.json")
