"""Names of runs and records: digests, readable ids, the time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def digest_of(parts: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON, as 64 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_name(*words: str, digest: str) -> str:
    """Directory name: readable safe words and 8 hex digits of the digest."""
    text = "-".join(words).lower()
    safe = "".join(char if char.isalnum() or char in "-_+." else "-" for char in text)
    return f"{safe.strip('.-')[:80]}-{digest[:8]}"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
