"""Benchmarks on the demo's held-out texts: tasks of lm-evaluation-harness on local files.

They are written where they are used. A task's version is a digest of its questions.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock

from analysis.demo.generate.draw import GeneratedText
from analysis.demo.held_out import benchmark_texts
from analysis.files.content import document_digest
from analysis.files.durable import write_durably

Row = dict[str, Any]
_QUESTIONS = 240  # of a task
_DISTRACTORS = 3


def _row(text: GeneratedText, prompt: str) -> Row:
    known_by = text.whole if text.earlier is None else text.prompt  # plain text, or a turn
    return {
        "prompt": prompt,
        "document": text.name,
        "document_digest": document_digest(known_by),
    }


def choice_questions(texts: Sequence[GeneratedText]) -> list[Row]:
    """Which of four responses belongs to a prompt? Three are those of other documents.

    At most 240 rows of `prompt`, `choices` (4, in random order), `label` (number of the true one),
    `document` (its name) and `document_digest`. The texts need four different responses.
    """
    rng = np.random.default_rng(42)
    rows = []
    for text in islice(texts, _QUESTIONS):
        choices = [text.response]
        while len(choices) <= _DISTRACTORS:
            other = texts[int(rng.integers(len(texts)))].response
            if other not in choices:
                choices.append(other)
        order = [int(place) for place in rng.permutation(len(choices))]
        row = _row(text, text.prompt) | {"choices": [choices[place] for place in order]}
        rows.append(row | {"label": order.index(0)})
    return rows


def answer_questions(texts: Sequence[GeneratedText]) -> list[Row]:
    """What is the answer? At most 240 rows of `prompt`, in the demo model's format, `answer`,
    `document`, `document_digest`.
    """
    rows = []
    for text in islice(texts, _QUESTIONS):
        prompt = text.prompt
        if text.earlier is not None:
            turns = "".join(f"<|user|>{ask}<|assistant|>{say}<|end|>" for ask, say in text.earlier)
            prompt = f"{turns}<|user|>{text.prompt}<|assistant|>"
        rows.append(_row(text, prompt) | {"answer": text.answer})
    return rows


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


def _answered(read: Mapping[str, Any], *stops: str) -> Mapping[str, Any]:
    """The form of questions whose answer, as this filter reads it, is compared as text."""
    return {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "generation_kwargs": {"until": ["<|end|>", *stops], "do_sample": False, "max_gen_toks": 64},
        "filter_list": [{"name": "answer", "filter": [read, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


_LAST_NUMBER = {"function": "regex", "regex_pattern": r"(-?\d+)", "group_select": -1}
_FIRST_LINE = {"function": "regex", "regex_pattern": r"^\s*(.+)"}


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A benchmark made from the demo's held-out texts."""

    name: str
    corpus: str  # source of its texts
    about: str  # what it asks
    questions: Callable[[Sequence[GeneratedText]], list[Row]]  # texts -> rows
    form: Mapping[str, Any]  # how lm-evaluation-harness asks and scores


_TASKS = (
    LocalTask(
        "demo-code-mc",
        "demo-code",
        "which of four bodies does what the docstring of a function says",
        choice_questions,
        _CHOICE,
    ),
    LocalTask(
        "demo-stories-exact",
        "demo-stories",
        "the answer to a question about a story",
        answer_questions,
        _answered(_FIRST_LINE, "\n"),
    ),
    LocalTask(
        "demo-math-exact",
        "demo-math",
        "the number that a word problem asks for, worked out before",
        answer_questions,
        _answered(_LAST_NUMBER),
    ),
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
