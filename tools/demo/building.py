"""Builds steps in processes of their own, those first that others need."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from analysis.errors import UserError
from analysis.files.durable import write_durably
from tools.demo.orders import Key, Step
from tools.demo.work import Work, step_digest, worker_environment

_REFRESH = 0.5  # seconds
ERROR = "error: "  # before the last line of a step that a person can mend


class StepError(UserError):
    """A step that failed."""


def needed_steps(steps: Sequence[Step]) -> dict[str, list[str]]:
    """Step -> the steps that make what it reads."""
    made = {step.name: step.keys().keys() for step in steps}
    read = {step.name: step.needs() for step in steps}
    return {name: [source for source in made if read[name] & made[source]] for name in made}


def with_needed(steps: Sequence[Step], names: Iterable[str]) -> list[Step]:
    """The steps of these names and all that they need, in the order of the table."""
    needs, wanted = needed_steps(steps), list(names)
    for name in wanted:  # which grows
        wanted += [need for need in needs[name] if need not in wanted]
    return [step for step in steps if step.name in wanted]


@dataclass(frozen=True)
class Build:
    """Steps to make in a work folder; all that they need is among them."""

    work: Work
    steps: Sequence[Step]
    inputs: str  # digest of the model and the corpora
    keys: frozenset[Key] = frozenset()  # the records asked for; empty: all of the steps
    _digests: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _needs(self) -> dict[str, list[str]]:
        return needed_steps(self.steps)

    def digest(self, step: Step) -> str:
        """A digest of the step, and of all that it is made from."""
        if step.name not in self._digests:
            by_name = {step.name: step for step in self.steps}
            needs = [self.digest(by_name[name]) for name in self._needs[step.name]]
            self._digests[step.name] = step_digest(step, "".join((self.inputs, *needs)))
        return self._digests[step.name]

    def is_done(self, step: Step) -> bool:
        """Whether the step was made of this."""
        return self.work.is_done(step, self.digest(step))

    def run(self, processes: int = 1) -> None:
        """Make every step that is not done; ends with the first that fails."""
        if self.keys:
            write_durably(self._keys_file, json.dumps(sorted(self.keys)).encode())
        needs, running = self._needs, dict[str, _Running]()
        waiting = {step.name: step for step in self.steps if not self.is_done(step)}
        self._begin(list(waiting.values()))
        try:
            while waiting or running:
                ready = [n for n in waiting if not {*needs[n]} & {*waiting, *running}]
                for name in ready[: processes - len(running)]:
                    running[name] = self._start(waiting.pop(name))
                time.sleep(_REFRESH)
                for name in [name for name, process in running.items() if process.has_ended]:
                    running.pop(name).check()
                    _say(f"{name}: made", ends=True)
                total = len(self.steps)
                done = total - len(waiting) - len(running)
                _say(f"{done} of {total} steps; {', '.join(map(str, running.values()))}")
        finally:
            for process in running.values():
                process.stop()

    def _begin(self, steps: Sequence[Step]) -> None:
        """Note what the steps are made of; if it is something else, what they had made goes first.

        All at once, since rows of the table are taken out, where steps that run would write.
        """
        with ExitStack() as locks:
            if any(self.work.is_other(step, self.digest(step)) for step in steps):
                for step in self.steps:  # that of a tool that was killed may still be at it
                    locks.enter_context(self.work.lock(step))
            for step in steps:
                self.work.begin(step, self.digest(step))

    @property
    def _keys_file(self) -> Path:
        return self.work.folder / "keys.json"

    def _start(self, step: Step) -> "_Running":
        words = [str(self.work.folder), step.name, self.digest(step)]
        words += [str(self._keys_file)] * bool(self.keys)
        command = [sys.executable, "-m", "tools.demo.worker", *words]
        log = self.work.folder / f"{step.name}.log"
        with log.open("w") as written:
            process = subprocess.Popen(  # noqa: S603 (this program itself)
                command,
                cwd=self.work.tree,
                env=worker_environment(self.work.tree),
                stdout=written,
                stderr=subprocess.STDOUT,
            )
        return _Running(step.name, process, log)


@dataclass(frozen=True)
class _Running:
    """A step that is being made."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path  # its output, a line of progress each time

    def __str__(self) -> str:
        share, _, phase = (self._latest(1) or [""])[0].partition(" ")
        return f"{self.name} {share} {phase}"

    def _latest(self, count: int) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-count:]

    @property
    def has_ended(self) -> bool:
        """Whether the process is over."""
        return self.process.poll() is not None

    def check(self) -> None:
        """Raise a `StepError` if the step failed."""
        if not self.process.returncode:
            return
        lines = self._latest(20)
        if lines and lines[-1].startswith(ERROR):
            lines = [lines[-1].removeprefix(ERROR)]
        raise StepError("\n".join((f"The step {self.name} failed:", *lines)))

    def stop(self) -> None:
        """End the process; what it has measured stays."""
        self.process.terminate()
        self.process.wait()


def _say(words: str, *, ends: bool = False) -> None:
    """A line of progress in place of the last one; off a terminal, only those that end."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words[:200]}" + "\n" * ends)
        sys.stderr.flush()
    elif ends:
        sys.stderr.write(f"{words}\n")
