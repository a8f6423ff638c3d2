"""export, verify."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM

from analysis.model import load_model_index
from builders import edit_json
from families.configs import BY_NAME, tiny_model
from layouts.small_packed import original_of, small_packed
from pruning.plan import PruningPlan, model_ref


@pytest.fixture
def exported(works, tiny, stats, here):
    """Half of `tiny` by AIMER, written to `half/`."""
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", stats)
    works("export", tiny, "half", "--plan", "plan.json")
    return here / "half"


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


def test_export_can_verify_at_once(works, tiny, stats, here):
    works("plan", tiny, "--criterion", "magnitude", "--sparsity", "0.5", "--stats-dir", stats)
    said = works("export", tiny, "half", "--plan", "plan.json", "--verify")
    assert "half: level logits" in said


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
    assert "give the plan's as --plan-model to export if this is a quantised" in refused(*words)
    assert "--plan-model original" in works(*words, "--plan-model", "original", "--dry-run")
    said = " ".join(works(*words, "--plan-model", "original").split())
    assert "The plan was made for original; its layers, sizes and routers are equal." in said
    works("verify", "out", "--source", "packed", "--level", "bytes")


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
    assert "out is not empty; " in refused(*words, "--dry-run")


def test_an_export_of_a_discovered_architecture_is_always_verified(works, tiny, stats, here):
    shutil.copytree(tiny, here / "new")
    edit_json(here / "new" / "config.json", model_type="new_moe")  # transformers has no such class
    works("plan", "new", "--criterion", "aimer", "--sparsity", "50%", "--stats-dir", stats)
    said = " ".join(works("export", "new", "half", "--plan", "plan.json").split())
    assert "level bytes" in said
    assert "transformers has no class for 'new_moe'" in said
