"""The dashboard's server: Streamlit behind security headers, on the loopback interface."""

import asyncio
import re
import socket
import tomllib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analysis.errors import UserError
from app.console import out
from app.first_paint import FirstPaint
from app.imports import import_pages
from app.widgets.login import Login, check_address, is_loopback, publish, read_login, secrets_files

HERE = Path(__file__).parent
FIRST_PORT, LAST_PORT = 8501, 8600
LOOPBACK = "127.0.0.1"
_FIRST_SECONDS = 0.3  # of a server, which are for its first answer
# Streamlit's page has one script inline, which `_inline_scripts` admits by its hash; components are
# modules from blob: addresses, as are workers. Its tables compile WebAssembly.
_POLICY = (
    "default-src 'self'; script-src 'self' blob: 'wasm-unsafe-eval'{hashes}; worker-src 'self' "
    "blob:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; connect-src 'self'; frame-src 'self' blob:; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'; base-uri 'self'"
)


def _inline_scripts() -> str:
    """The hashes of the scripts inline in Streamlit's page, as sources of a policy."""
    page = (Path(st.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    return "".join(f" 'sha256-{digest}'" for digest in digests)


HEADERS = {
    "Content-Security-Policy": _POLICY.format(hashes=_inline_scripts()),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
CLOSED_PATHS = ("/_stcore/metrics/", "/_stcore/agent/")


class Refusals:
    """Refuses closed paths, and requests from other origins, even on this machine.

    Closed paths expose metrics of use, or let an agent use the dashboard. Streamlit itself checks
    the origin of sockets only, accepts every port of this machine, and asks a server on the
    internet for this machine's address before it refuses another origin.

    Args:
        app: the next application.
        own: the origin of the login, for a proxy that does not forward the port; may be empty.
    """

    def __init__(self, app: ASGIApp, own: str = "") -> None:
        self._app = app
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 or 404, or forward the request."""
        answer = self._app
        if scope["type"] in ("http", "websocket") and self._is_foreign(Headers(scope=scope)):
            answer = PlainTextResponse("Foreign origin", 403)
        elif scope["type"] == "http" and f"{scope['path']}/".startswith(CLOSED_PATHS):
            answer = PlainTextResponse("Not Found", 404)
        await answer(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or origin == self._own:  # pages always send one
            return False
        scheme, _, place = origin.partition("://")
        return scheme not in ("http", "https") or place != headers.get("host")


class SecurityHeaders:
    """Adds HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and add the headers to its response."""

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, stamped if scope["type"] == "http" else send)


def _is_free(port: int, address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_port(wanted: int | None, address: str = LOOPBACK) -> int:
    """`wanted` if it is free; if None, the first free one from 8501."""
    if wanted is not None:
        if not _is_free(wanted, address):
            raise UserError(f"The port {wanted} is in use; name another or leave --port out.")
        return wanted
    for port in range(FIRST_PORT, LAST_PORT + 1):
        if _is_free(port, address):
            return port
    raise UserError(f"No port from {FIRST_PORT} to {LAST_PORT} is free; name one with --port.")


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def server_config(port: int, address: str = LOOPBACK, login: Login | None = None) -> dict[str, Any]:
    """The shipped Streamlit settings, independent of the working directory.

    Requests may name the host of `login`.
    """
    with (HERE / "config.toml").open("rb") as file:
        config = _flatten(tomllib.load(file))
    hosts = [*config["server.allowedHosts"], *((login.host,) if login else ())]
    if is_loopback(address) and address not in hosts:
        hosts.append(address)
    return config | {
        "server.port": port,
        "server.address": address,
        "server.allowedHosts": hosts,
        # Users are identified by the login, never by headers that any client can send.
        "server.trustedUserHeaders": {},
        # Only the files that `read_login` read.
        "secrets.files": [str(file) for file in secrets_files()],
    }


@asynccontextmanager
async def _with_pages(app: st.App) -> AsyncIterator[None]:
    """Import the pages soon after the start: the server answers before they are there."""
    del app
    thread = Thread(target=import_pages, daemon=True)
    asyncio.get_running_loop().call_later(_FIRST_SECONDS, thread.start)
    yield


def run_server(port: int | None, address: str = LOOPBACK) -> None:
    """Serve until stopped; prints the URL first."""
    login = read_login()
    check_address(address, login)
    publish(login)
    chosen = free_port(port, address)
    config = server_config(chosen, address, login)
    # Streamlit checks the host of its sockets only; check pages and files here.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=config["server.allowedHosts"])
    refusals = Middleware(Refusals, own=login.origin if login else "")
    middleware = [Middleware(SecurityHeaders), hosts, refusals, Middleware(FirstPaint)]
    dashboard = st.App(HERE / "pages" / "main.py", lifespan=_with_pages, middleware=middleware)
    host = f"[{address}]" if ":" in address else address
    out.print(f"MoE Prune Studio: http://{host}:{chosen}")
    if login:
        out.print(f"Login for {', '.join(login.users)} at {login.host}")
    dashboard.run(config=config)
