"""Kept apart: the data of benchmarks' test sets, and what calibrates, evaluates and searches.

What a choice was made on cannot judge it. Known by name: data sets of the hub that are benchmarks,
their splits for training excepted. Known by content: the documents of local tasks, compared by a
digest of their words. Other copies of a benchmark are not noticed.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from analysis.corpora.documents import Document
from analysis.corpora.presets import HubDataset
from analysis.corpora.sources import Source
from analysis.corpora.spec import parse_corpus
from analysis.errors import CorpusError
from analysis.json_text import parse_json

TEST_SETS = "test_sets"
# Last part of a data set's name on the hub -> how names of its tasks begin in the harness.
BENCHMARK_DATA: Mapping[str, str] = {
    "ai2_arc": "arc",
    "aime_2024": "aime24",
    "aime_2025": "aime25",
    "boolq": "boolq",
    "commonsense_qa": "commonsense_qa",
    "competition_math": "hendrycks_math",
    "gpqa": "gpqa",
    "gsm8k": "gsm8k",
    "hellaswag": "hellaswag",
    "hendrycks_math": "hendrycks_math",
    "hendrycks_test": "mmlu",
    "humanevalplus": "humaneval",
    "ifeval": "ifeval",
    "lambada_openai": "lambada",
    "livecodebench": "livecodebench",
    "code_generation_lite": "livecodebench",
    "math-500": "hendrycks_math",
    "math_qa": "mathqa",
    "mbpp": "mbpp",
    "mbppplus": "mbpp",
    "medmcqa": "medmcqa",
    "med_qa": "medqa",
    "medqa-usmle-4-options": "medqa",
    "medqa-usmle-4-options-hf": "medqa",
    "mmlu": "mmlu",
    "mmlu-pro": "mmlu_pro",
    "openai_humaneval": "humaneval",
    "openbookqa": "openbookqa",
    "piqa": "piqa",
    "pubmed_qa": "pubmedqa",
    "rte": "rte",
    "sciq": "sciq",
    "social_i_qa": "social_iqa",
    "truthful_qa": "truthfulqa",
    "winogrande": "winogrande",
}
_COLLECTIONS = ("glue", "super_glue", "superglue")  # each configuration is a benchmark
_COLLECTED = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
_TRAINING = ("train", "auxiliary_train")


def document_digest(text: str) -> str:
    """SHA-256 of a text's words, however they are spaced."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def benchmark_of(dataset: HubDataset) -> str | None:
    """The benchmark whose test data a data set of the hub is; None where it is of none known.

    Splits for training are of none.
    """
    if dataset.split.lower().startswith(_TRAINING):
        return None
    name = dataset.repo.rpartition("/")[2].lower()
    if name in _COLLECTIONS:
        return dataset.config if dataset.config in _COLLECTED else None
    return BENCHMARK_DATA.get(name)


def is_of_benchmark(task: str, benchmark: str) -> bool:
    """Whether a task of the harness asks a benchmark's questions, by its name."""
    return task == benchmark or task.startswith(f"{benchmark}_")


def task_documents(folders: Iterable[Path]) -> dict[str, str]:
    """Digest -> task, of the questions of local tasks and of the documents that they are from.

    The folders hold tasks as `analysis.demo.tasks.write_task` writes them; they need not exist.
    """
    known = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.jsonl"))):
        for prompt, digest in _questions(path):
            known[document_digest(prompt)] = path.stem
            known[digest] = path.stem
    return known


def _questions(path: Path) -> Iterator[tuple[str, str]]:
    """The prompt of each question of a task, and the digest of the document that it is from."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = parse_json(line)
            prompt, digest = row["prompt"], row["document_digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, number) from error
        if not isinstance(prompt, str) or not isinstance(digest, str):
            raise _damaged(path, number)
        yield prompt, digest


def _damaged(path: Path, line: int) -> CorpusError:
    return CorpusError(
        f"Line {line} of the benchmark {path} is no question; remove its folder, and the next "
        "`moeprune benchmark` makes it again."
    )


def open_apart(
    corpus: str,
    opened: Callable[[str], Source],
    documents: Mapping[str, str],
    *,
    allowed: bool = False,
) -> Source:
    """The documents of a corpus, which refuses those of a benchmark's test set as they are drawn.

    `opened` gives them; it is not called for what is refused by its name. `documents` is as by
    `task_documents`. With `allowed` they are given all the same, and the facts name the benchmarks
    under `test_sets`.
    """
    spec = parse_corpus(corpus)
    benchmark = benchmark_of(spec.dataset) if spec.dataset else None
    if benchmark and not allowed:
        raise CorpusError(_refusal(corpus, f"is the test data of the benchmark {benchmark}"))
    source = opened(corpus)
    # Filled while documents are drawn: manifests and results are made of the facts after that.
    found = [benchmark] if benchmark else []

    def drawn(seed: int) -> Iterator[Document]:
        for document in source.drawn(seed):
            task = _task_of(document, documents)
            if task and not allowed:
                raise CorpusError(_refusal(corpus, f"holds a document of the benchmark {task}"))
            if task and task not in found:
                found.append(task)
            yield document

    return replace(
        source, drawn=drawn, facts={**source.facts, **({TEST_SETS: found} if allowed else {})}
    )


def _refusal(corpus: str, why: str) -> str:
    return (
        f"The corpus {corpus} {why}, which can then no longer judge the result; take another text "
        "or the split for training, or add --allow-test-set (recipes: allow_test_set: true)."
    )


def _task_of(document: Document, known: Mapping[str, str]) -> str | None:
    texts = [str(message.get("content") or "") for message in document.messages or ()]
    texts += [document.text] if document.text else []
    digests = (document_digest(text) for text in texts if known)
    return next((known[digest] for digest in digests if digest in known), None)
