"""Datasets of the hub and local copies of them, streamed by `datasets`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from analysis.corpora.documents import Document, Row, row_document
from analysis.corpora.sources import Source, local_source
from analysis.corpora.spec import HubDataset, parse_corpus
from analysis.errors import CorpusError, first_line
from analysis.hub import reach_hub
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
        numbered = enumerate(rows, 1)
        while True:
            try:
                number, row = next(numbered)
            except StopIteration:
                return
            except _read_errors() as error:
                reason = first_line(error).rstrip(".")
                raise CorpusError(f"Reading the dataset {spec.name} failed: {reason}.") from error
            where = f"{spec.name}, row {number} as drawn"
            yield Row(
                where, partial(row_document, row, where, spec.fields, of_arrow=True)
            ).document()

    order = {} if join is not None else {"shuffle_buffer": SHUFFLE_BUFFER}
    return Source(draw, join, {"source": facts | order})


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
