"""What goes with the weights of an export: card, companions, index and classes."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from exports import export, keeping
from transformers import AutoTokenizer

from analysis.checkpoint.opening import open_checkpoint
from analysis.families.listing import FAMILIES
from analysis.files.shipped import tool_version
from analysis.model.opening import load_model_index
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import Provenance, PruningPlan, keep_all, model_ref
from pruning.plan.sizes import format_bytes, size_report
from pruning.records.verdict import Light, Reason, ShipVerdict
from pruning.surgery.card import CARD_NAME, model_card, source_metadata
from pruning.surgery.config import with_model_classes
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.tokenizer_settings import for_older_readers

COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model"),
    *("qwen.tiktoken", "chat_template.jinja", "chat_template.json"),
    *("additional_chat_templates/tools.jinja", "preprocessor_config.json"),
    "video_preprocessor_config.json",
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


def test_the_tokenizer_of_the_demo_has_the_names_that_transformers_4_reads(tmp_path):
    # llama.cpp's converter runs transformers 4, which stops at what transformers 5 has saved.
    model = load_model_index("demo")
    out = tmp_path / "out"
    export(model, keep_all(model), out)
    name = "tokenizer_config.json"
    before, after = (
        json.loads((folder / name).read_text()) for folder in (model.checkpoint.path, out)
    )
    special = before.pop("extra_special_tokens")
    assert before["tokenizer_class"] == "TokenizersBackend"
    assert after == before | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": special,
    }
    ours, theirs = (
        AutoTokenizer.from_pretrained(folder) for folder in (out, model.checkpoint.path)
    )
    text = "".join((*special, "def add(a, b):", theirs.eos_token))
    assert ours.encode(text) == theirs.encode(text)
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert type(ours) is type(theirs)


@pytest.mark.parametrize(
    "content",
    ['{"tokenizer_class": "Qwen2Tokenizer"}', '{"extra_special_tokens": {"a": "<a>"}}', "[]", "{"],
)
def test_other_settings_of_tokenizers_stay_byte_for_byte(content):
    assert for_older_readers(content.encode()) == content.encode()


MADE = Provenance(
    criterion="reap",
    gate="applied",
    corpora=("code", "math"),
    runs=("tiny-code-01234567", "tiny-math-89abcdef"),
    schedule="early",
    sparsity="40%",
    budget={"removed": 7, "asked": "40%"},
    schedule_parameters={"strength": 0.5},
    constraints={"multiple_of": 2},
)
# Layer 1 is dense: the first two sparse layers are neighbours in the table.
KEPT = {0: (0, 1, 2, 4), 2: (1, 2, 3, 5), 3: (0, 1, 5)}
RECIPE = "schema_version: 1\nmodel: tiny\n\n"


def parts_of(card):
    _, metadata, text = card.decode().split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_the_whole_card(checkpoint, tmp_path):
    model = load_model_index(str(checkpoint("qwen3_moe").path))
    plan = PruningPlan(model_ref(model), KEPT, MADE)
    export(model, plan, tmp_path / "out", recipe=RECIPE.encode())
    written = (tmp_path / "out" / CARD_NAME).read_bytes()
    assert written == model_card(model, plan, HeadPlan(), RECIPE)
    before, after = model.checkpoint, open_checkpoint(tmp_path / "out")
    report = size_report(model, plan)
    params = [
        sum(entry.numel for entry in checkpoint.tensors.values()) for checkpoint in (before, after)
    ]
    loaded = map(format_bytes, report.loaded("bfloat16"))
    metadata, text = parts_of(written)
    rows = [
        "| 0 to 2 (2 sparse) | 4 | 6 |",
        "| 3 (1 sparse) | 3 | 6 |",
        "- Criterion: reap",
        "- Gate weights: applied",
        "- Calibration corpus: code, math",
        "- Schedule: early",
        "- Sparsity asked for: 40%",
        '- Budget: {"asked": "40%", "removed": 7}',
        '- Schedule\'s parameters: {"strength": 0.5}',
        '- Constraints: {"multiple_of": 2}',
        "- Experts removed: 7 of 18 (38.9%)",
        f"- Source identity: {model.identity}",
        "- Calibration runs: tiny-code-01234567, tiny-math-89abcdef",
        f"- Plan digest: {plan.digest}",
        f"- Program: MoE Prune Studio {tool_version()}",
        "| parameters | {:,} | {:,} |".format(*params),
        f"| active per token | {report.active_before:,} | {report.active_after:,} |",
        "| loaded in bfloat16 | {} | {} |".format(*loaded),
        "model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)",
    ]
    lines = text.splitlines()
    places = [lines.index(row) for row in rows]
    assert places == sorted(places)
    assert text.startswith(f"\n# {model.name}, pruned\n")
    assert text.endswith(f"\n## Recipe\n\n```yaml\n{RECIPE.strip()}\n```\n")
    assert metadata == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["moe", "pruned", "expert-pruning"],
    }


def test_facts_that_nobody_gave_are_left_out(olmoe):
    _, text = parts_of(model_card(olmoe, keeping(olmoe, (0, 4, 5)), HeadPlan()))
    facts = [line.partition(":")[0] for line in text.splitlines() if line.startswith("- ")]
    named = ["Experts removed", "Source identity", "Plan digest", "Program"]
    assert facts == [f"- {name}" for name in named]
    assert "- Experts removed: 12 of 21 (57.1%)" in text
    assert "| 0 to 2 (3 sparse) | 3 | 7 |" in text
    assert "from_pretrained(name)\n" in text
    assert "## Recipe" not in text
    assert "\ncurl localhost:30000/" in text.rpartition("## How to serve it")[2]


def test_the_assumptions_about_an_unlisted_architecture_are_said(olmoe):
    plan = keeping(olmoe, (0, 4, 5))
    told = replace(olmoe.family, assumptions=("a gate is a softmax", "gates are added up"))
    _, text = parts_of(model_card(replace(olmoe, family=told), plan, HeadPlan()))
    wanted = "discovered from the checkpoint, assuming that a gate is a softmax; gates are added up"
    assert f"\n- Architecture: {wanted}\n" in text
    _, text = parts_of(model_card(olmoe, plan, HeadPlan()))
    assert "Architecture" not in text


LICENSED = """---
license: other
license_name: tiny
license_link: https://example.org/licence
base_model: someone/tiny
language: en
---
# Tiny
"""


@pytest.fixture
def licensed(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("olmoe").path, tmp_path / "licensed")
    (folder / CARD_NAME).write_text(LICENSED)
    return folder


def test_the_licence_of_the_source_is_passed_on(licensed):
    model = load_model_index(str(licensed))
    plan = keeping(model, (0, 4, 5))
    metadata, text = parts_of(model_card(model, plan, HeadPlan()))
    assert "nothing was trained afterwards.\n\n## What was removed" in text
    assert {key: metadata[key] for key in ("license", "license_name", "license_link")} == {
        "license": "other",
        "license_name": "tiny",
        "license_link": "https://example.org/licence",
    }
    assert metadata["base_model"] == "someone/tiny"
    assert "language" not in metadata


def test_a_card_has_the_verdict(olmoe):
    reasons = (Reason("Size", Light.GREEN, "a"), Reason("Quality", Light.RED, "b", "worse"))
    plan = keeping(olmoe, (0, 4, 5))
    card = model_card(olmoe, plan, HeadPlan(), verdict=ShipVerdict(reasons)).decode()
    block = card.partition("## May it be shipped")[2].partition("## How")[0]
    assert block.split("\n\n")[1:3] == [
        "**Do not ship**, by what was recorded when it was written:",
        "- red, Quality: b\n- green, Size: a",
    ]
    assert "shipped" not in model_card(olmoe, plan, HeadPlan()).decode()


def test_a_hub_id_is_the_base_model(olmoe):
    model = replace(olmoe, name="some/model")
    metadata, text = parts_of(model_card(model, keeping(model, (0, 4, 5)), HeadPlan()))
    assert metadata["base_model"] == "some/model"
    assert "names no licence" in text


@pytest.mark.parametrize("content", [None, "# No metadata\n"])
def test_without_metadata_there_is_nothing_to_pass_on(licensed, content):
    (licensed / CARD_NAME).unlink()
    if content:
        (licensed / CARD_NAME).write_text(content)
    assert source_metadata(licensed) == {}


OURS = {"AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"}
TOKENIZER = {"AutoTokenizer": "theirs.Tokenizer"}
THEIRS = {
    "AutoConfig": "theirs.Config",
    "AutoModel": "theirs.Model",
    "AutoModelForCausalLM": "theirs.ForCausalLM",
    "AutoModelForSequenceClassification": "theirs.Classifier",
    **TOKENIZER,
}
COUNTS = {"per_layer_num_experts": [3, 7]}
WIDTHS = {"per_layer_expert_width": [8, 16]}


@pytest.mark.parametrize(
    ("sizes", "before", "after"),
    [
        # What names the right classes stays.
        ({}, None, None),
        ({}, {}, {}),
        ({}, THEIRS, THEIRS),
        (COUNTS, OURS, OURS),
        (WIDTHS, OURS, OURS),
        # Model code of the source gives way to ours, its tokenizer stays.
        (COUNTS, THEIRS, TOKENIZER | OURS),
        (WIDTHS, THEIRS, TOKENIZER | OURS),
        (COUNTS | WIDTHS, THEIRS, TOKENIZER | OURS),
        (COUNTS, None, OURS),
        # Ours go where every layer has one count again.
        ({}, OURS | TOKENIZER, TOKENIZER),
        ({}, OURS, None),
    ],
)
def test_auto_map_names_our_classes_exactly_where_layers_differ(sizes, before, after):
    def config_of(classes):
        named = {} if classes is None else {"auto_map": classes}
        return {"model_type": "olmoe", "hidden_size": 16, **named, **sizes}

    assert with_model_classes(config_of(before), FAMILIES["olmoe"]) == config_of(after)
