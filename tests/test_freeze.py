"""`python -m tools.freeze`: what is frozen, and what a comparison says."""

import pytest
from typer.testing import CliRunner

from tools.freeze import doors, plans, taking
from tools.freeze.__main__ import app
from tools.freeze.values import Value, read, rounded, stable, write

REAP = {"criterion": "reap", "corpora": ("demo-code",), "sparsity": "50%"}


@pytest.fixture(autouse=True)
def _no_own_statistics(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def compared(folder):
    return CliRunner().invoke(app, ["compare", str(folder), "--only", "records"])


@pytest.mark.slow
def test_a_comparison_names_what_changed_is_missing_and_is_new(tmp_path):
    taken = list(taking.records(tmp_path, {}))
    assert "records of evaluations" in {value.name for value in taken}
    changed, absent, *others = taken
    others = [*others, Value(changed.name, changed.head, "other"), Value("gone", "", "nothing")]
    write(tmp_path, "records", others)
    done = compared(tmp_path)
    assert done.exit_code == 1
    before, now = (Value(changed.name, changed.head, text) for text in ("other", changed.text))
    words = [value.line.partition("\t")[2] for value in (before, now)]
    assert done.stdout.splitlines() == [
        f"records: {changed.name}: changed: {' -> '.join(words)}",
        f"records: {absent.name}: new",
        "records: gone: missing",
        f"3 of {len(taken)} values differ",
    ]


def test_a_folder_without_frozen_values_is_refused(tmp_path):
    done = compared(tmp_path)
    assert done.exit_code == 2 and "records.txt; make it with `take`" in done.stderr


def test_a_plan_is_frozen_by_its_digest_and_a_refusal_by_its_words(tmp_path):
    refused = {**REAP, "schedule_file": tmp_path / "nothing.csv"}
    plan, again, other, refusal = plans.values_of(
        [REAP, REAP, {**REAP, "sparsity": "25%"}, refused], {tmp_path: "WORK"}
    )
    assert plan.head == doors.plan(REAP)[0][:16]
    assert plan.line == again.line != other.line
    assert refusal.text is None
    assert refusal.head == (
        "refused: The schedule WORK/nothing.csv cannot be read: No such file or directory."
    )


def test_the_table_of_plans_has_every_criterion_and_schedule(tmp_path):
    specs = plans.table(tmp_path)
    assert len(specs) >= 500
    criteria = {spec.get("criterion") for spec in specs}
    assert criteria >= {*doors.EXPERT_CRITERIA, *doors.NEURON_ONES, *doors.EXPONENTS}
    assert {spec.get("schedule", "uniform") for spec in specs} >= set(doors.SCHEDULE_NAMES)


def test_a_command_is_frozen_by_its_end_and_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "demo", "--criterion", "aimer", "--sparsity", "50%"]
    lines = [[*words, "-o", "plan.json"], [*words, "--shrink", "40%"]]
    ends, file, refusal = taking.run(lines, tmp_path, {})
    assert (ends.name, ends.head) == (
        "moeprune plan demo --criterion aimer --sparsity 50% -o plan.json",
        "0",
    )
    assert file.name == f"{ends.name} > plan.json"
    assert file.text == rounded((tmp_path / "plan.json").read_text())
    assert refusal.head.startswith("1 give one budget: ")


def test_only_the_digits_and_times_that_differ_between_machines_are_left_out(tmp_path):
    text = f"{tmp_path}/a 0.12345678 -1.5e-12 12 1.10.2 2e-07 d41e5+ 2026-01-02T03:04:05+00:00"
    assert stable(text, {tmp_path: "WORK"}) == "WORK/a 0.123457 0 12 1.10.2 2e-07 d41e5+ TIME"
    assert rounded("0.98765 0.00001 3", 2) == "0.99 0 3"


def test_names_are_unique_and_lines_are_in_order(tmp_path):
    assert write(tmp_path, "plans", [Value("b", "2"), Value("a", "1\n 1", b"x")]) == 2
    assert list(read(tmp_path, "plans").items())[1] == ("b", "2")
    assert read(tmp_path, "plans")["a"].startswith("1 1\t2d711642b726b044")
    with pytest.raises(ValueError, match="two frozen values have the name 'a'"):
        write(tmp_path, "plans", [Value("a"), Value("a")])
