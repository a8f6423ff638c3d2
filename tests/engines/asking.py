"""Ask an engine and transformers the same, and compare what they say."""

import hashlib
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from engines.checkpoints import PROMPTS, QUANTISED, TOKENS, published_keys
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from analysis.families.native import is_registered_here
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from families.configs import Case
from families.settings import IMAGE_TEXT, VOCAB
from pruning import load_pruned
from pruning.serving.engine_results import SILENT, Row, condition_of
from pruning.serving.engine_traits import traits_of
from tools.engines.environments import HERE, python_of

# Float32 in both; other orders of the same sums differ by 1e-5 where logits are near 10.
CLOSE = 1e-3
# llama.cpp looks GELU up in a table of half precision: with such a one transformers differs from
# itself by 4e-3 on these models, and greedy tokens stay the same.
TABULATED = 2e-2
_CLOSE = dict.fromkeys((("llama.cpp", "gemma4"), ("llama.cpp", "gemma4_text")), TABULATED)
_SECONDS = 1500
Answer = Mapping[str, Any]


def ask_engine(
    engine: str, folders: Sequence[Path], scratch: Path, **more: object
) -> tuple[str, list[Answer]]:
    """The engine's versions, and its answer on every checkpoint.

    `more`: with `drafts` vLLM drafts by the prediction head, and says how many tokens it accepts;
    `override_tensor` is that option of llama.cpp, whose log then lies at `answers.log`.
    """
    question = {"prompts": PROMPTS, "tokens": TOKENS, "vocabulary": VOCAB, "drafts": False, **more}
    asked, answered = scratch / "asked.json", scratch / "answers.json"
    questions = [
        {
            "checkpoint": str(folder),
            "is_quantised": bool(load_model_index(str(folder)).quantisation),
            **question,
        }
        for folder in folders
    ]
    asked.write_text(json.dumps(questions))
    script = HERE / f"run_{engine.replace('.', '_')}.py"
    command = [str(python_of(engine)), str(script), str(asked), str(answered)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(answered.read_text())
    return ", ".join(f"{name} {of}" for name, of in said["versions"].items()), said["answers"]


def compare(case: Case, folder: Path, cut: str, said: Sequence[Answer]) -> tuple[int, float]:
    """Greedy tokens equal to those of transformers, and how far log-probabilities differ at most.

    Both up to the first token that differs: as long as transformers finds each of the engine's
    tokens the likeliest after those before it, its own greedy continuation is the same.
    """
    whole = case.composite or case.model_type in IMAGE_TEXT
    auto: Any = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    named: str | None = auto.__name__
    if case.model_type == "qwen3_omni_moe":  # its auto class builds what also speaks
        auto, named = Qwen3OmniMoeThinkerForConditionalGeneration, None
    is_plain = "per layer" not in cut and case.name not in QUANTISED
    stock = is_plain and not is_registered_here(case.model_type)
    model = auto.from_pretrained(folder) if stock else load_pruned(folder, auto_class=named)
    equal, largest = 0, 0.0
    for prompt, answer in zip(PROMPTS, said, strict=True):
        tokens, rows = answer["tokens"], torch.tensor(answer["log_probabilities"]).double()
        assert len(tokens) == TOKENS
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            logits = model.eval()(ids, use_cache=False).logits[0, len(prompt) - 1 :].double()
        same = (logits.argmax(-1) == torch.tensor(tokens)).long().cumprod(0)
        count = int(same.sum())
        differs = (logits.log_softmax(-1) - rows).abs().amax(-1)
        equal, largest = (
            equal + count,
            max(largest, float(differs[: count + 1].max().nan_to_num(math.inf))),
        )
    return equal, largest


def question_of(case: Case) -> str:
    """Digest of what is asked: settings, quantisation and prompts."""
    asked = [case.model_type, dict(case.settings), published_keys(case), PROMPTS, TOKENS]
    if case.name in QUANTISED:
        asked.append(QUANTISED[case.name][1])
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def row(
    engine: str,
    versions: str,
    case: Case,
    original: MoEModel,
    cut: str,
    answer: Answer,
    folder: Path | None,
) -> Row:
    """What came out of one comparison."""
    equal, difference = 0, None
    reason = answer.get("failed", "")
    total = len(PROMPTS) * TOKENS
    traits = traits_of(original, is_pruned=cut != "original")
    if not reason and folder is not None:
        equal, difference = compare(case, folder, cut, answer["continuations"])
        if equal < total or not difference <= _CLOSE.get((engine, case.model_type), CLOSE):
            differs = f"log-probabilities differ by {difference:.2g}"
            if not math.isfinite(difference):
                differs, difference = "log-probabilities that are no numbers", None
            reason = f"{SILENT}: {equal} of {total} greedy tokens, {differs}"
    return Row(
        engine=engine,
        case=case.name,
        model_type=case.model_type,
        cut=cut,
        works=not reason,
        equal=equal,
        tokens=total,
        difference=None if difference is None else float(f"{difference:.2g}"),
        reason=reason,
        no_class=bool(answer.get("unknown")),
        versions=versions,
        date=datetime.now(UTC).date().isoformat(),
        question=question_of(case),
        traits=traits,
        condition=condition_of(engine, traits),
        no_mtp=bool(answer.get("no_mtp")),
    )
