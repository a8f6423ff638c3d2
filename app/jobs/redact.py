"""Redaction: access tokens never reach the job table, a log on disk or the screen."""

import io
import re
import threading
from typing import TextIO

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
# Overlap kept between pieces; longer than any token.
_BEGUN = re.compile(r"(h|hf|hf_[A-Za-z0-9]{0,200})\Z")


def holds_token(text: str) -> bool:
    """Whether something in `text` looks like a Hugging Face token."""
    return _TOKEN.search(text) is not None


def redact(text: str) -> str:
    """`text` with everything that looks like a Hugging Face token masked."""
    return _TOKEN.sub("hf_[redacted]", text)


class RedactedStream(io.TextIOBase):
    """Text stream that redacts and forwards to another.

    Forwards whole lines only, because a token may arrive in two writes; the rest on close.
    Lines over 64 KiB are split into pieces, never within a token.
    """

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._pending = ""
        # Tasks may log from several threads.
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the stub
        """Encoding of the underlying stream."""
        return self._target.encoding

    def writable(self) -> bool:
        """Always true."""
        return True

    def fileno(self) -> int:
        """Descriptor of the underlying stream, for children, whose output is not redacted."""
        return self._target.fileno()

    def write(self, text: str) -> int:
        """Buffer `text` and forward completed lines."""
        with self._lock:
            self._pending += text
            ends = [match.end() for match in re.finditer(r"[\n\r]", self._pending)]
            if ends:
                self._emit(ends[-1])
            elif len(self._pending) > 64 * 1024:
                # Up to the first place where an incomplete token may start.
                begun = _BEGUN.search(self._pending, len(self._pending) - 256)
                self._emit(begun.start() if begun else len(self._pending))
        return len(text)

    def close(self) -> None:
        """Forward the rest; the underlying stream stays open."""
        if not self.closed:
            with self._lock:
                self._emit(len(self._pending))
        super().close()

    def _emit(self, end: int) -> None:
        self._target.write(redact(self._pending[:end]))
        self._target.flush()
        self._pending = self._pending[end:]
