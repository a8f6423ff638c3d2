"""What commands say at their end, in words and with --json; --quiet; tables in narrow windows."""

import json
import re
import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from analysis.drain import drain
from analysis.errors import ExportError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.numbers.words import small
from app import console
from app.cli import COMMANDS, load
from pruning.actions.listing import action
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import size_report
from pruning.records.quality import LossIncrease
from pruning.requests.model import ExportRequest

PLAN = ("plan", "demo", "--criterion", "reap", "--calibrated-on", "demo-math", "--shrink", "40%")
KEYS = {"command", "result", "tables", "notes", "next"}


@pytest.fixture
def as_json(moeprune):
    """Run a command with --json; the object that it prints."""

    def run(*words):
        outcome = moeprune(*words, "--json")
        found = json.loads(outcome.out)
        assert ("error" in found) == (outcome.code != 0)
        assert found.keys() >= KEYS
        return found

    return run


def test_the_numbers_of_a_plan_are_those_of_its_file(as_json, here):
    found = as_json(*PLAN)
    plan, model = load_plan(here / "plan.json"), load_model_index("demo")
    report, result = size_report(model, plan), found["result"]
    assert (found["command"], result["digest"]) == ("plan", plan.digest)
    assert (result["bytes_before"], result["bytes_after"]) == (
        model.checkpoint.nbytes,
        report.bytes_after,
    )
    assert result["bytes_after"] <= 0.6 * result["bytes_before"]
    assert result["kept_per_layer"] == {str(layer): len(ids) for layer, ids in plan.kept.items()}
    assert result["active_params_after"] == report.active_after


def test_the_commands_that_come_next_can_be_copied(works, as_json, here):
    printed = works(*PLAN)
    assert "(15 of 32 per layer), 10.3 MiB -> 6.0 MiB (-41.8%, asked: -40%)" in printed
    commands = [line.removeprefix("next: ") for line in printed.splitlines() if "next: " in line]
    assert commands == as_json(*PLAN)["next"]
    evaluate, export = (shlex.split(line)[1:] for line in commands)
    with load("evaluate").make_context("evaluate", evaluate[1:]) as context:
        assert context.params["plans"]
    exported = works(*export)
    (verify,) = [line for line in exported.splitlines() if line.startswith("next: ")]
    printed = works(*shlex.split(verify.removeprefix("next: "))[1:])
    assert "PASS: demo-pruned, all 11 checks" in printed
    assert "1 shard, none missing" in printed


def test_a_plan_and_an_export_that_grow_the_model_warn_in_one_line(works, here):
    # One expert of 32 in each layer takes less than the head that the export has to write.
    line = "warning: the export is larger than the original by"
    grown = ("plan", "demo", "--criterion", "aimer", "--sparsity", "4%", "-o", "grown.json")
    assert works(*grown).count(line) == 1
    for words in (("--dry-run",), ()):
        assert works("export", "demo", "out", "--plan", "grown.json", *words).count(line) == 1
    card = (here / "out" / "README.md").read_text()
    assert card.count("- Weights on disk: larger than the original by 222 KiB") == 1
    assert line not in works(*PLAN)


def test_a_failed_verification_ends_with_fail(works, moeprune, here):
    works(*PLAN)
    works("export", "demo", "out", "--plan", "plan.json")
    (shard,) = (here / "out").glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    outcome = moeprune("verify", "out", "--level", "bytes")
    assert outcome.code == 1
    assert "FAIL: out, 1 of 7 checks failed" in outcome.out
    found = json.loads(moeprune("verify", "out", "--level", "bytes", "--json").out)
    assert found["result"]["verified"] is False
    assert "sha256" in found["error"]
    # The command and the job of an export that is there fail by the same checks.
    asked = ("export", "demo", "out", "--plan", "plan.json", "--verify")
    outcome = moeprune(*asked)
    assert outcome.code == 1
    (first, *failed) = outcome.err[outcome.err.index("error: ") :].splitlines()
    assert first.startswith(f"error: out fails {len(failed)} of ")
    assert any("sha256" in line for line in failed)
    request = ExportRequest(
        model="demo", plan=load_plan(here / "plan.json").to_dict(), out="out", verify=True
    )
    with pytest.raises(ExportError) as caught:
        drain(action("export").job(request.model_dump(mode="json")))
    assert str(caught.value).splitlines()[1:] == failed


def test_an_export_below_home_is_written_told_and_found_again(works, here, monkeypatch):
    """No shell replaces the ~ of recipes, jobs and quoted words."""
    monkeypatch.setenv("HOME", str(here))
    works(*PLAN, "-o", "plan.json")
    asked = ("export", "demo", "~/out", "--plan", "plan.json")
    assert f"{here / 'out'}: files with headers" in works(*asked).replace("\n", "")
    assert "is finished, skipped" in works(*asked)
    assert not (here / "~").exists()


def test_verify_says_what_it_could_not_compare(works, as_json, here):
    works(*PLAN)
    works("export", "demo", "out", "--plan", "plan.json")
    words = ("verify", "out", "--level", "bytes")
    assert "PASS: out, all 7 checks; bytes were not compared with the original" in works(*words)
    assert as_json(*words)["result"]["compared_with_source"] is False
    assert "not compared" not in works(*words, "--source", "demo")
    assert as_json(*words, "--source", "demo")["result"]["compared_with_source"] is True


HALF = "demo --criterion reap --calibrated-on demo-code --sparsity 50%"
AFTER = {
    "inspect demo": ["calibrate"],
    "score demo --criterion aimer": ["plan"],
    f"compare {HALF} --with-criterion ean": ["plan", "plan"],
    "overlap demo --sparsity 50% --criterion ean": ["blend"],
    f"blend {HALF} --calibrated-on demo-math": ["plan"],
    f"plot kept-by {HALF} -o k.csv": ["report"],
    "plan demo --criterion aimer --shrink 20%": ["evaluate", "export"],
}


@pytest.mark.parametrize("words", AFTER)
def test_a_command_ends_with_numbers_and_with_commands_that_parse(as_json, words):
    found = as_json(*shlex.split(words))
    assert found["result"]
    following = [shlex.split(line)[1:] for line in found["next"]]
    assert [name for name, *_ in following] == AFTER[words]
    for name, *rest in following:
        load(name).make_context(name, rest).close()
        assert "c4" not in rest


def test_small_numbers_and_counts_can_be_read():
    assert [small(number) for number in (0.0, 3.14e-5, 0.25)] == ["0", "3.1e-05", "0.2500"]


def test_an_error_is_an_object_too(as_json):
    found = as_json("plan", "demo", "--criterion", "aimer", "--shrink", "99%")
    assert "the largest share that works is 71.97%" in found["error"]


@pytest.mark.parametrize("words", ["runs list", "inspect demo", "--version", "jobs list"])
def test_what_is_printed_as_tables_is_in_the_object(as_json, words):
    found = as_json(*words.split())
    assert found["command"] == words.removesuffix(" demo")
    assert found["tables"] or found["result"] or found["notes"]
    assert all(isinstance(note, str) for note in found["notes"])
    for table in found["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


PLANNED = "demo --plan plan.json"
SPEAKING = {
    "ask": f"ask {PLANNED} --prompt hello --max-new-tokens 4",
    "a lens": f"ask {PLANNED} --text hello",
    "compare": f"compare {HALF} --with-criterion ean",
    "overlap": "overlap demo --sparsity 50% --figure map.html",
    "a plan": "plans show plan.json",
    "widths": f"plans show {PLANNED.split()[-1]} --calibrated-on demo-code",
    "neurons": "plan demo --criterion heapr --calibrated-on demo-code --granularity neuron "
    "--shrink 20% -o neurons.json",
    "calibrate": "calibrate demo --corpus demo-math --tokens 512 --dry-run",
    "fit": "fit demo --shrink 40%",
    "report": f"report {HALF} --view kept-by",
}


@pytest.mark.parametrize("words", SPEAKING.values(), ids=SPEAKING)
def test_what_a_command_says_as_json_is_text_and_numbers(as_json, works, here, words):
    works(*PLAN)
    found = as_json(*shlex.split(words))
    said = [found["command"], *found["notes"], *found["next"], json.dumps(found["result"])]
    cells = [cell for table in found["tables"] for row in table["rows"] for cell in row]
    said += [cell for cell in cells if isinstance(cell, str)]
    assert not [cell for cell in said if re.search(r"<[\w.]+( object)?( at 0x\w+)?>", cell)]
    assert "│" not in "".join(found["notes"])


def test_only_text_is_a_note():
    with console.speech(quiet=False, as_json=True), pytest.raises(TypeError, match="not of text"):
        console.out.print(Table())


def test_quiet_prints_the_result_alone(moeprune):
    outcome = moeprune("--quiet", *PLAN)
    (line,) = outcome.out.splitlines()
    assert line.startswith("plan.json: keeps 90 of 192 experts")
    assert outcome.err == ""


def test_every_help_fits_a_screen_or_has_headings(moeprune, monkeypatch):
    monkeypatch.setattr(console.out, "_width", 80)
    seen = 0
    for name in COMMANDS:
        group = getattr(load(name), "commands", None)
        for words in [f"{name} {subcommand}" for subcommand in group] if group else [name]:
            lines = moeprune(*words.split(), "--help").out.splitlines()
            assert lines[0].startswith(f"Usage: moeprune {words} ")
            assert max(map(len, lines)) <= 80
            headings = sum(line.endswith(":") and line[0] != " " for line in lines if line)
            assert len(lines) <= 50 or headings >= 4, words
            seen += 1
    assert seen > len(COMMANDS)


WORD = st.text("abcdefgh-", min_size=1, max_size=12)
CELL = st.lists(WORD, min_size=1, max_size=3).map(" ".join)


@given(
    rows=st.integers(1, 5).flatmap(
        lambda count: st.lists(
            st.lists(CELL, min_size=count, max_size=count), min_size=1, max_size=3
        )
    ),
    width=st.sampled_from([20, 40, 80]),
)
def test_no_word_is_broken_and_none_is_lost(rows, width):
    columns = [f"c{index}" for index in range(len(rows[0]))]
    with console.out.capture() as captured, pytest.MonkeyPatch.context() as patch:
        patch.setattr(console.out, "_width", width)
        console.show_table("", columns, rows)
    printed = captured.get()
    assert all(len(line.rstrip()) <= max(width, 17) for line in printed.splitlines())
    wanted = Counter(word for row in rows for cell in row for word in cell.split())
    assert not wanted - Counter(printed.replace("│", " ").split())


EVALUATE = (
    "evaluate demo --corpus demo-code --corpus demo-stories --corpus demo-math --dtype float32 "
    "--measure nll --measure esap --measure kl --measure ppl --measure sap"
)


@pytest.mark.parametrize(
    ("words", "width"),
    [
        ("runs list", 80),
        ("runs list", 100),
        ("inspect demo", 80),
        ("plans show plan.json", 80),
        ("blend demo --sparsity 50%", 80),
        ("fit demo --target-size 3.5MiB", 80),
        pytest.param(EVALUATE, 80, marks=pytest.mark.slow),  # it evaluates for real
        pytest.param(EVALUATE, 120, marks=pytest.mark.slow),
    ],
)
def test_lists_fit_the_window_and_keep_ids_whole(works, monkeypatch, words, width):
    works(*PLAN, "--protect", "0")
    monkeypatch.setattr(console.out, "_width", width)
    named = ("--criterion", "reap", "--calibrated-on", "demo-math", "--calibrated-on", "demo-code")
    printed = works(*words.split(), *(named if "blend" in words else ()))
    rows = [line for line in printed.splitlines() if "│" in line]
    assert rows
    assert max(map(len, rows)) <= width
    if words == "runs list":
        (run,) = SHIPPED_STATS.glob("demo-demo-math-*")
        assert run.name in printed
        assert len(rows) == 4  # a line a run, with all its groups
        assert sum("router, damage, gradient, dense" in row for row in rows) == 3
    if words == EVALUATE:  # a measure a row, with its whole interval
        assert sum("ESAP" in row for row in rows) == (2 if width == 80 else 1)
        assert len(re.findall(r"\S+ \[\S+, \S+\]", printed)) >= 3 * 3
    if words.startswith("plans"):
        # Layer 0 is whole, and the others are alike.
        assert [line.split()[0] for line in rows] == ["0", "1-5", "all"]


def test_measured_numbers_have_four_digits_and_are_not_shown_as_0():
    said = [small(value) for value in (5861.434, 46.7932, 123.45, 2e6, 1.7627, 4e-5, 0)]
    assert said == ["5,861", "46.79", "123.5", "2.00e+06", "1.7627", "4.0e-05", "0"]
    losses = [LossIncrease({"a": value}).words for value in (0.69, 0.0024, 0.0003, -0.0024, 0)]
    assert losses == [
        f"loss {number} (a)" for number in ("+0.69", "+0.002", "+0.0003", "-0.002", "+0.00")
    ]


def test_large_counts_in_tables_have_all_their_digits(capsys):
    console.show_table("counts", ("a", "b"), [(262_144.0, 12_345.6), (1e18, 3.0)])
    printed = [line.split(" \u2502 ") for line in capsys.readouterr().out.splitlines()[-2:]]
    cells = [[cell.strip() for cell in row] for row in printed]
    assert cells == [["262,144", "1.235e+04"], ["1e+18", "3"]]


def test_commands_that_serve_an_export_stay_in_one_piece(works, monkeypatch):
    works(*PLAN)
    monkeypatch.setattr(console, "_WRAPS", True)
    monkeypatch.setattr(console.out, "_width", 60)
    printed = works("export", "demo", "out", "--plan", "plan.json").splitlines()
    curls = [line for line in printed if line.startswith("curl ")]
    assert curls
    assert all(line.endswith('"temperature": 0}\'') for line in curls)


def test_the_usual_name_is_looked_at_too_and_force_replaces(refused, works, here):
    words = ("score", "demo", "--criterion", "aimer")
    (here / "scores.csv").write_text("mine")
    assert "scores.csv is there already" in refused(*words)
    works(*words, "--force")
    assert (here / "scores.csv").read_text() != "mine"
    (here / "loss-bins.html").write_text("mine")
    assert "loss-bins.html is there already" in refused("plot", "loss-bins", "demo")
