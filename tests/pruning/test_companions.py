"""What goes with the weights of an export, file by file, and the keys of its manifest."""

import json
import shutil

import pytest
from exports import export

from analysis.model import load_model_index
from pruning.plan import PruningPlan, model_ref
from pruning.surgery.manifest import MANIFEST_NAME

COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model"),
    *("qwen.tiktoken", "chat_template.jinja", "chat_template.json"),
    *("additional_chat_templates/tools.jinja", "preprocessor_config.json"),
    *("processor_config.json", "modeling_tiny.py", "LICENSE", "LICENSE.txt", "LICENCE.md"),
    *("NOTICE", "USE_POLICY.md"),
)
LEFT = (
    *("optimizer.bin", "training_args.json", "nested/tokenizer.json", "notes.txt", "LICENSES/MIT"),
    "consolidated.safetensors",  # not in the index
)


@pytest.mark.parametrize(("kept", "is_uniform"), [((1, 2, 4), True), ((0, 1, 3, 5), False)])
def test_readers_find_what_they_need_and_nothing_else(checkpoint, tmp_path, kept, is_uniform):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(checkpoint("olmoe").path, source)
    before = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    for name in (*COPIED, *LEFT):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(f"content of {name}")
    model = load_model_index(str(source))
    plan = PruningPlan(model_ref(model), {0: kept, 1: (1, 2, 4), 2: (1, 2, 4)})
    export(model, plan, out)
    held = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    made = {"README.md", MANIFEST_NAME} | (set() if is_uniform else {"modeling_pruned.py"})
    assert held == before | set(COPIED) | made
    assert all((out / name).read_text() == f"content of {name}" for name in COPIED)
    raw = json.loads((out / MANIFEST_NAME).read_text())
    weights = {name for name in before if name.endswith(".safetensors")}
    assert set(raw["files"]) == held - weights - {"README.md", MANIFEST_NAME}
    assert raw["uniform_counts"] is is_uniform
    assert raw["plan_digest"] == plan.digest
    assert set(raw) == {
        *("schema_version", "tool_version", "source", "plan_digest", "uniform_counts", "plan"),
        *("heads", "shards", "dropped_shards", "files", "libraries"),
    }
