"""Architectures with experts that cannot be handled, and why.

At more length: docs/dev/decisions/0003-what-is-refused.md.
"""

_NO_INTERFACE = (
    "its experts do not go through transformers' experts interface, so the gate weights and "
    "outputs that statistics need cannot be seen"
)

REFUSED = {
    **dict.fromkeys(
        ("llama4", "llama4_text"),
        "its router's weight multiplies the input of an expert instead of its output, so the "
        "expert's output before the gate weight, which the criteria rank by, does not exist",
    ),
    "jetmoe": "its attention has experts too, and " + _NO_INTERFACE,
    "longcat_flash": "some of its experts are the identity and have no weights, and "
    + _NO_INTERFACE,
    **dict.fromkeys(("step3p7", "step3p5"), _NO_INTERFACE),
    "dbrx": "all its experts lie in one matrix each, and " + _NO_INTERFACE,
    **dict.fromkeys(
        ("nllb-moe", "switch_transformers"),
        "it is an encoder and decoder with a capacity per expert that drops tokens, and "
        + _NO_INTERFACE,
    ),
    "doge": "its experts are rows of an embedding, found by a product of keys, not networks",
}
