"""Keeps benchmark test sets out of calibration, evaluation and search.

Never evaluate on selection data. Benchmarks on the hub are recognised by name, except their
training splits; documents of local tasks by a digest of their words. Other copies of a benchmark
are not detected.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from analysis.corpora.conversations import texts_of
from analysis.corpora.documents import Document
from analysis.corpora.presets import HubDataset
from analysis.corpora.sources import Source
from analysis.corpora.spec import parse_corpus
from analysis.errors import CorpusError
from analysis.files.content import document_digest
from analysis.files.json_text import parse_json

TEST_SETS = "test_sets"
# Last part of a dataset's name on the hub -> prefix of its task names in the harness.
BENCHMARK_DATA: Mapping[str, str] = {
    "ai2_arc": "arc",
    "aime_2024": "aime24",
    "aime_2025": "aime25",
    "boolq": "boolq",
    "code_generation_lite": "livecodebench",
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
    "math-500": "hendrycks_math",
    "math_qa": "mathqa",
    "mbpp": "mbpp",
    "mbppplus": "mbpp",
    "med_qa": "medqa",
    "medmcqa": "medmcqa",
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


def benchmark_of(dataset: HubDataset) -> str | None:
    """The benchmark whose test data this dataset is; None for others and for training splits."""
    if dataset.split.lower().startswith(_TRAINING):
        return None
    name = dataset.repo.rpartition("/")[2].lower()
    if name in _COLLECTIONS:
        return dataset.config if dataset.config in _COLLECTED else None
    return BENCHMARK_DATA.get(name)


def is_of_benchmark(task: str, benchmark: str) -> bool:
    """Whether a task of the harness belongs to a benchmark, by its name."""
    return task == benchmark or task.startswith(f"{benchmark}_")


def task_documents(folders: Iterable[Path]) -> dict[str, str]:
    """Digest -> task, for the questions of local tasks and their source documents.

    The folders hold tasks written by `analysis.demo.tasks.write_task`; they need not exist.
    """
    tasks = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.jsonl"))):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                row = parse_json(line)
                digests = document_digest(row["prompt"]), row["document_digest"]
                tasks.update(dict.fromkeys(map(str.strip, digests), path.stem))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorpusError(
                    f"Line {number} of the benchmark {path} is not a question; remove its folder, "
                    "and the next `moeprune benchmark` rebuilds it."
                ) from error
    return tasks


def open_apart(
    corpus: str,
    open_corpus: Callable[[str], Source],
    documents: Mapping[str, str],
    *,
    allowed: bool = False,
) -> Source:
    """A corpus that refuses documents of a benchmark's test set as they are drawn.

    `open_corpus` is not called for a corpus refused by name. `documents` is the result of
    `task_documents`. With `allowed` nothing is refused, and the facts list the benchmarks under
    `test_sets`.
    """
    spec = parse_corpus(corpus)
    benchmark = benchmark_of(spec.dataset) if spec.dataset else None
    if benchmark and not allowed:
        raise CorpusError(_refusal(corpus, f"is the test data of the benchmark {benchmark}"))
    source = open_corpus(corpus)
    # Filled while documents are drawn; manifests and results read the facts after that.
    benchmarks = [benchmark] if benchmark else []

    def draw(seed: int) -> Iterator[Document]:
        for document in source.draw(seed):
            contents = [turn.get("content") or "" for turn in document.messages or ()]
            texts = [" ".join(texts_of(content)) or str(content) for content in contents]
            texts += [document.text] if document.text else []
            digests = map(document_digest, texts if documents else ())
            task = next((documents[digest] for digest in digests if digest in documents), None)
            if task and not allowed:
                raise CorpusError(_refusal(corpus, f"holds a document of the benchmark {task}"))
            if task and task not in benchmarks:
                benchmarks.append(task)
            yield document

    facts = {TEST_SETS: benchmarks} if allowed else {}
    return replace(source, draw=draw, facts={**source.facts, **facts})


def _refusal(corpus: str, why: str) -> str:
    return (
        f"The corpus {corpus} {why}, which would then no longer be a fair test; use another corpus "
        "or the training split, or add --allow-test-set (recipes: allow_test_set: true)."
    )
