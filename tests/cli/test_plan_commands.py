"""plan with budgets, schedules and constraints; plans show and diff."""

import json
import shlex

import pandas as pd
import pytest

from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from pruning.model import Model
from pruning.requests.plan import SpecRequest
from pruning.spec.spec import spec_of
from pruning.study import Study


@pytest.fixture
def make(works, tiny, stats, corpora, here):
    """Run `plan`; the plan and what was printed. `tiny` has layers 0, 2, 3 of 6 experts, top-2."""

    def run(words, criterion="reap", corpus=0, name="p.json"):
        text = [f"--calibrated-on={corpora[corpus]}"] if corpus is not None else []
        output = works(
            *("plan", tiny, "--criterion", criterion, *words.split(), *text),
            *("--stats-dir", stats, "-o", name, "--force"),
        )
        return json.loads((here / name).read_text()), output

    return run


def counts(plan):
    return [len(ids) for ids in plan["kept"].values()]


def test_the_frequency_schedule_serves_a_criterion_that_reads_no_text(make):
    plan, _ = make("--sparsity 50% --schedule frequency", criterion="aimer")
    same, _ = make("--sparsity 50% --schedule global", criterion="frequency")
    assert counts(plan) == counts(same)
    assert plan["corpora"] == same["corpora"]
    assert len(plan["runs"]) == 2


def test_a_file_gives_the_schedule_and_a_plan_is_one(make, here):
    first, _ = make("--sparsity 34% --schedule late", name="late.json")
    again, _ = make("--schedule-file late.json")
    assert again["kept"] == first["kept"]
    assert (again["schedule"], again["schedule_parameters"]) == ("file", {"file": "late.json"})
    (here / "c.csv").write_text("layer,removed\n0,1\n2,4\n")
    plan, _ = make("--schedule file --schedule-file c.csv --lock 3 --layer-set 2=3")
    assert counts(plan) == [4, 3, 6]


def test_diff_and_show(make, works, moeprune, tiny, other, here):
    make("--sparsity 50%", name="a.json")
    make("--sparsity 50% --pin 0:5 --drop 0:0", corpus=1, name="b.json")
    a, b = (json.loads((here / name).read_text())["kept"] for name in ("a.json", "b.json"))
    output = works("plans", "diff", "a.json", "b.json", "--model", tiny, "--table", "d.csv")
    table = pd.read_csv(here / "d.csv")
    # What is asked for as CSV is CSV, whatever its name.
    works("plans", "diff", "a.json", "b.json", "--model", tiny, "--table", "d.parquet")
    assert (here / "d.parquet").read_bytes() == (here / "d.csv").read_bytes()
    for row in table.itertuples():
        first, second = (set(kept[str(row.layer)]) for kept in (a, b))
        assert (row.both, row.only_a) == (len(first & second), len(first - second))
        assert row.neither == 6 - len(first | second)
        assert row.jaccard == pytest.approx(len(first & second) / len(first | second))
    assert f"Jaccard of the kept experts {table['jaccard'].mean():.4f}" in output
    assert "3 of 3 layers are alike" in works("plans", "diff", "a.json", "a.json")
    shown = works("plans", "show", "b.json", "--model", tiny)
    assert "all" in shown
    assert "0.5" in shown
    assert "The model tiny" in works("plans", "show", "b.json")
    (here / "checkpoints").mkdir()
    (here / "checkpoints" / "tiny").symlink_to(tiny)
    assert works("plans", "show", "b.json") == shown
    refused = moeprune("plans", "show", "b.json", "--model", other)
    assert refused.code == 1
    assert "not for other" in refused.err


@pytest.mark.parametrize(
    "asked",
    [
        {"remove": 4, "schedule": "late", "lock": ("2",), "set": ("0=5",)},
        {"target_size": "0.00004", "target_dtype": "bfloat16", "pin": ("0:1", "2:3-4")},
        {"shrink": "30%", "multiple_of": 2, "lock": ("0",), "set": ("2=6",)},
        {"params_share": "30%", "uneven": True},
        {"sparsity": "34%", "multiple_of": 2, "protect": ("3",), "drop": ("0,2:5",)},
        {"schedule": "file", "schedule_file": "c.csv", "gate": "renormalized"},
    ],
)
def test_the_command_of_a_request_makes_its_plan(works, tiny, stats, corpora, here, asked):
    (here / "c.csv").write_text("layer,kept\n0,4\n2,3\n3,5\n")
    spec = spec_of(criterion="reap", corpora=(str(corpora[1]),), **asked)
    request = SpecRequest(model=str(tiny), plan=spec, stats_dir=stats)
    study = Study.of(request, load_model_index(str(tiny)), stats_store(stats))
    program, *words = shlex.split(request.command(out="x.json"))
    assert program == "moeprune"
    works(*words)
    assert (here / "x.json").read_text() == study.plan(spec).to_json()


def test_constraints_hold_and_are_written_down(make):
    plan, output = make(
        "--sparsity 34% --protect 3 --pin 0:0-2 --drop 2:1,4 --layer-set 0=3 --schedule global"
    )
    assert counts(plan) == [3, 3, 6]
    assert plan["kept"]["0"] == [0, 1, 2]
    assert {1, 4}.isdisjoint(plan["kept"]["2"])
    assert plan["constraints"] == {
        "protected": [3],
        "pinned": {"0": [0, 1, 2]},
        "dropped": {"2": [1, 4]},
        "fixed": {"0": 3},
    }
    assert "protected" in output


def test_floors_and_numbers_by_hand(make):
    # Three layers of six: with a floor of four, six is all that can go.
    plan, _ = make("--remove 6 --schedule global --floor 4", criterion="man")
    assert counts(plan) == [4, 4, 4]
    assert plan["constraints"] == {"floor": 4}
    plan, _ = make("--remove 6 --set 0=6 --floor 3")
    assert counts(plan) == [6, 3, 3]
    again, _ = make("--remove 6 --layer-set 0=6 --floor 3")
    assert again == plan


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--shrink 20%", [4, 4, 4]),
        ("--target-size 82KiB", [4, 4, 4]),
        ("--params-share 20%", [4, 4, 4]),
        ("--shrink 20% --uneven", [4, 4, 5]),
        ("--shrink 20% --protect 0", [6, 3, 3]),
        ("--shrink 20% --multiple-of 3", [3, 3, 3]),
        ("--shrink 20% --floor 3 --set 0=6", [6, 3, 3]),
        # Without --set all layers keep 4, so layer 0 does, and layer 3 makes up for layer 2.
        ("--shrink 20% --set 2=6 --lock 0", [4, 6, 3]),
    ],
)
# An expert is 4,672 of 111,040 bytes, so that at least five must go for 20%.
def test_a_share_of_the_bytes_leaves_equal_counts(make, tiny, stats, corpora, words, expected):
    plan, _ = make(words)
    assert counts(plan) == expected


def test_a_cut_far_beyond_the_target_names_the_nearest_smaller_one(make):
    # Per layer an expert is 14,016 of 111,040 bytes: four are 50.5%, three 37.9%.
    plan, output = make("--shrink 40%")
    assert counts(plan) == [2, 2, 2]
    assert "50.5% of the bytes" in output
    assert "the nearest smaller cut is --shrink 37.86%\n" in output
    plan, output = make("--shrink 37.86%")
    assert counts(plan) == [3, 3, 3]
    assert "nearest smaller" not in output
    _, output = make("--target-size 65KiB")
    named = output.partition("the nearest smaller cut is ")[2].splitlines()[0]
    assert counts(make(named)[0]) == [3, 3, 3]


@pytest.mark.parametrize(
    ("words", "least"),
    [
        # An expert is 4,672 of 111,040 bytes, and one goes from each of three layers.
        ("--shrink 0.001%", "3 of 18 experts in equal counts per layer, 12.62% of the bytes"),
        ("--shrink 0.001% --uneven", "1 of 18 experts, 4.21% of the bytes"),
    ],
)
def test_a_cut_that_is_the_least_that_goes_says_so(make, words, least):
    _, output = make(words)
    assert (
        f"0.001% was asked for; the least that can go is {least}: fewer save nothing.\n" in output
    )
    assert "nearest smaller" not in output
    assert "least that can go" not in make("--shrink 7%")[1]


@pytest.mark.parametrize(
    ("schedule", "removed", "percent"), [("uniform", 6, "33.34%"), ("late", 8, "44.45%")]
)
def test_a_sparsity_is_rounded_down_to_a_multiple_and_says_so(make, schedule, removed, percent):
    words = f"--multiple-of 2 --schedule {schedule}"
    plan, output = make(f"--sparsity 50% {words}")
    assert (
        f"50% is 9 of 18 experts, which cannot go exactly; rounded down, {removed} went" in output
    )
    assert plan["kept"] == make(f"--remove {removed} {words}")[0]["kept"]
    assert f"({percent})" in output


def test_a_plan_by_a_share_is_the_same_from_python(make, here, tiny, stats, corpora):
    make("--shrink 20% --multiple-of 2")
    plan = Model(tiny, stats_dir=stats).plan("reap", str(corpora[0]), shrink="20%", multiple_of=2)
    assert plan.to_json() == (here / "p.json").read_text()


def test_a_target_size_is_met(make):
    # Sizes of a few thousand parameters in GiB; the printed size is in KiB.
    plan, output = make("--target-size 0.00008")
    after = float(output.partition("-> ")[2].split()[0])
    assert 0.9 * 0.00008 < after / (1 << 20) <= 0.00008
    assert plan["budget"]["kind"] == "size"
    half, _ = make("--target-size 0.00004 --target-dtype bfloat16")
    assert half["kept"] == plan["kept"]


def test_another_plan_is_replaced_only_when_asked(works, moeprune, here):
    words = ("plan", "demo", "--criterion", "reap", "--calibrated-on", "demo-code")
    half = ("--sparsity", "50%")
    works(*words, *half)
    before = (here / "plan.json").read_bytes()
    assert "plan.json is unchanged" in works(*words, *half)
    outcome = moeprune(*words, "--sparsity", "25%")
    assert (outcome.code, outcome.out) == (1, "")
    assert "plan.json holds another plan (" in outcome.err
    assert "-o, or replace it with --force" in outcome.err
    assert (here / "plan.json").read_bytes() == before
    works(*words, "--sparsity", "25%", "--force")
    assert (here / "plan.json").read_bytes() != before
    # The same experts, asked for in another way: the same plan.
    works(*words, *half, "-o", "other.json")
    works(*words, "--remove", 96, "-o", "other.json")
    (here / "notes.txt").write_text("mine")
    assert moeprune(*words, *half, "-o", "notes.txt").code == 1
    assert (here / "notes.txt").read_text() == "mine"


def result_of(works, *words):
    said = json.loads(works(*words, "--json"))
    assert said["command"] == "plan"
    return said["result"], said["notes"]


@pytest.mark.parametrize(
    "budget",
    [
        "--sparsity 50%",
        "--remove 5 --floor 3",
        "--shrink 30% --multiple-of 2",
        "--target-size 0.00004 --target-dtype bfloat16 --pin 0:1 --drop 2:5",
        "--params-share 30% --uneven",
        "--sparsity 34% --protect 3 --schedule late",
        "--sparsity 34% --set 0=3 --lock 2",
    ],
)
def test_a_configuration_alone_gives_the_counts_and_sizes_of_a_plan(works, tiny, here, budget):
    (here / "config.json").write_bytes((tiny / "config.json").read_bytes())
    words = budget.split()
    alone, notes = result_of(works, "plan", here / "config.json", "--config-only", *words)
    assert not list(here.glob("*plan*"))
    assert "by config.json" in notes[0]
    whole, _ = result_of(works, "plan", tiny, "--criterion", "random", *words)
    assert whole.keys() - alone.keys() == {"file", "digest"}
    assert alone == {key: whole[key] for key in alone}


def test_inspect_of_a_configuration_shows_uniform_plans(works, tiny, here):
    config = json.loads((tiny / "config.json").read_text())
    (here / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 3}))
    plans = json.loads(works("inspect", here, "--config-only", "--json"))["result"]["plans"]
    assert [plan["sparsity"] for plan in plans] == ["25%", "50%"]  # 75% leaves 2 experts, top-3
    for plan in plans:
        asked = ("plan", here, "--config-only", "--sparsity", plan.pop("sparsity"))
        assert result_of(works, *asked)[0] == plan
