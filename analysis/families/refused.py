"""Architectures with experts that cannot be handled, and why.

At more length: docs/dev/decisions/0003-what-is-refused.md.
"""

_NO_INTERFACE = (
    "its experts do not go through transformers' experts interface, so the gate weights and "
    "outputs that statistics need cannot be seen"
)

_STEP = (
    _NO_INTERFACE + "; its checkpoints stack gate and up apart, which no table of a family can say"
)

REFUSED = {
    **dict.fromkeys(
        ("llama4", "llama4_text"),
        "its router's weight multiplies the input of an expert, which is not linear in it, so "
        "there is no output before the gate weight, which the criteria rank by",
    ),
    "jetmoe": "its attention has experts too, and " + _NO_INTERFACE,
    "longcat_flash": "some of its experts are the identity and have no weights, and "
    + _NO_INTERFACE,
    "step3p7": _STEP,
    "step3p5": "transformers has it only as the text part of 'step3p7', and " + _STEP,
    **dict.fromkeys(
        ("ernie4_5_vl_moe", "ernie4_5_moe_vl"),  # in transformers, and as it was published
        "each of its layers has two kinds of experts, for text and for images, of different widths "
        "and with a router each",
    ),
    "dbrx": "all its experts lie in one matrix each, and " + _NO_INTERFACE,
    **dict.fromkeys(
        ("nllb-moe", "switch_transformers"),
        "it is an encoder and decoder with a capacity per expert that drops tokens, and "
        + _NO_INTERFACE,
    ),
    **dict.fromkeys(
        ("inkling_mm_model", "inkling_text"),
        "its router's matrix has rows for shared experts too, whose weights it divides by the same "
        "sum and returns beside those of the others, which no table of a family can say",
    ),
    **dict.fromkeys(
        ("inkling2", "inkling2_text"),
        "rows of gate and up alternate in its checkpoints and not in the loaded model, which no "
        "table of a family can say",
    ),
    **dict.fromkeys(
        ("mistral_large4", "mistral_large4_text"),
        "its layers hand keys, values and chosen tokens to the next, and its checkpoints hold "
        "experts in no block under names at the root, which were not tried",
    ),
    **dict.fromkeys(
        ("muse_spark", "muse_spark_text"),
        "the output of each expert is normalised before the gate weight, so all outputs are "
        "equally long, and neither norms nor neurons mean what the criteria take them for",
    ),
    "zaya": "its router can skip all experts, a choice that it reports as expert 0 with weight 0, "
    "and hands a state to the next layer's router",
    "doge": "its experts are rows of an embedding, found by a product of keys, not networks",
}
