"""What the runners share; runs in an engine's environment and knows nothing of this project.

    python run_ENGINE.py ASKED.json ANSWERS.json

ASKED.json is a list of {"checkpoint": folder, "prompts": lists of token ids, "tokens": how many to
continue with, "vocabulary": size}. ANSWERS.json is {"versions": {package: version}, "answers":
[...]}, in the same order: {"continuations": [{"tokens": ids, "log_probabilities": rows over the
vocabulary, one for each token}]}, or {"failed": why}, with "unknown": true where the engine has no
class for the architecture. With "no_mtp": true its converter was told of no prediction heads.
"""

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

SECONDS = 240  # for one checkpoint


class UnknownArchitecture(Exception):
    """The engine has no class for it."""


def answer_all(
    named: tuple[str, ...],
    check: Callable[[dict], dict | None],
    answer: Callable[[dict], list],
    telling: str = "",
) -> None:
    """Answer every question in a process of its own: engines abort instead of raising.

    `check` takes config.json, raises UnknownArchitecture, and may return what the answer tells too.
    `telling` is a pattern of the line of the log that says why, where errors do not.
    """
    asked_file, answers_file = map(Path, sys.argv[1:])
    answers = []
    for asked in json.loads(asked_file.read_text()):
        config = json.loads((Path(asked["checkpoint"]) / "config.json").read_text())
        try:
            told = check(config) or {}
        except UnknownArchitecture as error:
            answers.append({"failed": str(error), "unknown": True})
        else:
            answers.append(_alone(answer, asked, answers_file, telling) | told)
    versions = {name: version(name) for name in named}
    answers_file.write_text(json.dumps({"versions": versions, "answers": answers}))


def _alone(answer, asked, answers_file, telling):
    log, said = answers_file.with_suffix(".log"), answers_file.with_suffix(".one")
    said.unlink(missing_ok=True)
    if (child := os.fork()) == 0:
        _child(answer, asked, log, said)
    ended = _wait(child)
    if said.exists():
        found = json.loads(said.read_text())
        if "failed" not in found:
            return found
    else:
        found = {"failed": ended}
    told = [
        line for line in log.read_text(errors="replace").splitlines() if re.search(telling, line)
    ]
    if telling and told:
        found["failed"] = told[0]
    found["failed"] = _tidy(found["failed"], asked["checkpoint"])
    return found


def _child(answer, asked, log, said):
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        found = {"continuations": answer(asked)}
    except BaseException as error:  # noqa: BLE001 - whatever an engine raises is its answer
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"in {last.name} of {Path(last.filename).name}"
        found = {"failed": f"{type(error).__name__}: {str(error).strip() or where}"}
    said.with_suffix(".writing").write_text(json.dumps(found))
    said.with_suffix(".writing").rename(said)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _wait(child):
    """How the process ended, if it said nothing."""
    for _ in range(SECONDS * 10):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                return f"the process ended by {signal.Signals(os.WTERMSIG(status)).name}"
            return f"the process ended with {os.WEXITSTATUS(status)}"
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"no answer within {SECONDS} s"


def _tidy(text, checkpoint):
    """One short line without places and times of this run."""
    text = text.replace(checkpoint, "CHECKPOINT")
    text = re.sub(r"^[\d.]+ E ", "", text)
    text = re.sub(r"/\S*/(\S+)", r"\1", text)
    return re.sub(r"\s+", " ", text)[:240]
