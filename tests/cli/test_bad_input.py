"""Bad input: exit 1, one line on standard error, no trace of Python, nothing left behind."""

import shutil
import socket

import pytest
from transformers import AutoModelForCausalLM, PhimoeConfig

from analysis.errors import UserError
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


WRONG_FILES = {
    "inspect dmeo": "Did you mean 'demo'?",
    "inspect empty.json": "empty.json is a file; give the folder of a checkpoint",
    "inspect model/model.safetensors.index.json": "is a file; give the checkpoint's folder, /",
    "inspect ~nobody-here": "is not a directory",
    "plan demo --criterion aimer --sparsity 50% --floor 99": "exceeds the 32 experts",
    "plans show empty.json": "states no schema_version",
    "prune open.yaml": "in open.yaml, line 1",
    "plan demo --criterion aimer --schedule file --schedule-file open.yaml": "in open.yaml, line 1",
}


@pytest.mark.parametrize("line", WRONG_FILES)
def test_a_wrong_file_or_name_is_called_what_it_is(refused, here, tiny, line):
    (here / "empty.json").write_text("{}")
    (here / "open.yaml").write_text("model: [x")
    (here / "model").symlink_to(tiny)
    assert WRONG_FILES[line] in refused(*line.split())


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
