"""Readers with plain transformers and `trust_remote_code=True`, without this program."""

import ast
import json
import os
import shutil
import subprocess
import sys

import pytest
from nonuniform_cases import NAMED, config_of
from safetensors.torch import save_file

from analysis.families import FAMILIES
from analysis.nonuniform.modeling_file import auto_map, modeling_file
from families.physical import TOKENS

READ = (
    *("flex_olmo", "qwen3_moe", "mixtral", "minimax", "phimoe", "granitemoe", "deepseek_v3-groups"),
    *("ernie4_5_moe", "gpt_oss", "hunyuan_v1_moe", "nemotron_h", "qwen3_5_moe", "aria"),
)
READER = """
import json, sys, warnings

class OnlyTransformers:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("analysis", "pruning", "app"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, OnlyTransformers())
sys.path = [entry for entry in sys.path if entry]
import torch, transformers
from pathlib import Path
from safetensors.torch import load_file

torch.set_num_threads(1)
results = {}
for folder in map(Path, sys.argv[1:]):
    wanted = load_file(folder.parent / "wanted.safetensors")
    ids = wanted["ids"]
    # If there are two, the first reads the text part, the second the whole.
    names = list(json.loads((folder / "config.json").read_text())["auto_map"])
    for name in names[1:]:
        whole = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
        with torch.no_grad():
            assert torch.equal(whole(input_ids=ids, use_cache=False).logits, wanted["logits"])
    auto = getattr(transformers, names[0])
    model, info = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    start = ids[:1, :4]
    new = model.generate(input_ids=start, max_new_tokens=3, do_sample=False, eos_token_id=None)
    before = model.config._experts_implementation
    model.set_experts_implementation("eager")
    again = folder.parent / "again"
    model.save_pretrained(again)
    second = auto.from_pretrained(again, trust_remote_code=True)
    with torch.no_grad():
        difference = (second(input_ids=ids, use_cache=False).logits - wanted["logits"]).abs().max()
    results[str(folder)] = {
        "exact": torch.equal(logits, wanted["logits"]),
        "exact_again": float(difference) == 0,
        "info": any(info.values()),
        "new": new.shape[1],
        "implementations": [before, model.config._experts_implementation],
        "class": type(model).__name__,
        "module": type(model).__module__,
        "auto_classes": names,
    }
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def read_by_others(pruned_case, tmp_path_factory):
    """What a process with plain transformers says of each export, by name of the case."""
    parent = tmp_path_factory.mktemp("remote")
    folders = {}
    for name in READ:
        pruned, folder = pruned_case(NAMED[name]), parent / name
        shutil.copytree(pruned.path, folder / "pruned")
        wanted = {"ids": TOKENS, "logits": pruned.logits.contiguous()}
        save_file(wanted, folder / "wanted.safetensors")
        folders[name] = folder / "pruned"
    done = subprocess.run(
        [sys.executable, "-c", READER, *map(str, folders.values())],
        cwd=parent,
        env={**os.environ, "HF_HOME": str(parent / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.splitlines()[-1])
    return {name: results[str(path)] for name, path in folders.items()}


@pytest.mark.parametrize("name", READ)
def test_plain_transformers_reads_runs_and_saves_it(read_by_others, name):
    found = read_by_others[name]
    assert found["module"].startswith("transformers_modules.")
    assert found["class"].endswith(("ForCausalLM", "ForConditionalGeneration"))
    assert not found["info"]
    assert found["exact"]
    assert found["exact_again"]
    assert found["new"] == 4 + 3
    # A checkpoint of a text model and more is read by either class, if transformers has both.
    assert len(found["auto_classes"]) == (2 if name == "qwen3_5_moe" else 1)
    assert found["implementations"] == ["grouped_mm", "eager"]


def test_the_file_lies_in_exports_of_families_that_transformers_has(pruned_case):
    path = pruned_case(NAMED["olmoe"]).path
    assert config_of(path)["auto_map"] == {
        "AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"
    }
    assert (path / "modeling_pruned.py").read_text() == modeling_file(FAMILIES["olmoe"])
    # transformers has no class to build on, only this program has.
    path = pruned_case(NAMED["deepseek"]).path
    assert "auto_map" not in config_of(path)
    assert not (path / "modeling_pruned.py").exists()


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES.values() if auto_map(f)], ids=lambda family: family.model_type
)
def test_the_file_imports_only_transformers_and_defines_its_classes(family):
    tree = ast.parse(modeling_file(family))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    assert modules == {"copy", "typing", "transformers"}
    assigned = {
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    }
    assert {name.removeprefix("modeling_pruned.") for name in auto_map(family).values()} <= assigned
