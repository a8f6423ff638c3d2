"""Datasets of the hub and local copies of them, streamed by `datasets`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.checkpoint.hub import reach_hub
from analysis.corpora.documents import CorpusRow, Document, row_document
from analysis.corpora.fields import Fields
from analysis.corpora.presets import BlendPart, HubDataset
from analysis.corpora.sources import Source, local_source
from analysis.corpora.spec import CorpusSpec, parse_corpus
from analysis.errors import CorpusError, first_line
from analysis.lazy import datasets, pa

SHUFFLE_BUFFER = 10_000  # documents; the order of files is shuffled as a whole
_COMPRESSED = ("", ".gz", ".zst", ".bz2", ".xz")
_BUILDERS: Mapping[str, str] = {
    f"{suffix}{compressed}": builder
    for suffix, builder in ((".json", "json"), (".jsonl", "json"), (".txt", "text"))
    for compressed in _COMPRESSED
} | {".parquet": "parquet"}


def _read_errors() -> tuple[type[BaseException], ...]:
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return (DatasetsError, OSError, ValueError, RuntimeError, HTTPError, pa.ArrowException)


def open_corpus(corpus: str) -> Source:
    """The documents of a corpus: local, built in, or on the hub."""
    spec = parse_corpus(corpus)
    if spec.preset and spec.preset.blend:
        return _open_blend(spec, spec.preset.blend, corpus)
    if spec.dataset is None:
        return local_source(spec)
    spec.check_content()
    join = spec.preset.join if spec.preset else None
    if spec.path is None:
        stream, facts = _hub_stream(spec.dataset, corpus)
    else:
        stream, facts = _local_stream(spec.path, spec.name, joined=join is not None)

    def draw(seed: int) -> Iterator[Document]:
        rows = stream if join is not None else stream.shuffle(seed, buffer_size=SHUFFLE_BUFFER)
        return _documents(rows, spec.name, spec.fields)

    order = {} if join is not None else {"shuffle_buffer": SHUFFLE_BUFFER}
    return Source(draw, join, {"source": facts | order})


def _documents(rows: Iterable[Mapping[str, Any]], name: str, fields: Fields) -> Iterator[Document]:
    numbered = enumerate(rows, 1)
    while True:
        try:
            number, row = next(numbered)
        except StopIteration:
            return
        except _read_errors() as error:
            reason = first_line(error).rstrip(".")
            raise CorpusError(f"Reading the dataset {name} failed: {reason}.") from error
        where = f"{name}, row {number} as drawn"
        read = partial(row_document, row, where, fields, of_arrow=True)
        yield CorpusRow(where, read).document()


def _open_blend(spec: CorpusSpec, parts: Sequence[BlendPart], corpus: str) -> Source:
    """So many conversations of each dataset, mixed: the beginning has the same shares."""
    spec.check_content()
    opened = [
        _hub_stream(part.dataset, corpus)
        if spec.path is None
        else _local_stream(_copy_of(part, spec), part.name, joined=False)
        for part in parts
    ]

    def draw(seed: int) -> Iterator[Document]:
        drawn = [
            _documents(
                stream.shuffle(seed, buffer_size=SHUFFLE_BUFFER), part.name, part.dataset.fields
            )
            for part, (stream, _) in zip(parts, opened, strict=True)
        ]
        counts = [part.conversations for part in parts]
        for number in np.random.default_rng(seed).permutation(np.repeat(range(len(parts)), counts)):
            for document in drawn[number]:
                yield document
                if document.problem is None:  # a bad row does not count
                    break

    blend = [
        facts | {"conversations": part.conversations}
        for part, (_, facts) in zip(parts, opened, strict=True)
    ]
    return Source(draw, facts={"source": {"blend": blend, "shuffle_buffer": SHUFFLE_BUFFER}})


def _copy_of(part: BlendPart, spec: CorpusSpec) -> Path:
    """The local copy of a dataset in the folder with those of a blend."""
    folder = spec.path or Path()
    copies = sorted(folder.glob(f"{part.name}*")) if folder.is_dir() else []
    if len(copies) != 1:
        names = ", ".join(member.name for member in (spec.preset.blend if spec.preset else ()))
        raise CorpusError(
            f"{folder} holds {len(copies) or 'no'} files or folders named {part.name}; "
            f"{spec.name}=PATH is a folder with one copy of each: {names}."
        )
    return copies[0]


def _hub_stream(
    dataset: HubDataset, corpus: str
) -> tuple[datasets.IterableDataset, dict[str, Any]]:
    """The rows of a dataset, and its facts, such as the commit of its revision today."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HTTPError,  # of the library's own HTTP client, whichever it is
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        reach_hub()
        # First, because it fails at once; streaming would retry five times.
        info = HfApi().dataset_info(dataset.repo, revision=dataset.revision, timeout=20)
    except GatedRepoError as error:
        raise CorpusError(
            f"{dataset.repo} is gated: accept its terms on the hub, then log in with "
            "`hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CorpusError(f"{dataset.repo} has no revision {dataset.revision!r}.") from error
    except RepositoryNotFoundError as error:
        raise CorpusError(
            f"The hub has no dataset {dataset.repo} that you may read; is the name right?"
        ) from error
    except (OfflineModeIsEnabled, HTTPError, OSError) as error:
        copy = f"{corpus}=PATH with a copy" if not corpus.startswith("hub:") else "a local file"
        reason = first_line(error).rstrip(".")
        raise CorpusError(
            f"The dataset {dataset.repo} cannot be reached on the hub ({reason}); "
            f"without a network use {copy}."
        ) from error
    commit = str(info.sha)
    place, options = (dataset.repo, dataset.config), {"split": dataset.split, "revision": commit}
    stream = _loaded(f"{dataset.repo} cannot be read", *place, **options)
    facts = {"dataset": dataset.repo, "revision": commit, "split": dataset.split}
    return stream, facts | ({"config": dataset.config} if dataset.config else {})


def _local_stream(
    path: Path, name: str, *, joined: bool
) -> tuple[datasets.IterableDataset, dict[str, Any]]:
    if not path.exists():
        raise CorpusError(f"The copy {path} of {name} does not exist.")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    built = {
        file: _BUILDERS[end]
        for file in files
        for end in _BUILDERS
        if file.is_file() and file.name.endswith(end)
    }
    if len(set(built.values())) != 1:
        what = "several kinds of files" if built else "no file"
        raise CorpusError(
            f"{path} holds {what} to read as {name}; use files of one kind: .parquet, or .jsonl, "
            ".json or .txt, plain or compressed."
        )
    builder = next(iter(built.values()))
    options: dict[str, Any] = {}
    if builder == "text":
        # One text keeps its line breaks; otherwise blank lines separate documents.
        options = {"keep_linebreaks": True} if joined else {"sample_by": "paragraph"}
    options |= {"data_files": [str(file) for file in built], "split": "train"}
    stream = _loaded(f"{path} cannot be read as {name}", builder, **options)
    return stream, {"copy": path.name, "files": len(built)}


def _loaded(failure: str, *place: str | None, **options: Any) -> datasets.IterableDataset:
    """The rows of a dataset; `failure` says what it means if there are none."""
    # Problems are raised, so `datasets` need not log them too.
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(*place, streaming=True, **options)
    except _read_errors() as error:
        raise CorpusError(f"{failure}: {first_line(error).rstrip('.')}.") from error
