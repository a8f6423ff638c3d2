"""Bad input: exit 1, one line on standard error, no trace of Python, nothing left behind."""

import shutil
import socket

import pytest
from folder_tree import tree
from transformers import AutoModelForCausalLM, PhimoeConfig

from builders import VOCAB, edit_json


@pytest.fixture
def model(tiny, here):
    """A copy of `tiny`, to break."""
    return shutil.copytree(tiny, here / "model")


# What else may be wrong with a checkpoint or a corpus, tests/analysis has.
BROKEN = {
    "no config": (lambda model: (model / "config.json").unlink(), "has no config.json"),
    "missing shard": (lambda model: sorted(model.glob("*.safetensors"))[1].unlink(), "missing"),
    "wrong count": (
        lambda model: edit_json(model / "config.json", num_experts=5, num_local_experts=5),
        "config.json says 5",
    ),
}


@pytest.mark.parametrize("damage", BROKEN)
@pytest.mark.parametrize("command", ["inspect", "weights", "calibrate", "plan"])
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


@pytest.mark.parametrize("command", ["inspect", "weights"])
def test_not_a_directory(refused, here, command):
    (here / "file").write_text("")
    assert "nowhere is not a directory" in refused(command, "nowhere")
    assert "file is not a directory" in refused(command, "file")


CORPORA = {
    "nothing.jsonl": ("", "is empty"),
    "no-token.jsonl": ('{"input_ids": []}\n', "no token"),
    "large.jsonl": ('{"input_ids": [4, 96]}\n', "token id 96"),
    "text.txt": ("Some text.\n", "no readable tokenizer"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_bad_corpus_file(refused, tiny, here, name):
    content, words = CORPORA[name]
    (here / name).write_text(content)
    assert words in refused("calibrate", tiny, "--corpus", name, "--stats-dir", "kept")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--corpus", "demo-math", "--tokens", 100), "less than one sequence of 256"),
        (("--corpus", "demo-math", "--batch-size", 0), "--batch-size: "),
        (
            ("--corpus", "demo-math", "--dtype", "int8"),
            "--dtype: choose 'auto', 'float32', 'bfloat16'",
        ),
        (("--corpus", "demo-math", "--dtype", "FLOAT23"), "Did you mean 'float32'?\n"),
        (
            ("--corpus", "demo-math", "--device-map", "auto", "--max-memory", "cpu=lots"),
            "error: --max-memory: write DEVICE=SIZE, as 0=20GiB or cpu=8GiB (got 'cpu=lots').\n",
        ),
        (
            ("--corpus", "demo-math", "--groups", " ,"),
            "error: --groups: name one of routed, router, damage, gradient, dense, or leave",
        ),
        (
            ("--corpus", "demo-math", "--select", "kmeans"),
            "error: --select kmeans and --clusters K belong together.\n",
        ),
    ],
)
def test_bad_calibration(refused, options, words):
    assert words in refused("calibrate", "demo", *options, "--stats-dir", "kept")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("demo-moth", "Did you mean 'demo-math'?"),
        ("absent.jsonl", "absent.jsonl does not exist"),
        ("wrong.jsonl", "wrong.jsonl, line 1 has the fields words"),
    ],
)
def test_a_bad_corpus_is_found_before_the_ones_before_it_run(
    refused, here, tiny, corpora, second, words
):
    (here / "wrong.jsonl").write_text('{"words": "A cat."}\n')
    names = ("--corpus", corpora[0], "--corpus", second)
    message = refused("calibrate", tiny, *names, "--stats-dir", "kept")
    assert words in message


def test_packing_knows_the_attention_before_the_model_is_loaded(refused, tiny, corpora):
    options = ("--packing", "pack", "--attention", "flash_attention_2", "--dry-run")
    message = refused("calibrate", tiny, "--corpus", corpora[0], *options)
    assert "cannot be packed with the attention flash_attention_2; choose one of eager" in message


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
    options = ("--groups", "damage", "--dry-run")
    message = refused("calibrate", "two", "--corpus", corpora[0], *options)
    assert "layer 0 needs all of its 2 experts" in message


def test_unusable_device_leaves_at_most_partials(moeprune, here):
    words = ("calibrate", "demo", "--corpus", "demo-math", "--device", "tpu9", "--stats-dir", ".")
    outcome = moeprune(*words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "try cpu" in outcome.err
    assert all(".partial" in path.name for path in here.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        # 1 of 6 experts would stay, the router picks 2.
        ("--criterion aimer --sparsity 83.4%", "at most 66.67% of them can go"),
        ("--criterion reap --sparsity 0.5 --corpus grey", "grey"),
        ("--criterion reap --sparsity 0.5", "choose with --corpus"),
        ("--criterion reap --sparsity 0.5 --run nothing", "'nothing' is unknown"),
        ("--criterion reap --sparsity 0.5 --run other-", "statistics of another model"),
        ("--criterion reap --sparsity 0.5 --run tiny-", "is not unique"),
        ("--criterion reap --sparsity 0.5 --run tiny-weights", ""),
        ("--criterion reap --sparsity 0.5 --run tiny-red --gate strong", "'applied'"),
        ("--criterion reap --sparsity 0.5 --run tiny-red --schedule slope", "'slope'"),
    ],
)
def test_bad_plan(refused, tiny, stats, options, words):
    before = tree(stats)
    message = refused("plan", tiny, *options.split(), "--stats-dir", stats)
    assert words in message
    assert tree(stats) == before


def test_no_statistics_says_how_to_make_them(refused, tiny):
    message = refused("plan", tiny, "--criterion", "reap", "--sparsity", "0.5")
    assert "moeprune calibrate" in message


def test_overlap_needs_two_corpora_and_a_criterion_that_reads_them(refused, tiny, other, stats):
    words = ("--sparsity", "0.5", "--stats-dir", stats)
    assert "at least two corpora and has only red" in refused("overlap", other, *words)
    assert "reads no corpus" in refused("overlap", tiny, "--criterion", "aimer", *words)


@pytest.fixture
def plan(works, tiny, stats, here):
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "0.5", "--stats-dir", stats)
    return here / "plan.json"


def test_export_into_a_folder_that_is_not_empty(refused, tiny, plan, here):
    (here / "out").mkdir()
    (here / "out" / "precious").write_text("mine")
    assert "not empty" in refused("export", tiny, "out", "--plan", plan)
    assert "a file" in refused("export", tiny, plan, "--plan", plan)


def test_verify_of_what_is_no_export(moeprune, refused, tiny):
    assert "not a directory" in refused("verify", "nowhere")
    outcome = moeprune("verify", tiny)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "not a finished export" in outcome.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("runs show nothing", "'nothing' is unknown"),
        ("runs verify tiny-", "is not unique"),
        ("runs merge tiny-red", "at least two"),
        ("runs merge tiny-red tiny-red", "use them once"),
        ("runs merge tiny-red other-", "different models"),
        ("runs merge tiny-red tiny-weights", "Only calibration runs can be added"),
        ("runs remove demo-weights --yes", "ships with the program"),
    ],
)
def test_bad_use_of_the_cache(refused, stats, words, answer):
    before = tree(stats)
    assert answer in refused(*words.split(), "--stats-dir", stats)
    assert tree(stats) == before


@pytest.mark.parametrize("command", ["show", "logs", "cancel"])
def test_unknown_job(works, refused, command):
    works("jobs", "list")  # makes the table
    assert "There are no jobs yet" in refused("jobs", command, "0123")


def test_server_with_folders_that_are_not_there(refused):
    assert "nowhere is not a directory" in refused("app", "--stats-dir", "nowhere")
    assert "nowhere is not a directory" in refused("app", "--models-root", "nowhere")


@pytest.mark.parametrize("command", ["app", "demo"])
def test_server_on_a_port_in_use(refused, command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"The port {port} is in use" in refused(command, "--port", port)


def test_verify_at_the_logits_needs_the_source(works, refused, tiny, plan):
    works("export", tiny, "out", "--plan", plan)
    assert "--source" in refused("verify", "out", "--level", "logits")
    assert "Unknown level 'logit'. Did you mean 'logits'?" in refused(
        "verify", "out", "--level", "logit"
    )
