"""Renders chat templates in a process of its own, with limits; `templates` starts it.

A template is a program that comes with a checkpoint. The process imports nothing of this project.
It reads requests from its input and ends with it, and writes one answer to each. A message is eight
bytes of length and JSON.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

OUT_OF_MEMORY = 3  # exit status
_LONGEST_REASON = 1000  # characters


def write_message(file: BinaryIO, content: bytes) -> None:
    """Write a message."""
    file.write(len(content).to_bytes(8, "little"))
    file.write(content)
    file.flush()


def to_json(value: Any) -> bytes:
    """JSON with lone surrogates; what has no JSON is named by its type, as transformers does."""
    text = json.dumps(value, ensure_ascii=False, default=lambda part: f"<{type(part).__name__}>")
    return text.encode("utf-8", "surrogatepass")


def from_json(content: bytes) -> Any:
    """The value that `to_json` wrote."""
    return json.loads(content.decode("utf-8", "surrogatepass"))


def answer_requests() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that waits
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    size = _memory()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := requests.read(8):
        request = from_json(requests.read(int.from_bytes(header, "little")))
        limits = request["limits"]
        try:
            _limit_memory(size + limits["memory"])
            # Unhandled, so the kernel ends the process, whatever it computes.
            signal.setitimer(signal.ITIMER_REAL, limits["seconds"])
            texts, spans = render_jinja_template(**request["options"])
            content = to_json({"text": texts[0], "answers": spans[0] if spans else []})
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except Exception as error:  # noqa: BLE001  (raised again where it was asked for)
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            content = to_json({"error": reason, "of_template": isinstance(error, TemplateError)})
        signal.setitimer(signal.ITIMER_REAL, 0)
        _limit_memory(None)
        if len(content) > limits["answer"]:
            content = to_json({"length": len(content)})
        write_message(answers, content)


def _memory() -> int:
    """Bytes of address space of this process."""
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _limit_memory(size: int | None) -> None:
    """Limit the address space, or lift the limit, as far as the system's own allows."""
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    answer_requests()
