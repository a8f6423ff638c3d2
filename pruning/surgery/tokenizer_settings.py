"""The settings of a tokenizer, as an export writes them."""

import json
from typing import Any

TOKENIZER_SETTINGS = "tokenizer_config.json"


def for_older_readers(content: bytes) -> bytes:
    """TOKENIZER_SETTINGS with the names that transformers 4 knows; the same bytes if it has them.

    Serving engines and llama.cpp's converter run transformers 4, which refuses what transformers 5
    saves. transformers 5 takes both names and means the same by them.
    """
    try:
        settings = json.loads(content)
    except ValueError:  # as in its source, where nothing reads it either
        return content
    if not isinstance(settings, dict):
        return content
    older: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "tokenizer_class" and value == "TokenizersBackend":
            older[key] = "PreTrainedTokenizerFast"
        elif key == "extra_special_tokens" and isinstance(value, list):
            # transformers 4 has names for these, so it wants a mapping.
            older["additional_special_tokens"] = value
        else:
            older[key] = value
    if older == settings:
        return content
    return (json.dumps(older, indent=2, ensure_ascii=False) + "\n").encode()
