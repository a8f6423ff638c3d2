"""Continue prompts greedily in MLX; see `answering`."""

import importlib.util
from pathlib import Path

import mlx.core as mx
from answering import UnknownArchitecture, answer_all
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, load_model


def check(config):
    """Whether mlx-lm has a module for the model type."""
    kind = config["model_type"]
    if not importlib.util.find_spec(f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}"):
        raise UnknownArchitecture(f"mlx-lm has no module for {kind}")


def answer(asked):
    """Tokens of each prompt's continuation, and log-probabilities over the vocabulary."""
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(asked["checkpoint"]))
    found = []
    for prompt in asked["prompts"]:
        cache, step, tokens, rows = make_prompt_cache(model), prompt, [], []
        for _ in range(asked["tokens"]):
            logits = model(mx.array([step]), cache=cache)[0, -1].astype(mx.float32)
            rows.append((logits - mx.logsumexp(logits)).tolist())
            step = [int(mx.argmax(logits).item())]
            tokens += step
        found.append({"tokens": tokens, "log_probabilities": rows})
    return found


answer_all(("mlx", "mlx-lm"), check, answer)
