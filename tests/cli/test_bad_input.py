"""Bad input: exit 1, one line on standard error, no trace of Python, nothing left behind.

A mistake that a command alone shows, beside the files of `wrong_files.py`, is a line of the
transcripts in `refusals` instead.
"""

import json
import re
import shlex
import shutil
import socket
import sys

import pytest
from transformers import AutoModelForCausalLM, PhimoeConfig

from analysis.errors import UserError
from analysis.machine.extras import install_line
from app.cli import COMMANDS
from app.cli.usage import LOOKED_FOR
from builders import VOCAB, edit_json
from pruning import Model


@pytest.fixture
def model(tiny, here):
    """A copy of `tiny`, to break."""
    return shutil.copytree(tiny, here / "model")


# What else may be wrong with a checkpoint or a corpus, tests/analysis has.
BROKEN = {
    "missing shard": (lambda model: sorted(model.glob("*.safetensors"))[1].unlink(), "missing"),
    "wrong count": (
        lambda model: edit_json(model / "config.json", num_experts=5, num_local_experts=5),
        "config.json says 5",
    ),
}


@pytest.mark.parametrize(
    ("damage", "command"),
    [*((damage, "inspect") for damage in BROKEN), ("wrong count", "calibrate")]
    + [("missing shard", command) for command in ("weights", "plan")],
)
def test_broken_checkpoint(refused, model, corpora, damage, command):
    change, words = BROKEN[damage]
    change(model)
    options = {
        "calibrate": ("--corpus", corpora[0], "--seq-len", 16, "--stats-dir", "kept"),
        "weights": ("--stats-dir", "kept"),
        "plan": ("--criterion", "aimer", "--sparsity", "0.5", "--stats-dir", "kept"),
        "inspect": (),
    }[command]
    assert words in refused(command, model, *options)


def test_damage_is_refused_before_the_model_is_loaded(refused, here, corpora):
    config = PhimoeConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(here / "two")
    options = ("--group", "damage", "--dry-run")
    message = refused("calibrate", "two", "--corpus", corpora[0], *options)
    assert "layer 0 needs all of its 2 experts" in message


def test_unusable_device_leaves_at_most_partials(moeprune, here):
    words = ("calibrate", "demo", "--corpus", "demo-math", "--device", "tpu9", "--stats-dir", ".")
    outcome = moeprune(*words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "try cpu" in outcome.err
    assert all(".partial" in path.name for path in here.iterdir())


def test_unknown_job(works, refused):
    works("jobs", "list")  # makes the table
    for command in ("show", "logs", "cancel"):
        assert "There are no jobs yet" in refused("jobs", command, "0123")


def test_server_on_a_port_in_use(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"The port {port} is in use" in refused("demo", "--port", port)


PYTHON = {
    "a folder that is not there": (lambda: Model("nowhere"), "nowhere is not a directory"),
    "a criterion": (lambda: Model("demo").rank("REAP"), "Did you mean 'reap'?"),
    "no corpus": (lambda: Model("demo").rank("reap"), "choose with --calibrated-on"),
    "a corpus": (lambda: Model("demo").rank("reap", "demo-cod"), "Did you mean 'demo-code'?"),
    "a budget": (lambda: Model("demo").plan("aimer"), "give one budget"),
    "an option": (
        lambda: Model("demo").plan("aimer", sparsty="50%"),
        "Unknown option 'sparsty'. Did you mean 'sparsity'?",
    ),
    "a dtype": (
        lambda: Model("demo").calibrate("demo-code", dtype="bf16"),
        "--dtype: choose 'auto', 'float32', 'bfloat16'",
    ),
    "several bits": (
        lambda: Model("demo").evaluate(corpus="demo-code", bits=[8, 4]),
        "call it once for each",
    ),
    "no export": (lambda: Model("demo").verify("nowhere"), "give the folder of an export"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_mistake_in_python_is_one_line(here, name):
    wrong, part = PYTHON[name]
    with pytest.raises(UserError) as raised:
        wrong()
    message = str(raised.value)
    assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("kaleido", "plot sizes demo --criterion aimer --sparsity 50% -o map.svg", "plots"),
        ("lm_eval", "benchmark demo --task arc_easy", "eval"),
        ("submitit", "app --slurm partition=gpu", "slurm"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_line(
    refused, here, monkeypatch, module, words, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    message = refused(*shlex.split(words))
    assert install_line(extra) in message


def test_one_reason_that_keeps_several_figures_out_of_a_report_is_said_once(works, here):
    views = ("--view", "kept-by", "--view", "damage-proxy", "--view", "overlap-map")
    said = works("report", "demo", *views)
    assert said.count("choose with --calibrated-on") == 1


def test_words_that_are_no_commands_lead_to_commands_that_exist():
    named = re.findall(r"`moeprune (\w+)", " ".join(LOOKED_FOR.values()))
    assert len(named) > len(LOOKED_FOR) - 2
    assert set(named) <= COMMANDS.keys()
    assert not LOOKED_FOR.keys() & COMMANDS.keys()


@pytest.mark.parametrize("name", ["STATS_DIR", "STATE_DIR", "EXPORT_ROOT", "MODELS_ROOT"])
@pytest.mark.parametrize("words", ["jobs list", "demo"])
@pytest.mark.parametrize("path", ["plan.json", "plan.json/below"])
def test_a_variable_that_names_a_file_is_refused(refused, here, monkeypatch, name, words, path):
    (here / "plan.json").touch()
    monkeypatch.setenv(f"MOEPRUNE_{name}", path)
    message = refused(*words.split())
    assert f"MOEPRUNE_{name}: " in message
    assert "plan.json is a file; name a folder, or unset the variable." in message


def test_folders_of_the_dashboard_are_there_or_can_be_made(refused, here, monkeypatch):
    (here / "plan.json").touch()
    assert "plan.json is a file; name" in refused("app", "--export-root", "plan.json")
    monkeypatch.delenv("MOEPRUNE_EXPORT_ROOT")
    (here / "exports").touch()  # the usual folder
    assert f"--export-root: {here}/exports is a file" in refused("app")
    (here / "exports").unlink()
    monkeypatch.setenv("MOEPRUNE_MODELS_ROOT", "nowhere")
    assert "MOEPRUNE_MODELS_ROOT: nowhere is not a directory" in refused("app")


def test_a_place_that_takes_no_file_is_refused_before_any_work(refused, here, monkeypatch):
    monkeypatch.setattr("app.cli.files.unwritable", lambda folder: "Read-only file system")
    message = refused(
        *["plan", "demo", "--criterion", "aimer", "--sparsity", "50%"], "-o", "new.json"
    )
    assert "new.json cannot be written (Read-only file system); name another file" in message


def test_a_recipe_does_not_export_over_another_model(works, refused, here, other):
    works("plan", other, "--criterion", "random", "--sparsity", "50%", "-o", "other.json")
    works("export", other, "done", "--plan", "other.json")
    keys = {"model": "demo", "criterion": "aimer", "budget": {"sparsity": "50%"}}
    (here / "over.yaml").write_text(json.dumps({**keys, "export": {"out": "done"}}))
    assert "done holds an export of other, not of demo" in refused("prune", "over.yaml")


def test_a_statistics_folder_that_is_read_only_still_gives_what_it_holds(
    works, moeprune, tiny, corpora, stats, monkeypatch
):
    def refuse(folder):
        return f"{folder} is read-only"

    monkeypatch.setattr("analysis.stats.store.unwritable", refuse)
    sizes = ("--tokens", 64, "--seq-len", 16, "--stats-dir", stats)
    assert "from the cache" in works("calibrate", tiny, "--corpus", corpora[0], *sizes)
