"""Losses by sample: of some documents, without those that chose a plan, and paired. No torch.

They choose a plan on one half and report the other, and tell whether two plans differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from pruning.measures.result import (
    Difference,
    SampleValues,
    document_places,
    paired_difference,
)
from pruning.records.quality import PlanLoss

# The facts of drawn samples that decide which samples of a corpus come first.
_ORDER: Final = (
    *("seed", "drawn", "skipped", "seq_len", "packing", "count", "truncate"),
    "windows_per_document",
)


def halves(loss: PlanLoss) -> tuple[PlanLoss | None, PlanLoss | None]:
    """The loss on every second document of each corpus, from the first and from the second on.

    Together they have all samples, and no document is in both.
    """
    parts = (dict.fromkeys(loss.change, slice(start, None, 2)) for start in (0, 1))
    first, second = (of_documents(loss, part) for part in parts)
    return first, second


def of_documents(loss: PlanLoss, picked: Mapping[str, slice]) -> PlanLoss | None:
    """The loss on the picked documents of some corpora, and on all samples of the others.

    Documents are picked by their place in order, with all of their samples. None if losses by
    sample are missing, or no document of a corpus is picked.
    """
    slices = {name: part for name, part in picked.items() if name in loss.change}
    parts = {n: loss.samples[n].picked(part) for n, part in slices.items() if n in loss.samples}
    if len(parts) < len(slices) or not all(part.tokens for part in parts.values()):
        return None
    full = {name: float(part.full_means.mean()) for name, part in parts.items()}
    change = {name: float(part.means.mean()) - full[name] for name, part in parts.items()}
    sizes = [loss.num_samples, *(len(part.tokens) for part in parts.values())]
    return replace(
        loss,
        change={**loss.change, **change},
        full={**loss.full, **full},
        samples={**loss.samples, **parts},
        num_samples=min(sizes),
        right={},
    )


def unseen(loss: PlanLoss, judged_on: Mapping[str, Any]) -> PlanLoss | None:
    """The loss without the documents that chose the plan; None if nothing remains.

    `judged_on` is the corpus of a search, `SearchResult.header["corpus"]`: the first `samples` of
    an order. If the evaluation drew in the same order, their documents are left out, else the whole
    corpus.
    """
    name = judged_on["name"]
    if name not in loss.change:
        return loss
    samples = loss.samples.get(name)
    if samples and all(loss.sample_facts[name].get(key) == judged_on.get(key) for key in _ORDER):
        places = document_places(samples.documents, len(samples.tokens))
        first_unseen = int(places[: judged_on["samples"]].max()) + 1
        rest = of_documents(loss, {name: slice(first_unseen, None)})
        if rest is not None:
            return rest
    change = {corpus: value for corpus, value in loss.change.items() if corpus != name}
    return replace(loss, change=change, right={}) if change else None


@lru_cache(maxsize=1 << 10)
def difference(one: PlanLoss, other: PlanLoss) -> Difference | None:
    """Loss of `one` minus that of `other` on the corpora of both, in nats per token.

    None if the plans were not measured on the same samples, or losses by sample are missing.
    """
    corpora = sorted(one.change.keys() & other.change.keys())
    common = [name for name in corpora if name in one.samples and name in other.samples]
    pairs = [(one.samples[name], other.samples[name]) for name in common]
    digests = [[loss.sample_facts[name]["digest"] for name in common] for loss in (one, other)]
    if (
        not pairs
        or len(pairs) < len(corpora)
        or digests[0] != digests[1]
        # Parts of the same samples may be different ones.
        or any((a.tokens, a.documents) != (b.tokens, b.documents) for a, b in pairs)
    ):
        return None
    return paired_difference([SampleValues(a.means - b.means, a.documents) for a, b in pairs])
