"""inspect, calibrate and weights: what a model is, and what is measured of it."""

import json
import re

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig

from analysis.corpora.spec import corpus_name
from builders import tiny_checkpoint


def files_below(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*")) if folder.exists() else []


def test_calibrate_makes_one_run_for_each_corpus(works, tiny, corpora, here):
    red, blue = corpora
    common = ("--tokens", 64, "--seq-len", 16, "--stats-dir", "kept")
    said = works("calibrate", tiny, "--corpus", red, "--corpus", blue, *common)
    # Six rows of 9, 8, 7, 9, 8, 7 ids.
    assert said.count(": 48 tokens of ") == 2
    listed = works("runs", "list", "--stats-dir", "kept")
    assert {"tiny-red", "tiny-blue"} <= set(re.findall(r"tiny-\w+(?=-[0-9a-f]{8} )", listed))
    for run in (path for path in (here / "kept").iterdir() if path.is_dir()):
        assert {path.name for path in run.iterdir()} == {
            "manifest.json",
            "experts.parquet",
            "shards.parquet",
            "vectors.parquet",
        }
        # 48 tokens pick 2 experts each, in three layers.
        assert pd.read_parquet(run / "experts.parquet")["num_tokens"].sum() == 48 * 2 * 3


def test_calibrate_again_finds_the_run_in_the_cache(moeprune, tiny, corpora, stats):
    words = ("calibrate", tiny, "--corpus", corpora[0], "--tokens", 64, "--seq-len", 16)
    before = files_below(stats)
    outcome = moeprune(*words, "--stats-dir", stats)
    assert outcome.code == 0
    assert outcome.err.endswith("is in the cache\n")
    assert files_below(stats) == before


def test_dry_run_says_tokens_memory_and_time_and_keeps_rates_alone(works, tiny, corpora, tmp_path):
    before = files_below(tmp_path)
    said = works("calibrate", tiny, "--corpus", corpora[0], "--seq-len", 16, "--dry-run")
    assert "nothing was run" in said
    for column in ("sequences", "tokens", "padded", "memory", "time"):
        assert column in said
    # The first batch holds all six rows, padded to 9: 6 * 9 - 48.
    facts = dict(re.findall(r"^(\w+) {2,}(.+?) *$", said, flags=re.M))
    assert facts["corpus"] == corpus_name(str(corpora[0]))
    assert (facts["sequences"], facts["tokens"], facts["padded"]) == ("6", "48", "6")
    assert re.fullmatch(r"[\d.]+ [MG]iB", facts["memory"])  # Python's own, above all
    assert re.fullmatch(r"about \d+ s", facts["time"])
    # The rates of this machine, for the next command, are all that is kept, in the user's cache.
    new = [path for path in files_below(tmp_path) if path not in before]
    files = [path for path in new if (tmp_path / path).is_file()]
    assert any(path.match("home/cache/*/rates-*.json") for path in files)
    assert all(path.match("home/cache/*/*rates-*") for path in files)
    assert all(path.is_relative_to("home") for path in new)


def test_weights_are_measured_once(moeprune, works, tiny, here):
    said = works("weights", tiny, "--stats-dir", "kept")
    assert re.match(r"tiny-weights-[0-9a-f]{8}: weights of 18 experts, [\d.]+ s\n", said)
    outcome = moeprune("weights", tiny, "--stats-dir", "kept")
    assert (outcome.code, outcome.err.strip().endswith("is in the cache")) == (0, True)
    (run,) = (path for path in (here / "kept").iterdir() if path.is_dir())
    assert {path.name for path in run.iterdir()} == {"manifest.json", "weights.parquet"}


def test_statistics_go_to_the_user_cache_whatever_the_working_directory_holds(
    works, tiny, here, tmp_path
):
    (here / "cached_stats").mkdir()
    works("weights", tiny)
    assert [path.name for path in files_below(here)] == ["cached_stats"]
    assert len(list((tmp_path / "home").rglob("weights.parquet"))) == 1


def facts_of(said):
    """The two columns before the table of sizes."""
    lines = said.partition("\nSize on disk")[0].splitlines()
    pairs = (line.partition("  ") for line in lines if "  " in line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def edit_config(path, **changes):
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    """Groups, a correction bias, shared experts, a dense layer, and a head beyond the trunk."""
    path = tmp_path_factory.mktemp("deepseek")
    config = DeepseekV3Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, moe_intermediate_size=8,
        num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=2,
        num_key_value_heads=2, n_routed_experts=12, n_shared_experts=2, n_group=3, topk_group=2,
        num_experts_per_tok=3, kv_lora_rank=8, q_lora_rank=None, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=8, pad_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    head = {
        name.replace("layers.2.", "layers.3."): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.2." in name
    }
    save_file({**tensors, **head}, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_inspect_shows_all_that_a_router_and_its_layers_have(works, deepseek):
    said = works("inspect", deepseek)
    facts = facts_of(said)
    assert facts["layers"] == "3, 2 with experts; without: 0"
    assert facts["groups"] == "3, each keeps as many"
    assert facts["correction bias"].startswith("gate.e_score_correction_bias; pruned with")
    assert facts["shared experts"] == "2 of width 8 each; never scored or pruned"
    assert facts["layout"] == "one tensor per expert and projection"
    assert facts["prediction heads"].startswith("model.layers.3, with experts; export drops them")
    assert facts["gate weights"].startswith("sigmoid")
    # Three groups keep two each: 1 - 6 / 12.
    assert "up to a sparsity of 0.5: each router chooses among 3 groups" in " ".join(said.split())
    assert "prediction heads (MTP)" in said


def test_inspect_shows_the_layout_of_stacked_experts(works, tmp_path):
    config = GptOssConfig(
        vocab_size=32, hidden_size=16, intermediate_size=8, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=5, num_experts_per_tok=2,
        layer_types=["full_attention"], pad_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    facts = facts_of(works("inspect", tmp_path))
    assert facts["layout"] == "one tensor per projection, all experts stacked, transposed"
    assert "correction bias" not in facts  # the router's bias is a part of its logits


def test_inspect_says_that_an_architecture_was_discovered_and_what_was_assumed(works, tmp_path):
    tiny_checkpoint(tmp_path, "olmoe")
    edit_config(tmp_path, model_type="new_moe")
    said = works("inspect", tmp_path)
    architecture = facts_of(said)["architecture"]
    assert architecture == "new_moe (new_moe), discovered: not in the table of families"
    assert "assumed: the router is mlp.gate.weight" in said


def test_inspect_offers_no_calibration_of_what_cannot_be_loaded(works, tmp_path):
    tiny_checkpoint(tmp_path, "olmoe")
    assert "next: moeprune calibrate" in works("inspect", tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "compressed-tensors"})
    said = works("inspect", tmp_path)
    assert "cannot be calibrated, as checkpoints quantised with compressed-tensors" in said
    assert "next:" not in said


def test_inspect_of_a_configuration_alone_says_the_same(works, moeprune, tiny, here):
    (here / "config.json").write_bytes((tiny / "config.json").read_bytes())
    alone, whole = (works("inspect", *words) for words in ((here, "--config-only"), (tiny,)))
    differ = {"model", "shards", "identity", "by"}
    first, second = (
        {k: v for k, v in facts_of(said).items() if k not in differ} for said in (alone, whole)
    )
    assert first == second
    assert "identity" not in facts_of(alone)  # of a configuration: no checkpoint has it
    sizes = [re.split("\nSize on disk|\nnext:", said)[1] for said in (alone, whole)]
    assert sizes[0] == sizes[1]
    assert "no safetensors file" in moeprune("inspect", here).err


def test_a_folder_without_weights_is_told_what_its_configuration_can_show(moeprune, tiny, here):
    (here / "bare").mkdir()
    (here / "bare" / "config.json").write_bytes((tiny / "config.json").read_bytes())
    outcome = moeprune("inspect", "bare")
    assert outcome.code == 1
    assert "`moeprune inspect bare --config-only`" in outcome.err
    said = moeprune("inspect", "bare", "--config-only").out
    (following,) = re.findall("next: moeprune (.+)", said)
    assert following.startswith("plan bare --config-only --shrink ")
    assert moeprune(*following.split()).code == 0


def test_inspect_adds_up_to_the_bytes_of_all_tensors(works, tiny):
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    table = works("inspect", tiny).partition("Size on disk")[2]
    sizes = re.findall(r"│ +([\d.]+) (B|KiB)\b", table)
    total = sum(float(size) * (1024 if unit == "KiB" else 1) for size, unit in sizes)
    # Six parts, each rounded to a whole KiB.
    assert total == pytest.approx(index["metadata"]["total_size"], abs=6 * 512)


def test_inspect_counts_what_one_token_uses(works, tiny):
    facts = facts_of(works("inspect", tiny))
    model = AutoModelForCausalLM.from_pretrained(tiny)
    params = sum(parameter.numel() for parameter in model.parameters())
    experts = [layer.mlp.experts for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    expert_params = sum(parameter.numel() for parameter in experts[0].parameters()) // 6
    active = params - len(experts) * (6 - 2) * expert_params
    assert facts["parameters"] == f"{params:,}, {active:,} active per token"
    assert facts["expert FLOPs per token"].startswith(f"{2 * len(experts) * 2 * expert_params:,} ")
