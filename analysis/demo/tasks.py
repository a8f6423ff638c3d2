"""Benchmarks on the demo's held-out texts: tasks of lm-evaluation-harness on local files.

Code and prose come from the running Python, so the tasks are built where they are used;
demo-math-exact is the same everywhere. A task's version is a digest of its questions.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock

from analysis.corpora.apart import document_digest
from analysis.demo.held_out import benchmark_texts
from analysis.demo.texts import DemoText
from analysis.durable import write_durably
from analysis.errors import CorpusError

Row = dict[str, Any]
_PROMPT_CHARS = 180
_CHOICE_CHARS = 60
_DISTRACTORS = 3
_ANSWER = r"The answer is (-?\d+)"


def _passages(text: str) -> Iterator[tuple[str, str]]:
    """Disjoint passages, each split between words into a prompt and its continuation."""
    place = 0
    while True:
        parts = []
        for length in (_PROMPT_CHARS, _CHOICE_CHARS):
            space = re.compile(r"\s").search(text, place + length)
            if space is None:
                return
            parts.append(text[place : space.start()])
            place = space.start()
        # The space stays with the continuation: tokens begin with it.
        prompt, continuation = parts[0].lstrip(), parts[1].rstrip()
        if prompt.strip() and len(continuation.strip()) >= _CHOICE_CHARS // 2:
            yield prompt, continuation


def choice_questions(texts: Sequence[DemoText]) -> list[Row]:
    """Which of four continuations follows? Three are from other documents.

    At most 240 rows of `prompt`, `choices` (4, in random order), `label` (number of the true one),
    `document` (its name) and `document_digest`, drawn from all passages and kept in order.
    """
    rng = np.random.default_rng(42)
    passages = [(text.name, *each) for text in texts for each in _passages(text.prompt)]
    digests = {text.name: document_digest(text.prompt) for text in texts}
    if len({name for name, _, _ in passages}) <= _DISTRACTORS:
        raise CorpusError(
            f"Questions with {_DISTRACTORS + 1} choices need passages of as many documents."
        )
    chosen = np.sort(rng.permutation(len(passages))[:240])
    rows = []
    for name, prompt, continuation in (passages[int(number)] for number in chosen):
        choices = {continuation: name}
        while len(choices) <= _DISTRACTORS:
            other, _, text = passages[int(rng.integers(len(passages)))]
            if other not in choices.values():
                choices.setdefault(text, other)
        order = [int(place) for place in rng.permutation(len(choices))]
        row: Row = {"prompt": prompt, "choices": [list(choices)[place] for place in order]}
        row |= {"label": order.index(0), "document": name, "document_digest": digests[name]}
        rows.append(row)
    return rows


def answer_questions(texts: Sequence[DemoText]) -> list[Row]:
    """Word problems in the demo model's format: prompt, answer, document, document_digest."""
    return [
        {
            "prompt": f"<|user|>{text.prompt}<|assistant|>",
            "answer": re.findall(_ANSWER, text.response)[0],
            "document": text.name,
            "document_digest": document_digest(text.prompt),
        }
        for text in texts
    ]


_CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "prompt",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
    "target_delimiter": "",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("acc", "acc_norm")
    ],
}
_EXACT = {
    "output_type": "generate_until",
    "doc_to_text": "prompt",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "generation_kwargs": {"until": ["<|end|>"], "do_sample": False, "max_gen_toks": 128},
    "filter_list": [
        {
            "name": "answer",
            "filter": [{"function": "regex", "regex_pattern": _ANSWER}, {"function": "take_first"}],
        }
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A benchmark made from the demo's held-out texts."""

    name: str
    corpus: str  # source of its texts
    about: str  # what it asks
    questions: Callable[[Sequence[DemoText]], list[Row]]  # texts -> rows
    form: Mapping[str, Any]  # how lm-evaluation-harness asks and scores


_FOLLOWS = "which of four continuations follows in a"
_WORKED_OUT = "the number that a word problem asks for, worked out in words"
_TASKS = (
    LocalTask("demo-code-mc", "demo-code", f"{_FOLLOWS} Python module", choice_questions, _CHOICE),
    LocalTask("demo-prose-mc", "demo-prose", f"{_FOLLOWS} text", choice_questions, _CHOICE),
    LocalTask("demo-math-exact", "demo-math", _WORKED_OUT, answer_questions, _EXACT),
)
LOCAL_TASKS: Mapping[str, LocalTask] = {task.name: task for task in _TASKS}


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """A local task on disk."""

    name: str
    folder: Path  # with `<name>.yaml`, which lm-evaluation-harness reads, and `<name>.jsonl`
    version: str  # 12 hex digits of the digest of questions and form


def write_task(task: LocalTask, folder: Path) -> WrittenTask:
    """Write a local task below a folder, unless it is there already."""
    name = task.name
    rows = task.questions(benchmark_texts(task.corpus))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    form = json.dumps(task.form, sort_keys=True).encode()
    version = hashlib.sha256(form + lines).hexdigest()[:12]
    task_folder = (folder / f"{name}-{version}").absolute()
    task_folder.mkdir(parents=True, exist_ok=True)
    content = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(task_folder / f"{name}.jsonl")},
            "cache_dir": str(task_folder / "arrow"),
        },
        "test_split": "test",
        "num_fewshot": 0,
        **task.form,
        "metadata": {"version": version},
    }
    with FileLock(task_folder / "lock"):
        for end, data in (
            (".jsonl", lines),
            (".yaml", yaml.safe_dump(content, sort_keys=False).encode()),
        ):
            path = task_folder / f"{name}{end}"
            # Unchanged files are not rewritten: `datasets` caches by their time.
            if not path.is_file() or path.read_bytes() != data:
                write_durably(path, data)
    return WrittenTask(name, task_folder, version)
