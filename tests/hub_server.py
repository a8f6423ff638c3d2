"""A hub on this machine: a dataset and a model of one name, as `huggingface_hub` asks for them."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "a" * 40
OLD_COMMIT = "b" * 40
ROWS = [{"content": f"the cat number {number} sat on the mat"} for number in range(200)]
FILES = {
    "data/train-0.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "config.json": b"{}",
    "README.md": b"---\nlicense: mit\n---\n",
}
_REFUSED = {"someone/gated": (403, "GatedRepo"), "someone/gone": (404, "RepoNotFound")}
_INFO = "/api/datasets/someone/cats"
_RESOLVE = "/datasets/someone/cats/resolve/"


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Mapping[str, bytes] = FILES

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), Content_Type="application/json")

    def _file(self, name: str) -> None:
        if name not in self.files:
            self._send(404, b"{}", X_Error_Code="EntryNotFound")
            return
        data = self.files[name]
        about = {"ETag": f'"{_oid(data)}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None or self.command == "HEAD":
            self._send(200, data, **about)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        place = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._send(206, part, Content_Range=place, **about)

    def _tree(self, folder: str) -> None:
        below = [name for name in self.files if name.startswith(folder)]
        entries = [
            {
                "type": "file",
                "path": name,
                "size": len(self.files[name]),
                "oid": _oid(self.files[name]),
            }
            for name in below
        ]
        self._json(
            entries if folder else [*entries, {"type": "directory", "path": "data", "oid": ""}]
        )

    def _answer(self) -> None:
        path = self.path.partition("?")[0].replace("/api/models/", "/api/datasets/")
        if path.startswith("/someone/"):
            path = f"/datasets{path}"
        rest = path.removeprefix(_INFO)
        if path.startswith(_RESOLVE):
            self._file(path.removeprefix(_RESOLVE).partition("/")[2])
        elif path.startswith(_INFO) and rest.startswith("/tree/"):
            self._tree(rest.removeprefix("/tree/").partition("/")[2])
        elif rest == "/revision/never":
            self._send(404, b"{}", X_Error_Code="RevisionNotFound")
        elif path.startswith(_INFO):
            commit = OLD_COMMIT if rest == "/revision/v1" else COMMIT
            siblings = [{"rfilename": name} for name in self.files]
            self._json({"id": "someone/cats", "sha": commit, "siblings": siblings, "tags": []})
        else:
            name = "/".join(path.partition("/datasets/")[2].split("/")[:2])
            status, code = _REFUSED.get(name, (404, "RepoNotFound"))
            self._send(status, b"{}", X_Error_Code=code)

    do_GET = do_HEAD = _answer


@contextmanager
def hub(files: Mapping[str, bytes] = FILES) -> Iterator[str]:
    """The address of a running hub."""
    handler = type("Handler", (_Hub,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    poll = {"poll_interval": 0.05}
    thread = threading.Thread(target=server.serve_forever, kwargs=poll, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def printed(program: str, *words: str, home: Path, seconds: float = 120, **network: str) -> str:
    """What a program prints in a process of its own: the hub's client reads its place at import."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=known | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(home)} | network,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr or re.search("Fetching|Parse safetensors", done.stderr)
    return done.stdout
