"""The attention implementations that may be chosen: those that transformers names itself."""

from typing import Literal

# transformers takes any other name as a repository of the hub, whose native code it would run.
Attention = Literal[
    "auto",
    "eager",
    "sdpa",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
]
