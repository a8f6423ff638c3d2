"""Reads plan.json, and the plan in the manifest of an export."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import PlanError, wrong_schema
from analysis.families.base import MOST_LAYERS
from analysis.files.json_text import parse_json_once
from analysis.files.naming import digest_of
from analysis.files.text_file import read_text_file
from analysis.model.moe_model import ModelRef, MoEModel
from pruning.plan.bits import layer_bits_from_json
from pruning.plan.experts_per_token import top_k_from_json
from pruning.plan.kept import neurons_from_json
from pruning.plan.layer_words import MOST_DIGITS
from pruning.plan.plan import (
    ATOMIC,
    EXPERT_GRANULARITY,
    NEURON_GRANULARITY,
    SCHEMA_VERSION,
    Provenance,
    PruningPlan,
    Repair,
    fit_plan,
)

# A key of another JSON file that people have -> what that file is.
_OTHER_FILES = {
    **dict.fromkeys(("metrics", "evaluations", "evaluation_id"), "a result of `moeprune evaluate`"),
    "benchmarks": "a result of `moeprune benchmark`",
    "architectures": "the configuration of a model",
}
_PLANS_IN_FOLDERS = ("plan.json", "moeprune_manifest.json")  # of a search, of an export
_ID = re.compile(r"[\w+-][\w.+-]{0,199}")  # of a repair


def plan_from_dict(raw: object) -> PruningPlan:
    """The plan in parsed JSON."""
    if not isinstance(raw, dict):
        raise PlanError("The plan is not a JSON object; `moeprune plan` writes one.")
    schema = raw.get("schema_version")
    if schema != SCHEMA_VERSION:
        again = "make the plan again with `moeprune plan`"
        raise PlanError(wrong_schema("The plan", schema, SCHEMA_VERSION, again))
    if raw.get("granularity") == ATOMIC:
        raw = {**raw, "granularity": NEURON_GRANULARITY, "kept_neurons": raw.get("kept_atoms")}
    granularity = raw.get("granularity", EXPERT_GRANULARITY)
    kept_raw = raw.get("kept", None if granularity == EXPERT_GRANULARITY else {})
    if not isinstance(kept_raw, dict):
        raise PlanError("The plan has no 'kept': layer -> ids of the experts that stay.")
    neurons = raw.get("kept_neurons", None if granularity == NEURON_GRANULARITY else {})
    try:
        model = ModelRef(str(raw["model"]["name"]), str(raw["model"]["identity"]))
        kept = {}
        if (depth := len(kept_raw)) > MOST_LAYERS:
            raise PlanError(f"The plan names {depth} layers; no model has more than {MOST_LAYERS}.")
        for key, ids in kept_raw.items():
            if not (key.isascii() and key.isdigit() and len(key) <= MOST_DIGITS):
                raise PlanError(f"The plan names layer {key!r}, which is not a decoder index.")
            if not isinstance(ids, list) or any(type(expert) is not int for expert in ids):
                raise PlanError(f"The plan's experts of layer {key} are not a list of integers.")
            kept[int(key)] = tuple(sorted(ids))
        provenance = _provenance(raw)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"at {error}" if isinstance(error, KeyError) else "in its model, kept or how it came"
        raise PlanError(f"The plan is malformed {what}.") from error
    repair = repair_from_json(raw.get("repair"))
    bits, layer_bits = raw.get("bits", ""), layer_bits_from_json(raw.get("layer_bits", {}))
    neurons, top_k = neurons_from_json(neurons), top_k_from_json(raw.get("top_k", 0), kept)
    return PruningPlan(
        *(model, kept, provenance, granularity, neurons, repair, bits, layer_bits), top_k=top_k
    )


def _provenance(raw: Mapping[str, Any]) -> Provenance:
    words = ("criterion", "gate", "schedule", "sparsity", "tool_version")
    lists = {key: raw.get(key, []) for key in ("corpora", "runs")}
    names = ("budget", "schedule_parameters", "constraints", "spec", "rows")
    objects = {key: raw.get(key, {}) for key in names}
    for key, value in lists.items():
        if not isinstance(value, list):
            raise PlanError(f"The plan's {key!r} is not a list.")
    for key, value in objects.items():
        if not isinstance(value, dict):
            raise PlanError(f"The plan's {key!r} is not an object.")
    values: dict[str, Any] = {key: str(raw.get(key, "")) for key in words} | objects
    values |= {key: tuple(map(str, entries)) for key, entries in lists.items()}
    if type(tokens := raw.get("tokens", 0)) is not int:
        raise PlanError("The plan's 'tokens' is no number.")
    values["tokens"] = tokens
    return Provenance(**values)


def plan_from_json(text: str | bytes) -> PruningPlan:
    """The plan in the text of a plan.json, or of an export's manifest."""
    try:
        raw = parse_json_once(text)
    except ValueError as error:
        raise PlanError(
            f"The plan is not valid JSON: {error}; `moeprune plan` writes one."
        ) from error
    if isinstance(raw, dict):
        for key, kind in _OTHER_FILES.items():
            if key in raw and "kept" not in raw:
                raise PlanError(f"It is {kind}, not a plan; give the plan.json of `moeprune plan`.")
    if not isinstance(raw, dict) or "plan_digest" not in raw:
        return plan_from_dict(raw)
    plan = plan_from_dict(raw.get("plan"))  # in the manifest of an export
    if plan.digest != raw["plan_digest"]:
        raise PlanError("It is damaged: its plan does not have its plan_digest; export again.")
    return plan


def load_plan(path: Path, *, model: MoEModel | None = None) -> PruningPlan:
    """Read plan.json, or the plan of a search's or an export's folder; `model` is `fit_plan`'s."""
    files = (path / name for name in _PLANS_IN_FOLDERS)
    path = next((file for file in files if file.is_file()), path)
    text = read_text_file("plan", path)
    try:
        plan = plan_from_json(text)
        return plan if model is None else fit_plan(plan, model)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def repair_from_json(raw: object) -> Repair | None:
    """The repair that a plan.json names, if it names one."""
    if raw is None:
        return None
    match raw:
        case {
            "record_id": str(record_id),
            "digest": str(digest),
            "corpora": list(corpora),
            "tokens": int(tokens),
            **others,
        } if not others and _ID.fullmatch(record_id) and _are_facts(corpora, tokens):
            return Repair(record_id, digest, tuple(corpora), tokens)
    raise PlanError(
        "The plan's 'repair' needs record_id, digest, corpora and tokens, as `moeprune repair` "
        "writes them."
    )


def _are_facts(corpora: list[Any], tokens: int) -> bool:
    return tokens > 0 and tokens is not True and all(isinstance(corpus, str) for corpus in corpora)


def content_digest(
    plan_digest: str, corpora: Sequence[str], tokens: int, files: Mapping[str, str]
) -> str:
    """The identity of a repair: of its plan, text and files, as 64 hex digits."""
    decides = {
        "plan": plan_digest,
        "corpora": list(corpora),
        "tokens": tokens,
        "files": dict(files),
    }
    return digest_of(decides)
