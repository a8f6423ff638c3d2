"""Convert to GGUF in float32 and continue prompts greedily in llama.cpp; see `answering`."""

import json
import math
import os
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

from to_gguf import convert, converter_of  # noqa: I001  (before xllamacpp, as torch is)
import xllamacpp
from answering import UnknownArchitecture, answer_all

# Before the processes fork, each of which would import it again.
from transformers import AutoConfig, AutoTokenizer  # noqa: F401

_DEBUG = 5  # verbosity of the log that names overridden tensors


def check(config):
    """Whether the converter has a class for the architecture, and looks for prediction heads."""
    try:
        return {"no_mtp": converter_of(config["architectures"][0]).supports_mtp_export}
    except NotImplementedError as error:
        raise UnknownArchitecture(
            f"convert_hf_to_gguf.py has no class for {config['architectures'][0]}"
        ) from error


def serve(gguf, override_tensor=""):
    """A server of the library, in this process; computes in float32 throughout.

    `override_tensor`: see that option of llama.cpp; the log then names what it matches.
    """
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if override_tensor:
        params.tensor_buft_overrides, params.verbosity = override_tensor, _DEBUG
    return xllamacpp.Server(params)


def continued(server, prompt, tokens, vocabulary):
    """Tokens of a prompt's continuation, and log-probabilities over the vocabulary."""
    said = server.handle_completions(
        {
            "prompt": prompt,
            "n_predict": tokens,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": vocabulary,
            "cache_prompt": False,
        }
    )
    if "choices" not in said:
        raise RuntimeError(json.dumps(said)[:200])
    places = said["choices"][0]["logprobs"]["content"]
    rows = []
    for place in places:
        row = [-math.inf] * vocabulary
        for top_logprob in place["top_logprobs"]:
            row[top_logprob["id"]] = top_logprob["logprob"]
        rows.append(row)
    return {"tokens": [place["id"] for place in places], "log_probabilities": rows}


def answer(asked):
    """Convert, load, continue every prompt."""
    with tempfile.TemporaryDirectory() as folder:
        gguf = Path(folder) / "model.gguf"
        convert(asked["checkpoint"], gguf)
        server = serve(gguf, asked.get("override_tensor", ""))
        return [
            continued(server, prompt, asked["tokens"], asked["vocabulary"])
            for prompt in asked["prompts"]
        ]


answer_all(("xllamacpp", "transformers"), check, answer, telling="error loading model:|GGML_ASSERT")
