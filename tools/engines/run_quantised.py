"""Quantise checkpoints in llama.cpp and measure their loss there; runs in its environment.

    python run_quantised.py ASKED.json ANSWERS.json

ASKED.json is {"checkpoints": {name: {"folder": path, "files": pairs of scope and type}}, "samples":
{corpus: [{"tokens": ids, "scored": places whose next token is predicted}]}}. A scope is
"everything", as llama-quantize does by default, or "experts": all else stays in float32.
ANSWERS.json is {"versions": ..., "files": one for each checkpoint and file, see `measure`}.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

from to_gguf import convert  # noqa: I001  (it makes gguf importable)
import cyllama
import gguf
import numpy as np
from cyllama.llama import llama_cpp

# llama.h's llama_ftype; what it makes of each tensor, the answers say.
TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "IQ4_NL": 25,
    "MXFP4": 38,
}
_F32 = 0  # ggml_type
_NO_FLASH_ATTENTION = 0


def quantise(source, target, kind):
    """Write a GGUF file in another type; lines of the log that tell of another type than asked."""
    parameters = llama_cpp.LlamaModelQuantizeParams()
    parameters.nthread, parameters.ftype, parameters.allow_requantize = 1, TYPES[kind], True
    log = []
    llama_cpp.set_log_callback(lambda _, text: log.append(text))
    llama_cpp.model_quantize(str(source), str(target), parameters)
    text = "".join(log)
    return [" ".join(line.split()) for line in text.splitlines() if "fall" in line]


def is_expert(tensor):
    """Whether a tensor holds the weights of a layer's experts."""
    return tensor.name.endswith("_exps.weight")


def join(original, quantised, target):
    """Write the experts of a quantised file, and everything else of the original.

    As llama-quantize with --tensor-type for the experts and F32 for all else, an option that this
    binding lacks: tensors are quantised one by one, so the experts' bytes are the same.
    """
    whole = gguf.GGUFReader(original)
    experts = {
        tensor.name: tensor for tensor in gguf.GGUFReader(quantised).tensors if is_expert(tensor)
    }
    architecture = gguf.Keys.General.ARCHITECTURE
    writer = gguf.GGUFWriter(target, whole.fields[architecture].contents())
    for field in whole.fields.values():
        if field.name != architecture and not field.name.startswith("GGUF."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in whole.tensors:
        chosen = experts.get(tensor.name, tensor)
        writer.add_tensor(chosen.name, chosen.data, raw_dtype=chosen.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def alike(original, quantised):
    """How many rows of experts gguf-py quantises to the same bytes as llama.cpp, and of how many.

    None for types that gguf-py only reads.
    """
    sources = {tensor.name: tensor for tensor in gguf.GGUFReader(original).tensors}
    equal = rows = 0
    for tensor in filter(is_expert, gguf.GGUFReader(quantised).tensors):
        try:
            found = gguf.quants.quantize(sources[tensor.name].data, tensor.tensor_type)
        except NotImplementedError:
            return None
        same = (found == tensor.data).all(axis=-1)
        equal, rows = equal + int(same.sum()), rows + same.size
    return [equal, rows]


def contents(path):
    """Bytes of a file and of its experts, and how many tensors are of which type."""
    tensors = gguf.GGUFReader(path).tensors
    types = Counter(f"{_group(tensor)} {tensor.tensor_type.name}" for tensor in tensors)
    return {
        "file_bytes": path.stat().st_size,
        "expert_bytes": int(sum(tensor.n_bytes for tensor in tensors if is_expert(tensor))),
        "tensors": dict(sorted(types.items())),
    }


def _group(tensor):
    return "experts" if is_expert(tensor) else tensor.name.removesuffix(".weight").split(".")[-1]


class _Model(llama_cpp.LlamaModel):
    """A model with the attribute that LlamaContext.get_logits_ith of cyllama 0.2.18 misses."""

    @property
    def n_vocab(self):
        return self.get_vocab().n_vocab


def loss_sums(path, samples):
    """Corpus -> sums over each sample of -log p of the predicted tokens, in nats."""
    model = _Model(str(path), llama_cpp.LlamaModelParams(), verbose=False)
    longest = max(len(row["tokens"]) for rows in samples.values() for row in rows)
    parameters = llama_cpp.LlamaContextParams()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = longest
    parameters.n_threads = parameters.n_threads_batch = parameters.n_seq_max = 1
    # So that only weights and what their types do to matrix products differ from float32.
    parameters.type_k = parameters.type_v = _F32
    parameters.flash_attn_type = _NO_FLASH_ATTENTION
    context = llama_cpp.LlamaContext(model, parameters, verbose=False)
    batch = llama_cpp.LlamaBatch(n_tokens=longest, embd=0, n_seq_max=1)
    return {
        corpus: [_loss_sum(context, batch, row["tokens"], row["scored"]) for row in rows]
        for corpus, rows in samples.items()
    }


def _loss_sum(context, batch, tokens, scored):
    context.kv_cache_clear()
    batch.clear()
    wanted = set(scored)
    for place, token in enumerate(tokens):
        batch.add(token, place, [0], place in wanted)
    context.decode(batch)
    logits = np.array([context.get_logits_ith(place) for place in scored], dtype=np.float64)
    targets = logits[np.arange(len(scored)), [tokens[place + 1] for place in scored]]
    largest = logits.max(axis=1)
    totals = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    return float((totals - targets).sum())


def measure(original, scope, kind, samples, folder):
    """A file of a scope and type: its contents, fallbacks, and losses.

    "dequantised", of experts only, are losses by the same weights in float32: llama.cpp also
    rounds what enters a product with quantised weights. "alike": see there.
    """
    whole, file, restored = (folder / name for name in ("whole.gguf", "file.gguf", "f32.gguf"))
    fallbacks = quantise(original, whole, kind)
    found = {"scope": scope, "type": kind}
    if scope == "everything":
        whole.replace(file)
        found |= {"fallbacks": fallbacks, "dequantised": None}
    else:
        join(original, whole, file)
        quantise(file, restored, "F32")
        found |= {"fallbacks": [line for line in fallbacks if "_exps" in line]}
        found |= {"dequantised": loss_sums(restored, samples)}
    found["alike"] = alike(original, file)
    return {**found, **contents(file), "sums": loss_sums(file, samples)}


def main(asked_file, answers_file):
    """Answer for every checkpoint, scope and type."""
    asked = json.loads(Path(asked_file).read_text())
    files = []
    for name, checkpoint in asked["checkpoints"].items():
        with tempfile.TemporaryDirectory() as folder:
            original = Path(folder) / "original.gguf"
            convert(checkpoint["folder"], original)
            for scope, kind in checkpoint["files"]:
                found = measure(original, scope, kind, asked["samples"], Path(folder))
                files.append({"checkpoint": name, **found})
                print(f"{name}, {scope}: {kind}", flush=True)  # noqa: T201
    engine = json.loads((Path(cyllama.__file__).parent / "build_config.json").read_text())
    versions = {
        "cyllama": version("cyllama"),
        "llama.cpp": engine["versions"]["llama_cpp_version"],
    }
    Path(answers_file).write_text(json.dumps({"versions": versions, "files": files}))


main(*sys.argv[1:])
