"""Classes that `config.json` names in `auto_map`: those of the source, of an export, or none."""

import json

import pytest

from analysis.families import FAMILIES
from pruning.surgery.config import with_model_classes

OLMOE = FAMILIES["olmoe"]
OURS = {"AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"}
THEIRS = {
    "AutoConfig": "theirs.Config",
    "AutoModel": "theirs.Model",
    "AutoModelForCausalLM": "theirs.ForCausalLM",
    "AutoModelForSequenceClassification": "theirs.Classifier",
    "AutoTokenizer": "theirs.Tokenizer",
}
COUNTS = {"per_layer_num_experts": [3, 7]}
WIDTHS = {"per_layer_expert_width": [8, 16]}


def config_of(classes, sizes=None):
    """A `config.json` as some other program lays it out."""
    named = {} if classes is None else {"auto_map": classes}
    return json.dumps({"model_type": "olmoe", "hidden_size": 16, **named, **(sizes or {})}).encode()


@pytest.mark.parametrize(
    ("classes", "sizes"),
    [(None, None), ({}, None), (THEIRS, None), (OURS, COUNTS), (OURS, WIDTHS)],
)
def test_what_names_the_right_classes_stays_byte_for_byte(classes, sizes):
    content = config_of(classes, sizes)
    assert with_model_classes(content, OLMOE) == content


@pytest.mark.parametrize("sizes", [COUNTS, WIDTHS, COUNTS | WIDTHS])
def test_model_code_of_the_source_gives_way_and_its_tokenizer_stays(sizes):
    written = json.loads(with_model_classes(config_of(THEIRS, sizes), OLMOE))
    classes = {"AutoTokenizer": "theirs.Tokenizer", **OURS}
    assert written == {"model_type": "olmoe", "hidden_size": 16, **sizes, "auto_map": classes}


def test_without_classes_of_the_source_there_are_ours():
    written = json.loads(with_model_classes(config_of(None, COUNTS), OLMOE))
    assert written["auto_map"] == OURS


def test_our_classes_go_where_every_layer_has_one_count_again():
    kept = {"AutoTokenizer": "theirs.Tokenizer"}
    written = json.loads(with_model_classes(config_of(OURS | kept), OLMOE))
    assert written == {"model_type": "olmoe", "hidden_size": 16, "auto_map": kept}
    written = json.loads(with_model_classes(config_of(OURS), OLMOE))
    assert written == {"model_type": "olmoe", "hidden_size": 16}
