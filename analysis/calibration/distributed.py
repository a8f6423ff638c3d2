"""One run in several processes: what they send each other, and a failure in one stops all.

A launcher (`torchrun`, `accelerate launch`) starts the processes and gives each its rank. Sums are
sent as float64 over the CPU: exact, cheap next to the forwards, and the same on any device.
"""

import atexit
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from analysis.errors import LostProcessError, StatsError
from analysis.machine.launcher import launched_world
from analysis.progress import Progress

Result = TypeVar("Result")
Sums = Mapping[str, Tensor]
# Longer than the slowest process needs to read its weights; a dead process is noticed at once.
PATIENCE = timedelta(minutes=30)


class OtherProcessError(StatsError):
    """Another process of the run failed and reported why."""


class Interrupted(Exception):
    """Another process stopped the work, as `Processes.together` then tells."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of this run."""

    rank: int = 0  # of this process
    world: int = 1  # number of processes

    @property
    def is_first(self) -> bool:
        """Whether this process writes and holds the lock."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block in every process; if it fails in one, all of them stop.

        Raises:
            OtherProcessError: it failed in another process; says in which and why.
            LostProcessError: a process is gone or does not answer.
        """
        if self.world == 1:
            yield
            return
        try:
            with suppress(Interrupted):
                yield
        except Exception as error:
            self._compare(f"{type(error).__name__}: {error}" if not str(error) else str(error))
            raise
        if failed := self._compare(""):
            rank, reason = failed
            raise OtherProcessError(f"Process {rank} of {self.world} failed: {reason}")

    def _compare(self, failure: str) -> tuple[int, str] | None:
        """The first process that failed and its reason, or None."""
        with _noticing_loss():
            failed = torch.tensor([bool(failure)], dtype=torch.int64)
            dist.all_reduce(failed)
            if not failed.item():
                return None
            reasons = [self._broadcast(failure.encode(), rank) for rank in range(self.world)]
        return next((rank, text.decode()) for rank, text in enumerate(reasons) if text)

    def share(self, value: Any) -> Any:
        """The value that the first process passed, sent as JSON."""
        if self.world == 1:
            return value
        with _noticing_loss():
            return json.loads(self._broadcast(json.dumps(value).encode(), 0))

    def first_alone(
        self, task: Generator[Progress, None, Result]
    ) -> Generator[Progress, None, Result | None]:
        """Run a task in the first process while the others wait, step by step; None in those.

        Raises:
            OtherProcessError: it failed in the first process.
            LostProcessError: a process is gone or does not answer.
        """
        result = None
        with self.together():
            if self.is_first:
                try:
                    while True:
                        step = next(task)
                        self.share(True)  # no task is so long that the others give up
                        yield step
                except StopIteration as finished:
                    result = finished.value
                finally:
                    self.share(False)
            else:
                while self.share(None):
                    pass
        return result

    def gather(self, sums: Sums) -> list[dict[str, Tensor]]:
        """The sums of all processes by rank, in the first process; empty in the others."""
        return list(self.incoming(sums))

    def incoming(self, sums: Sums) -> Iterator[dict[str, Tensor]]:
        """As `gather`, one at a time; every process must read it to the end."""
        if not self.is_first:
            self.send(sums, 0)
            return
        yield dict(sums)
        for rank in range(1, self.world):
            yield self.take(rank)

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes, in the order of their ranks; the same in all of them."""
        if self.world == 1:
            return values
        total = folded(self.incoming({"values": values.cpu()}))
        return self.spread(total)["values"].to(values.device)

    def spread(self, sums: Sums) -> dict[str, Tensor]:
        """What the first process passed, in all of them."""
        if self.world == 1:
            return dict(sums)
        with _noticing_loss():
            if not self.is_first:
                return self.take(0)
            data = safetensors.torch.save(dict(sums))
            for rank in range(1, self.world):
                self._send(data, rank)
        return dict(sums)

    def send(self, sums: Sums, rank: int, tag: int = 0) -> None:
        """Send, and wait until another process takes it."""
        with _noticing_loss():
            self._send(safetensors.torch.save(dict(sums)), rank, tag)

    def post(self, sums: Sums, rank: int, tag: int = 0) -> list[Any]:
        """Send without waiting until another process takes it; hold what it returns until then."""
        data = safetensors.torch.save(dict(sums))
        tensors = torch.tensor([len(data)], dtype=torch.int64), _buffer(data)
        with _noticing_loss():
            return [dist.isend(tensor, rank, tag=tag) for tensor in tensors]

    def take(self, rank: int, tag: int = 0) -> dict[str, Tensor]:
        """Wait for what another process sends, in its order."""
        with _noticing_loss():
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, rank, tag=tag)
            buffer = torch.empty(int(size.item()), dtype=torch.uint8)
            dist.recv(buffer, rank, tag=tag)
        sums: dict[str, Tensor] = safetensors.torch.load(buffer.numpy().tobytes())
        return sums

    def _broadcast(self, data: bytes, source: int) -> bytes:
        size = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(size, source)
        if not size.item():
            return b""
        buffer = _buffer(data) if self.rank == source else _buffer(bytes(int(size.item())))
        dist.broadcast(buffer, source)
        return buffer.numpy().tobytes()

    def _send(self, data: bytes, rank: int, tag: int = 0) -> None:
        dist.send(torch.tensor([len(data)], dtype=torch.int64), rank, tag=tag)
        dist.send(_buffer(data), rank, tag=tag)


def folded(parts: Iterable[Sums]) -> dict[str, Tensor]:
    """The sum of all parts in their order, each dropped once it is added; empty if there are none.

    Parts may be large: as the Gram matrices of a repair.
    """
    remaining = iter(parts)
    total = {name: tensor.clone() for name, tensor in next(remaining, {}).items()}
    for part in remaining:
        for name, tensor in part.items():
            total[name] += tensor
    return total


def _buffer(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@contextmanager
def _noticing_loss() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # gloo's own message is about sockets and names no rank.
        raise LostProcessError(
            "Another process of this run ended or did not answer, so this one stops too. Rerun the "
            "same command to resume."
        ) from error


def join() -> Processes:
    """The processes that a launcher started; the first call joins them."""
    if launched_world() == 1:
        return Processes()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _noticing_loss():
            dist.init_process_group(backend, timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), dist.get_world_size())
