"""export, verify."""

import html
import json
import shlex
import shutil

import pytest
import torch
from folder_tree import tree
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import app.console
from analysis.model.opening import load_model_index
from builders import edit_json
from builders.fp8 import write_fp8_pair
from builders.tokens import random_ids
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from layouts.small_packed import original_of, small_packed
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.plan_file import load_plan
from pruning.surgery.manifest import SourceRecord, read_manifest


@pytest.fixture
def exported(works, tiny, stats, here):
    """Half of `tiny` by AIMER, written to `half/`."""
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", stats)
    works("export", tiny, "half", "--plan", "plan.json")
    return here / "half"


def test_the_folder_of_an_export_stands_for_its_plan(works, refused, exported, tiny, here):
    assert load_plan(exported) == load_plan(here / "plan.json")
    works("export", tiny, "again", "--plan", exported)
    assert tree(here / "again") == tree(exported)
    edit_json(exported / "moeprune_manifest.json", plan_digest="0")
    assert "half/moeprune_manifest.json: It is damaged" in refused("plans", "show", "half")


def test_dry_run_card_and_decision_page_have_the_verdict_of_the_plan(works, tiny, stats, here):
    words = ("--plan", "plan.json", "--stats-dir", stats)
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", stats)
    verdict = json.loads(works("export", tiny, "half", *words, "--dry-run", "--json"))["result"][
        "verdict"
    ]
    assert verdict["headline"] == "Check before shipping"
    works("export", tiny, "half", *words)
    works("report", tiny, *words, "-o", "decision.html")
    card = (here / "half" / "README.md").read_text()
    page = html.unescape((here / "decision.html").read_text())
    assert f"**{verdict['headline']}**" in card
    for reason in verdict["reasons"]:
        assert f"- {reason['light']}, {reason['about']}: " in card
        assert f"{reason['about']} ({reason['light']}): {reason['words']}" in page
    assert {reason["about"] for reason in verdict["reasons"]} == {
        *("Size", "Quality", "Engines", "Benchmarks")
    }
    # What no export has, and what changes nothing, has none.
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "0", "--stats-dir", stats, "--force")
    empty = json.loads(works("export", tiny, "all", *words, "--dry-run", "--json"))
    assert "verdict" not in empty["result"]


def test_export_writes_a_checkpoint_that_transformers_loads(exported, here):
    model = AutoModelForCausalLM.from_pretrained(exported)
    counts = {
        index: layer.mlp.experts.num_experts
        for index, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    }
    assert counts == {0: 3, 2: 3, 3: 3}
    plan = json.loads((here / "plan.json").read_text())
    manifest = json.loads((exported / "moeprune_manifest.json").read_text())
    assert manifest["plan"]["kept"] == plan["kept"]
    assert not list(here.glob("*.partial*"))


def test_commands_to_serve_are_not_broken(works, here, monkeypatch):
    works("plan", "demo", "--criterion", "aimer", "--sparsity", "50%")
    monkeypatch.setattr("app.console._WRAPS", True)
    monkeypatch.setattr(app.console.out, "width", 50)
    lines = works("export", "demo", "again", "--plan", "plan.json").splitlines()
    (curl,) = {line for line in lines if line.startswith("curl localhost:8080")}
    assert json.loads(shlex.split(curl)[-1])["max_tokens"] == 16
    assert max(len(line) for line in lines if line.startswith("again:")) <= 50


def test_export_can_verify_at_once(works, tiny, stats, here):
    works("plan", tiny, "--criterion", "magnitude", "--sparsity", "0.5", "--stats-dir", stats)
    said = works("export", tiny, "half", "--plan", "plan.json", "--verify", "--stream-layers")
    assert "half: level logits" in said and "for one layer at a time" in " ".join(said.split())
    by_layers, whole = (
        works("verify", "half", "--source", tiny, "--level", "logits", *way)
        for way in (("--stream-layers",), ())
    )
    assert by_layers == whole


def test_export_into_shards_of_a_size_with_a_list_of_kept_ids(works, tiny, exported, here):
    words = ("--max-shard-size", "20KB", "--keep-list")
    works("export", tiny, "small", "--plan", "plan.json", *words)
    sizes = [file.stat().st_size for file in (here / "small").glob("*.safetensors")]
    assert len(sizes) > len(list(exported.glob("*.safetensors")))
    assert max(sizes) <= 20_000
    plan = json.loads((here / "plan.json").read_text())
    assert json.loads((here / "small" / "kept_experts.json").read_text()) == plan["kept"]
    said = works("verify", "small", "--source", tiny, "--tokens", "40")
    assert "on 64 random tokens" in " ".join(said.split())


def test_export_prunes_a_quantised_copy_by_the_plan_of_its_original(works, refused, here):
    source = small_packed(here / "packed", "awq")
    model = load_model_index(str(original_of(source, here / "original")))
    PruningPlan(model_ref(model), {0: (1, 2, 4), 1: (0, 2, 5)}).save(here / "plan.json")
    words = ("export", "packed", "out", "--plan", "plan.json")
    said = refused(*words)
    assert "if it is a quantised copy, export it with --plan-model original." in said
    assert "--plan-model original" in works(*words, "--plan-model", "original", "--dry-run")
    said = " ".join(works(*words, "--plan-model", "original").split())
    assert "The plan was made for original; its layers, sizes and routers are equal." in said
    works("verify", "out", "--source", "packed", "--level", "bytes")


@pytest.fixture
def on_the_hub(here, monkeypatch):
    """An AWQ copy in `packed`, and a hub's cache: `v1` of me/original is the model, `main` not."""
    cache = here.parent / "hub" / "models--me--original"
    copy = small_packed(here / "packed", "awq")
    (cache / "refs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    for name, commit in {"v1": "1" * 40, "main": "2" * 40}.items():
        (cache / "refs" / name).write_text(commit)
        original_of(copy, cache / "snapshots" / commit)
    tuned = cache / "snapshots" / ("2" * 40) / "model.safetensors"
    tensors = load_file(tuned)
    tensors["model.layers.1.mlp.gate.weight"] *= 1 + torch.rand(6, 64)
    save_file(tensors, tuned, {"format": "pt"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache.parent))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


MADE_FOR = ("--plan-model", "me/original", "--plan-model-revision", "v1")


def test_the_model_of_a_plan_has_a_revision(works, refused, on_the_hub, here):
    model = load_model_index("me/original", revision="v1")
    PruningPlan(model_ref(model), {0: (1, 2, 4), 1: (0, 2, 5)}).save(here / "plan.json")
    words = ("export", "packed", "out", "--plan", "plan.json")
    assert "not for me/original" in refused(*words, *MADE_FOR[:2])  # the newest is another model
    assert "--plan-model-revision: it goes with --plan-model" in refused(*words, *MADE_FOR[2:])
    assert " ".join(MADE_FOR) in works(*words, *MADE_FOR, "--dry-run")
    works(*words, *MADE_FOR)
    written = read_manifest(here / "out")
    assert written.plan_source == SourceRecord("me/original", model.identity, "v1")
    assert written.source.name == "packed"


def test_the_revision_of_a_source_is_recorded(works, on_the_hub, here):
    model = load_model_index("me/original", revision="v1")
    PruningPlan(model_ref(model), {0: (1, 2, 4), 1: (0, 2, 5)}).save(here / "plan.json")
    works("export", "me/original", "out", "--plan", "plan.json", "--revision", "v1")
    written = read_manifest(here / "out")
    assert written.source == SourceRecord("me/original", model.identity, "v1")
    assert written.plan_source is None


def test_a_recipe_exports_a_quantised_copy(works, moeprune, on_the_hub, here):
    """Planned for the original; its statistics and plan are those without a copy."""
    keys = {"model": "me/original", "criterion": "random", "budget": {"sparsity": "50%"}}
    export = {"out": "pruned", "model": "packed"}
    (here / "newest.yaml").write_text(json.dumps(keys | {"export": export}))
    said = moeprune("prune", "newest.yaml")
    assert (said.code, "the routers of layer 1 differ" in said.err) == (1, True)
    assert not (here / "newest.plan.json").exists()
    keys |= {"revision": "v1"}
    by_neuron = {"granularity": "neuron", "export": export}
    (here / "neurons.yaml").write_text(json.dumps(keys | by_neuron))
    assert "The experts of packed are quantised" in moeprune("prune", "neurons.yaml").err
    (here / "r.yaml").write_text(json.dumps(keys | {"export": export}))
    works("prune", "r.yaml")
    written, plan = read_manifest(here / "pruned"), load_plan(here / "r.plan.json")
    assert written.plan.kept == plan.kept
    assert written.source.name == "packed"
    assert (written.plan_source.identity, written.plan_source.revision) == (
        plan.model.identity,
        "v1",
    )
    words = ("--plan", "r.plan.json", *MADE_FOR)
    works("export", "packed", "by-hand", *words)
    shard = "model.safetensors"
    assert (here / "pruned" / shard).read_bytes() == (here / "by-hand" / shard).read_bytes()
    assert "pruned is finished, skipped" in works("prune", "r.yaml")
    (here / "r.yaml").write_text(json.dumps(keys | {"export": {"out": "p", "revision": "v1"}}))
    assert "name that under export" in moeprune("prune", "r.yaml").err


def test_a_dry_run_counts_what_the_export_would_write(works, refused, here):
    """Padding included; and it refuses what the export would refuse."""
    tiny_model(BY_NAME["minimax_m2"]).save_pretrained(here / "biased")
    model = load_model_index("biased")
    PruningPlan(model_ref(model), {0: (0, 1, 2, 5), 1: (3, 4)}).save(here / "uneven.json")
    words = ("export", "biased", "out", "--plan", "uneven.json", "--pad")
    foreseen = json.loads(works(*words, "--dry-run", "--json"))["result"]
    assert not (here / "out").exists()
    works(*words)
    assert foreseen["bytes_after"] == load_model_index("out").checkpoint.nbytes
    (here / "taken").mkdir()
    (here / "taken" / "file").touch()
    words = ("export", "biased", "taken", "--plan", "uneven.json", "--pad")
    assert "taken is not empty; " in refused(*words, "--dry-run")


def test_an_export_of_a_discovered_architecture_is_always_verified(works, tiny, stats, here):
    shutil.copytree(tiny, here / "new")
    edit_json(here / "new" / "config.json", model_type="new_moe")  # transformers has no such class
    works("plan", "new", "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", stats)
    said = " ".join(works("export", "new", "half", "--plan", "plan.json").split())
    assert "level bytes" in said
    assert "transformers has no class for 'new_moe'" in said


def test_an_export_that_is_there_finished_is_not_written_again(works, refused, tiny, here):
    """What was killed after its rename is rerun with the same command."""
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "0.5")
    words = ("export", tiny, "out", "--plan", "plan.json")
    works(*words)
    before = tree(here / "out")
    assert "out is finished, nothing was written" in works(*words, "--dry-run")
    assert "out is finished" in works(*words, "--verify")
    assert tree(here / "out") == before
    assert "holds an export of this plan with another keep_list" in refused(*words, "--keep-list")
    works("plan", tiny, "--criterion", "random", "--sparsity", "0.5", "-o", "other.json")
    other = refused("export", tiny, "out", "--plan", "other.json")
    assert "holds an export of another plan" in other


def test_a_repaired_fp8_checkpoint_is_exported_in_bfloat16(works, refused, here):
    """From the recipe, which says so before any work, to an export that loads."""
    fp8, _ = write_fp8_pair(here)
    text = random_ids(here / "text.jsonl", (40, 16), vocab=51)
    recipe = here / "r.yaml"
    for more in ("", ", dequantise: true, verify: true"):
        recipe.write_text(
            f"model: {fp8}\ncorpora: [{text}]\ntokens: 640\nseq_len: 16\ncriterion: reap\n"
            f"budget: {{sparsity: 50%}}\nrepair: {{tokens: 640}}\nexport: {{out: out{more}}}\n"
            "dtype: bfloat16\n"
        )
        if not more:
            assert "in bfloat16, so the whole export has to be: add --dequantise" in refused(
                "prune", recipe, "--stats-dir", "stats"
            )
            assert not (here / "stats").exists()
        else:
            assert "PASS: out" in works("prune", recipe, "--stats-dir", "stats")
    assert read_manifest(here / "out").dequantised
    words = ("export", fp8, "out", "--plan", "r.repaired.json", "--stats-dir", "stats")
    assert "out is finished" in works(*words, "--dequantise", "--dry-run")
    assert "so the whole export has to be" in refused(*words)
