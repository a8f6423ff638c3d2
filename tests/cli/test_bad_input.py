"""Bad input: exit 1, one line on standard error, no trace of Python, nothing left behind."""

import json
import shutil
import socket
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, PhimoeConfig

from builders import VOCAB, tiny_model

NO_LAYER_HAS_EXPERTS = {"mlp_only_layers": [0, 1, 2, 3]}


def tree(folder):
    """Every path below, with the content of files."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def model(tiny, here):
    """A copy of `tiny`, to break."""
    return shutil.copytree(tiny, here / "model")


@pytest.fixture
def refused(moeprune, tmp_path):
    """Run a command that must be refused; its message."""

    def run(*words):
        before = tree(tmp_path)
        outcome = moeprune(*words)
        assert outcome.code == 1, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1
        assert outcome.err.endswith("\n")
        assert tree(tmp_path) == before
        return outcome.err

    return run


def no_config(model):
    (model / "config.json").unlink()


def config_is_no_json(model):
    (model / "config.json").write_text("{'model_type': ")


def config_is_a_list(model):
    (model / "config.json").write_text("[]")


def unsupported(model):
    LlamaConfig().save_pretrained(model)


def dense(model):
    shutil.rmtree(model)
    tiny_model("qwen3_moe", **NO_LAYER_HAS_EXPERTS).save_pretrained(model)


def missing_shard(model):
    sorted(model.glob("*.safetensors"))[1].unlink()


def index_names_a_missing_file(model):
    index = model / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    change_json(index, weight_map={**weight_map, "lm_head.weight": "elsewhere.safetensors"})


def truncated_shard(model):
    shard = sorted(model.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-5])


def cut_in_its_header(model):
    shard = sorted(model.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:20])


def pickled_only(model):
    for path in model.glob("model*"):
        path.unlink()
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def no_weights(model):
    for path in model.glob("model*"):
        path.unlink()


def wrong_count(model):
    change_json(model / "config.json", num_experts=5, num_local_experts=5)


BROKEN = {
    no_config: ["has no config.json"],
    config_is_no_json: ["config.json is not valid JSON"],
    config_is_a_list: ["config.json does not hold a JSON object"],
    unsupported: ["llama", "mixtral", "olmoe", "qwen3_moe"],
    dense: ["dense", "nothing to prune"],
    missing_shard: ["model-00002-of-", "missing"],
    index_names_a_missing_file: ["elsewhere.safetensors", "missing"],
    truncated_shard: ["model-00002-of-", "truncated"],
    cut_in_its_header: ["model-00002-of-", "truncated"],
    pickled_only: ["pickled", "convert them to safetensors"],
    no_weights: ["no safetensors file"],
    wrong_count: ["config.json says 5"],
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("command", ["inspect", "weights", "calibrate", "plan"])
def test_broken_checkpoint(refused, model, corpora, damage, command):
    damage(model)
    options = {
        "calibrate": ("--corpus", corpora[0], "--seq-len", 16, "--stats-dir", "kept"),
        "weights": ("--stats-dir", "kept"),
        "plan": ("--criterion", "aimer", "--sparsity", "0.5", "--stats-dir", "kept"),
        "inspect": (),
    }[command]
    message = refused(command, model, *options)
    for words in BROKEN[damage]:
        assert words in message


@pytest.mark.parametrize("command", ["inspect", "weights"])
def test_not_a_directory(refused, here, command):
    (here / "file").write_text("")
    assert "nowhere is not a directory" in refused(command, "nowhere")
    assert "file is not a directory" in refused(command, "file")


CORPORA = {
    "nothing.jsonl": ("", "is empty"),
    "nothing.txt": (" \n\n \n", "is empty"),
    "no-token.jsonl": ('{"input_ids": []}\n', "no token"),
    "list.jsonl": ("[1, 2]\n", "line 1 is not a JSON object"),
    "cut.jsonl": ('{"input_ids": [5, 6]}\n{"inp', "line 2 is not JSON"),
    "fields.jsonl": ('{"words": "a"}\n', "words"),
    "words.jsonl": ('{"input_ids": ["a"]}\n', "input_ids"),
    "negative.jsonl": ('{"input_ids": [4, -1]}\n', "input_ids"),
    "large.jsonl": ('{"input_ids": [4, 96]}\n', "token id 96"),
    "mixed.jsonl": ('{"input_ids": [4]}\n{"text": "a"}\n', "mixes|no tokenizer"),
    "text.txt": ("Some text.\n", "no tokenizer"),
    "no.parquet": ("text", "not a readable parquet"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_bad_corpus_file(refused, tiny, here, name):
    content, words = CORPORA[name]
    (here / name).write_text(content)
    message = refused("calibrate", tiny, "--corpus", name, "--stats-dir", "kept")
    assert any(part in message for part in words.split("|")), message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--corpus", "demo-moth"), "Did you mean 'demo-math'?"),
        (("--corpus", "absent.jsonl"), "absent.jsonl does not exist"),
        (("--corpus", "demo-math", "--tokens", 100), "less than one sequence of 256"),
        (("--corpus", "demo-math", "--tokens", 0), "--tokens: "),
        (("--corpus", "demo-math", "--batch-size", 0), "--batch-size: "),
        (("--corpus", "demo-math", "--seed", -1), "--seed: "),
        (
            ("--corpus", "demo-math", "--dtype", "int8"),
            "--dtype: Input should be 'auto', 'float32', 'bfloat16'",
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
    assert "layer 0 works only with all of its 2 experts" in message


def test_unusable_device_leaves_at_most_partials(moeprune, here):
    words = ("calibrate", "demo", "--corpus", "demo-math", "--device", "tpu9", "--stats-dir", ".")
    outcome = moeprune(*words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "try cpu" in outcome.err
    assert all(".partial" in path.name for path in here.iterdir())


def test_corpus_shorter_than_one_sequence(refused, here):
    (here / "short.txt").write_text("Few words.")
    message = refused("calibrate", "demo", "--corpus", "short.txt", "--stats-dir", "kept")
    assert "less than one sequence of 256" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--criterion raep --sparsity 0.5", "Did you mean 'reap'?"),
        ("--criterion 1,0,0 --sparsity 0.5", "ranks nothing"),
        ("--criterion 2,0,0 --sparsity 0.5", "out of range"),
        ("--criterion aimer --sparsity half", "no number"),
        ("--criterion aimer --sparsity 50", "out of range"),
        ("--criterion aimer --sparsity=-0.1", "out of range"),
        ("--criterion aimer --sparsity nan", "no number"),
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
        ("--criterion reap --sparsity 0.5 --run tiny-red -o no/plan.json", "no/plan.json"),
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


def test_score_and_overlap_into_a_folder_that_is_not_there(refused, tiny, stats):
    common = ("--stats-dir", stats, "-o", "no/x.csv")
    assert "no/x.csv" in refused("score", tiny, "--criterion", "aimer", *common)
    assert "no/x.csv" in refused("overlap", tiny, "--sparsity", "0.5", *common)


def test_overlap_needs_two_corpora_and_a_criterion_that_reads_them(refused, tiny, other, stats):
    words = ("--sparsity", "0.5", "--stats-dir", stats)
    assert "at least two corpora; other has 1" in refused("overlap", other, *words)
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


def test_export_of_the_plan_of_another_model(refused, other, plan):
    assert "was made for tiny" in refused("export", other, "out", "--plan", plan)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 99}', "schema_version 99"),
        ('{"schema_version": 1}', "kept"),
        ('{"schema_version": 1, "kept": {"0": [0, 1]}}', "model"),
    ],
)
def test_bad_plan_file(refused, tiny, here, content, words):
    (here / "bad.json").write_text(content)
    assert words in refused("export", tiny, "out", "--plan", "bad.json")


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"0": [0]}, "at most 66.67% of them can go"),
        ({"1": [0, 1]}, "layer 1, which has no routed experts"),
        ({"0": [0, 1, 6]}, "keeps expert 6"),
        ({"0": [0, 0, 1]}, "twice"),
    ],
)
def test_plan_that_does_not_fit(refused, tiny, plan, kept, words):
    change_json(plan, kept=kept)
    assert words in refused("export", tiny, "out", "--plan", plan)


def test_export_without_disk_space(refused, tiny, plan, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1000))
    message = refused("export", tiny, "out", "--plan", plan)
    assert "needs" in message
    assert "1000 B free" in message


def test_verify_of_what_is_no_export(moeprune, refused, tiny):
    assert "not a directory" in refused("verify", "nowhere")
    outcome = moeprune("verify", tiny)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "not a finished export" in outcome.err


def test_verify_at_the_logits_needs_the_source(works, refused, tiny, plan):
    works("export", tiny, "out", "--plan", plan)
    assert "--source" in refused("verify", "out", "--level", "logits")
    assert "Unknown level 'logit'. Did you mean 'logits'?" in refused(
        "verify", "out", "--level", "logit"
    )


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("runs show nothing", "'nothing' is unknown"),
        ("runs verify tiny-", "is not unique"),
        ("runs merge tiny-red", "at least two"),
        ("runs merge tiny-red tiny-red", "count them once"),
        ("runs merge tiny-red other-", "different models"),
        ("runs merge tiny-red tiny-weights", "Only calibration runs add up"),
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
