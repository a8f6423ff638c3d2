"""Renders chat templates, programs in jinja, within limits of time and memory."""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, cast

from analysis.corpora import template_worker
from analysis.corpora.template_worker import from_json, to_json, write_message


@dataclass(frozen=True, slots=True)
class Limits:
    """What rendering one conversation may take."""

    seconds: float = 10.0
    memory: int = 1 << 31  # bytes, beyond those of the process at its start
    answer: int = 1 << 27  # bytes of the rendered text, as JSON


LIMITS = Limits()
_LONGEST_PROBLEM = 1 << 14  # bytes of an answer that says what went wrong


class RenderedConversation(NamedTuple):
    """A conversation in a model's own format."""

    text: str
    answers: Sequence[tuple[int, int]]  # first character and end of each {% generation %}


def render(
    template: str,
    conversation: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    limits: Limits = LIMITS,
    keep_nulls: bool = False,
    **options: Any,
) -> RenderedConversation:
    """The text that a chat template makes of a conversation, as transformers renders it.

    `variables` are the special tokens; `options` are those of `apply_chat_template`. Raises what
    the template raises as TemplateError, and RuntimeError for a limit or any other problem.
    """
    if not conversation:
        raise ValueError("a conversation without messages has no format")
    messages = list(conversation)
    if not keep_nulls:  # as `apply_chat_template` does: many templates would write the word None
        messages = [without_null_keys(message) for message in conversation]
    inputs = {**variables, **options, "conversations": [messages], "chat_template": template}
    answer = _worker(os.getpid()).ask(inputs, limits)
    if "length" in answer:
        raise RuntimeError(f"its chat template writes more than {_in_mib(limits.answer)}")
    if "error" in answer:
        from jinja2 import TemplateError

        raise (TemplateError if answer["of_template"] else RuntimeError)(answer["error"])
    return RenderedConversation(answer["text"], [(start, end) for start, end in answer["answers"]])


def without_null_keys(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its keys that are null, as transformers gives it to templates."""
    return {key: value for key, value in message.items() if value is not None}


def _in_mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


class _Worker:
    """The process that renders; started at first use, and again after it ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid  # of the process that may use it
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        atexit.register(self._end)

    def ask(self, options: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
        """The worker's answer to one request."""
        request = to_json({"options": options, "limits": asdict(limits)})
        with self._lock:
            process = self._running()
            try:
                answer = _ask_process(process, request, limits)
            except BaseException:  # also Ctrl-C: the next answer would be to this request
                self._end()
                raise
            if answer is None:
                self._end()
                raise RuntimeError(_why_ended(process.returncode, limits))
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(  # noqa: S603  (a list, no shell)
                # -P: do not search the working directory.
                [sys.executable, "-P", template_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._pid != os.getpid():
            return
        process.kill()
        with suppress(BrokenPipeError), process:  # of a request that it did not read
            pass


@cache
def _worker(pid: int) -> _Worker:
    """The worker of this process; one that was forked starts its own."""
    return _Worker(pid)


def _ask_process(
    process: subprocess.Popen[bytes], request: bytes, limits: Limits
) -> Mapping[str, Any] | None:
    """The process's answer to a request; None if it ended."""
    requests, answers = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    try:
        write_message(requests, request)
    except BrokenPipeError:
        return None
    length = int.from_bytes(answers.read(8), "little")
    if length > max(limits.answer, _LONGEST_PROBLEM):
        raise RuntimeError("the process that formats it does not answer as agreed")
    content = answers.read(length)
    return from_json(content) if content and len(content) == length else None


def _why_ended(status: int, limits: Limits) -> str:
    """Why a process ended."""
    if status == -signal.SIGALRM:
        return f"its chat template runs for more than {limits.seconds:g} s"
    if status == template_worker.OUT_OF_MEMORY:
        return f"its chat template takes more than {_in_mib(limits.memory)} of memory"
    return f"the process that formats it ended with status {status}"
