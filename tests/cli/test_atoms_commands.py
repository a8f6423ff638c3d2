"""Plans of neurons on the command line: made, looked at, exported, verified."""

import json

import pytest

PLAN = ("plan", "demo", "--granularity", "atomic", "--criterion", "neuron-norms")


@pytest.fixture
def plan(works, here):
    works(*PLAN, "--sparsity", "0.25", "--multiple-of", "8", "-o", "plan.json")
    return json.loads((here / "plan.json").read_text())


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
        ("--sparsity 0.5 --criterion reap", "cannot be ranked by 'reap'"),
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
