"""The program itself: help, usage errors, --debug, a full disk, and a light start."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args, get_origin

import pytest
from published_models import QWEN3
from typer.models import OptionInfo

import app
import app.cli
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from app.cli import COMMANDS, find
from app.cli.help import paragraphs
from builders.traffic import write_traces
from tests.reliability.faults import full_at
from tools.reference.commands import all_commands, options_of


def test_the_entry_point_of_the_package_is_the_same_program():
    (script,) = entry_points(group="console_scripts", name="moeprune")
    assert script.load() is app.cli.main


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        ({}, True),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, False, marks=pytest.mark.slow),
    ],
    ids=["usual", "asked"],
)
def test_threads_do_not_spin_unless_asked_to(asked, waits):
    # A command, and then the library that commands load where they need it.
    program = (
        "import sys\nfrom app.cli import main\nsys.argv[1:] = ['--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    assert 'torch' not in sys.modules\n"
        "import torch\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **asked, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    # What the library of torch's threads read when it was loaded.
    assert ("GOMP_SPINCOUNT = '0'" in done.stderr) is waits


def test_debug_gives_the_trace(here):
    words = [sys.executable, "-m", "app.cli", "inspect", "nowhere", "--debug"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback (most recent call last)" in ended.stderr
    assert "CheckpointError: nowhere is not a directory" in ended.stderr


def test_tables_in_a_pipe_are_as_wide_as_columns_says():
    asks = [sys.executable, "-c", "from app.console import out; print(out.width)"]
    given = {"PYTHONPATH": ROOT, "PATH": os.environ["PATH"]}
    for more, width in (({}, "240"), ({"COLUMNS": "90"}, "90")):
        done = subprocess.run(asks, capture_output=True, text=True, check=True, env=given | more)
        assert done.stdout.strip() == width


def test_debug_may_stand_anywhere_and_changes_no_result(works, tiny):
    assert works("--debug", "inspect", tiny) == works("inspect", tiny, "--debug")


def test_a_file_that_cannot_grow_is_one_line_and_leaves_no_run(
    moeprune, works, tiny, corpora, here
):
    """As on a full disk: the system refuses to write more."""
    words = ("calibrate", tiny, "--corpus", corpora[0], "--seq-len", 16, "--stats-dir", here)
    with full_at(2000):
        ended = moeprune(*words)
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(rf"error: {re.escape(str(here))}.*: .*[Ff]ile too large.*\n", ended.err)
    assert all(".partial" in path.name for path in here.iterdir())
    # The next run of the same command goes through, and tidies up.
    works(*words)
    (run,) = (path for path in here.iterdir() if path.is_dir())
    assert ".partial" not in run.name


ROOT = str(Path(app.__path__[0]).parent)
NEVER = {"torch", "transformers", "numba", "scipy", "sklearn", "plotly", "streamlit", "datasets"}
TABLES = NEVER | {"pandas", "pyarrow"}
ARRAYS = TABLES | {"numpy"}
# One process runs all: what is loaded stays, so those that may load least come first.
RUN = (
    "import json, sys\nfrom app.cli import main\n"
    "for words in json.loads(sys.argv[1]):\n"
    "    sys.argv = ['moeprune', *words.split()]\n"
    "    try:\n        main()\n    except SystemExit:\n        pass\n"
    "    print('\\nmodules', *(name for name in sys.modules if '.' not in name))"
)
STARTS = {
    "--help": ARRAYS,
    "app --stats-dir absent": ARRAYS,
    "jobs list": ARRAYS,
    "calibrate demo --corpus demo-math --dtype int8": TABLES,
    "plan demo --criterion reap --sparsity 150%": TABLES,
    "export demo out --plan absent.json": TABLES,
    "calibrate demo --corpus absent.jsonl": TABLES,
    "evaluate demo --corpus c4=absent": TABLES,
    "sensitivity demo --criterion aimer --corpus demo-code --corpus absent.txt": TABLES,
    "calibrate demo --corpus broken.jsonl": TABLES,
    "calibrate demo --corpus demo-code --device-map atuo": TABLES,
    "calibrate demo --corpus demo-code --group heads": TABLES,
    "calibrate demo --corpus prose.txt --tokens 64": TABLES,
    "inspect qwen --config-only": TABLES,
    "evaluate demo --corpus broken.jsonl": TABLES,
    "evaluate demo --corpus hub:openai/gsm8k,split=test": TABLES,
    "bins demo --corpus demo-math --criterion reap": TABLES,
    "variance demo --corpus demo-math --criterion reap --sparsity 50%": TABLES,
    "sensitivity demo --criterion aimer --corpus demo-math --target-size 1": TABLES,
    "ask demo --prompt Hello --plan absent.json": TABLES,
    "benchmark demo --task typo": TABLES,
    "prune recipe.yaml": TABLES,
    "search recipe.yaml": TABLES,
    "inspect demo": TABLES,
    "plan demo --criterion reap --calibrated-on demo-math --sparsity 50%": NEVER,
    "plot nothing demo": NEVER - {"plotly"},
}


def test_nothing_heavy_is_imported_before_it_is_needed(here):
    (here / "broken.jsonl").write_text('{"text": \n')
    (here / "prose.txt").write_text("Some text.\n")
    (here / "qwen").mkdir()
    (here / "qwen" / "config.json").write_text(json.dumps(QWEN3))
    recipe = "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
    (here / "recipe.yaml").write_text(recipe + "search: {corpus: absent.jsonl}\n")
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(list(STARTS))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("modules ")]
    loaded = dict(zip(STARTS, map(set, lines), strict=True))
    early = {words: loaded[words] & heavy for words, heavy in STARTS.items()}
    assert not any(early.values()), early


def test_the_list_of_commands_says_what_each_says_of_itself():
    for name, listed in COMMANDS.items():
        found = find(name)
        said = getattr(found, "info", None)
        assert listed == (said.help if said else found.__doc__.split("\n\n")[0]), name


def test_help_by_either_name_is_in_steps_and_tells_what_every_command_takes(works):
    listed = works("-h")
    assert listed == works("--help")
    places = [listed.index(f"\n{step}:\n") for step in ("Begin", "Plan", "Judge", "Ship")]
    assert places == sorted(places)
    for words in (("plan",), ("recipe", "init"), ("runs", "list")):
        said = works(*words, "-h")
        assert said == works(*words, "--help")
        assert "--debug" in said


def test_help_has_an_example_and_a_word_for_every_value(works):
    for words, function in all_commands():
        said = works(*words.split(), "-h")
        assert max(map(len, said.splitlines())) <= 100, words
        assert not re.search(r"<[a-z]+>", said), words
        (example,) = re.findall(r"^Example:\n  (moeprune .*?)\n\n", said, flags=re.S | re.M)
        program, *rest = shlex.split(example.replace("\\\n", " "))
        assert [program, *rest[: len(words.split())]] == ["moeprune", *words.split()]
        used = {word for word in rest if word.startswith("-")}
        assert used <= options_of(function), words
        # Who may give an option several times reads so.
        for parameter in inspect.signature(function).parameters.values():
            kind, info = get_args(parameter.annotation) or (None, None)
            if isinstance(info, OptionInfo) and list in {kind, *map(get_origin, get_args(kind))}:
                assert "epeatable" in info.help, (words, parameter.name)


@pytest.mark.slow  # every command on the demo
def test_the_examples_of_help_run(works, here):
    shown = {words: paragraphs(function.__doc__)[1] for words, function in all_commands()}
    first = ("recipe init", "plan", "repair", "export")  # what others read
    servers, others = ("app", "demo"), ("search", "runs merge", "runs remove")
    write_traces(here / "monday.jsonl", load_model_index(str(DEMO_CHECKPOINT)).layers)
    for line in (
        "plan demo --criterion aimer --sparsity 50% -o other.json",
        "export demo published --plan other.json",  # for compare-checkpoints
        "sensitivity demo --criterion aimer --corpus demo-math --samples 2 --levels 2 --bits 2",
    ):
        works(*line.split())
    for words in (*first, *(name for name in shown if name not in first)):
        if words not in (*servers, *others) and not words.startswith("jobs"):
            works(*shlex.split(shown[words])[1:])
