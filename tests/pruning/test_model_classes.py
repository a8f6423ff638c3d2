"""Classes that `config.json` names in `auto_map`: those of the source, of an export, or none."""

import pytest

from analysis.families import FAMILIES
from pruning.surgery.config import with_model_classes

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
