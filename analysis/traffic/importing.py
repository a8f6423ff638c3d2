"""Stores the counts of live traffic as a run."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.corpora.account import SKIPPED_ROWS
from analysis.corpora.spec import bare_name, names_corpus
from analysis.corpora.tokens import Count
from analysis.errors import StatsError
from analysis.files.content import file_sha256
from analysis.files.naming import digest_of, now, run_name
from analysis.files.shipped import tool_version
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import IntArray
from analysis.progress import Progress
from analysis.stats.grid import Grid
from analysis.stats.manifest import (
    COUNTS_ALONE,
    SCHEMA_VERSION,
    CorpusRef,
    Run,
    RunManifest,
    measured_model,
)
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_counts
from analysis.traffic.counting import Tally, last_experts
from analysis.traffic.layout import Layout
from analysis.traffic.reading import Source, TrafficReader, check_unchanged, file_states

_UNSEEN = "unseen"  # in a manifest: last experts that no layer chose, which was allowed
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,99}")
_ENDING = re.compile(r"(\.(jsonl|ndjson|json|npz|txt|log))+$", flags=re.I)  # no part of a name


@dataclass(frozen=True, slots=True)
class TrafficImport:
    """Files of answers, and how their tokens count."""

    paths: tuple[Path, ...]
    name: str  # of the run's corpus
    count: Count = "all"
    skips: int = 0  # lines that may be left out
    # Whether the last experts may be unseen in all layers, as if a pruned model had answered.
    allows_small_ids: bool = False

    def digest(self) -> str:
        """Of what the files hold, in any order."""
        return digest_of({"files": sorted(map(file_sha256, self.paths))})


@dataclass(frozen=True, slots=True, eq=False)
class CountedTraffic:
    """What files of answers hold."""

    counts: IntArray  # (layers, experts)
    corpus: CorpusRef  # without a digest


def count_traffic(
    layout: Layout, asked: TrafficImport, if_pruned: str
) -> Generator[Progress, None, CountedTraffic]:
    """The routed tokens in files of answers; errors as by `TrafficReader.read`.

    `if_pruned` says what to do where a pruned model seems to have answered.
    """
    tally = Tally(layout, asked.count)
    reader = TrafficReader(layout, tally, asked.skips)
    yield from reader.read(asked.paths)
    if not asked.allows_small_ids:
        tally.check_whole(if_pruned)
    return CountedTraffic(tally.counts, _corpus(asked, tally, reader.source))


def usual_name(paths: Sequence[Path]) -> str:
    """The name of traffic that is given none: that of its first file."""
    return re.sub(r"[^\w+-]", "-", _ENDING.sub("", paths[0].name)) or "traffic"


def import_traffic(
    model: MoEModel, asked: TrafficImport, store: StatsStore
) -> Generator[Progress, None, Run]:
    """Count the routed tokens in files of answers, and store a run of counts alone.

    A run of the same files, name and count in the cache is returned at once.

    Raises:
        StatsError: the name is taken, or as by `TrafficReader.read`; nothing is stored then.
    """
    _check_name(asked.name, model, store)
    store.check_target()
    before = file_states(asked.paths)
    content = asked.digest()
    digest = digest_of(
        {
            "schema_version": SCHEMA_VERSION,
            "model": model.identity,
            "name": asked.name,
            "count": asked.count,
            "files": content,
        }
    )
    for run in store.of_model(model.identity, COUNTS_ALONE):
        was_refused = num_unseen(run.manifest.corpora[0]) and not asked.allows_small_ids
        if run.manifest.digest == digest and not was_refused:
            yield Progress("cached", 1, 1, "runs", f"{run.manifest.run_id} is there already")
            return run
    layout = Layout(model.name, model.layers, model.depth)
    if_pruned = f"If so, name that model instead of {model.name}."
    counted = yield from count_traffic(layout, asked, if_pruned)
    check_unchanged(asked.paths, before)  # also since the digest was taken
    manifest = RunManifest(
        kind=COUNTS_ALONE,
        run_id=run_name(Path(model.name).name, asked.name, digest=digest),
        digest=digest,
        model=measured_model(model),
        corpora=(replace(counted.corpus, digest=content),),
        settings={"dtype": "served", "count": asked.count},
        made={"created_at": now(), "tool_version": tool_version()},
    )
    grid = Grid(model.layers)
    return save_counts(store.target, manifest, counted.counts[grid.present])


def _check_name(name: str, model: MoEModel, store: StatsStore) -> None:
    if not _NAME.fullmatch(name):
        raise StatsError(
            f"{name!r} is no name for traffic; use letters, digits and - _ . +, such as "
            "monday-chats: --name."
        )
    is_taken = any(
        name in (corpus.name, bare_name(corpus.name))
        for run in store.of_model(model.identity, "routed")
        for corpus in run.manifest.corpora
    )
    if is_taken or names_corpus(name):
        raise StatsError(f"{name} is the name of a corpus; name the traffic otherwise: --name.")


def _corpus(asked: TrafficImport, tally: Tally, source: Source) -> CorpusRef:
    """What the manifest says of traffic."""
    facts: dict[str, Any] = {
        "traffic": {
            "programs": sorted(source.programs),
            "versions": sorted(source.versions),
            "models": sorted(source.models),
            **source.times,
            "files": [str(path.absolute()) for path in asked.paths],
            "requests": source.num_requests,
            "repeated": tally.num_repeated,
            "surplus": tally.num_surplus,
            "unrecorded": tally.num_unrecorded,
        }
    }
    if asked.allows_small_ids:
        facts["traffic"][_UNSEEN] = tally.num_unseen
    if source.num_skipped:
        facts[SKIPPED_ROWS] = source.num_skipped
    return CorpusRef(
        name=asked.name,
        digest="",
        num_documents=source.num_requests,
        num_sequences=source.num_answers,
        num_tokens=tally.num_tokens,
        num_padded=0,
        num_dropped=tally.num_repeated + tally.num_surplus + tally.num_unrecorded,
        num_counted=tally.num_counted,
        prepared=facts,
        path=str(asked.paths[0].absolute()),
    )


def traffic_files(corpus: CorpusRef) -> list[str]:
    """The files of traffic, as they were called; the first one if its import recorded no others."""
    return corpus.prepared["traffic"].get("files") or [corpus.path]


def num_unseen(corpus: CorpusRef) -> int:
    """Last experts that no layer chose in traffic that was imported nevertheless; else 0."""
    return int(corpus.prepared["traffic"].get(_UNSEEN, 0))


def traffic_words(corpus: CorpusRef) -> str:
    """What traffic is: how much, from which program and when."""
    facts = corpus.prepared["traffic"]
    programs = [" ".join([" and ".join(facts["programs"]), "/".join(facts["versions"])]).strip()]
    first, last = (str(facts.get(end, ""))[:10] for end in ("first", "last"))
    when = f"of {first}" if first == last else f"of {first} to {last}"
    words = [
        f"traffic {when if first else 'of unknown time'}",
        f"{corpus.num_documents:,} requests",
        f"{corpus.num_counted:,} tokens counted",
        f"from {programs[0]}",
    ]
    left = {
        "repeated history": facts["repeated"],
        "drafts not accepted": facts["surplus"],
        "without routed experts": facts["unrecorded"],
    }
    words += [f"{number:,} {name} left out" for name, number in left.items() if number]
    if unseen := num_unseen(corpus):
        words.append(f"allowed though no layer chose {last_experts(unseen)}")
    if skipped := corpus.prepared.get(SKIPPED_ROWS):
        words.append(f"{skipped:,} bad lines skipped")
    return ", ".join(words)
