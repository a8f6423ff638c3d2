"""An OpenID provider on the loopback interface: discovery, codes for tokens, and tokens that lie.

It keeps the rules that a real one does, so a client that breaks them gets no token: the redirect
address is the registered one, a code is good for once, the client knows its secret, and the
verifier fits the challenge (PKCE). What a token says about somebody is an `Account`.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT = "moe-prune-studio"
CLIENT_SECRET = "known-to-the-client-and-the-provider"  # noqa: S105
LIFETIME_SECONDS = 300


@dataclass(frozen=True)
class Account:
    """Somebody whom the provider offers to log in."""

    name: str  # of the link on the provider's page
    email: str  # the address that the provider vouches for
    # names and values of the token, over the right ones; None leaves one out
    claims: tuple[tuple[str, Any], ...] = ()
    # `right`, by an `unknown key` under its name, with the client's `secret`, or `none`
    signature: str = "right"
    # what comes back with the code, where that is not what the client sent
    state: str | None = None


class Provider:
    """Accounts, codes and keys; its pages are below `issuer`."""

    def __init__(self, accounts: tuple[Account, ...]) -> None:
        self.accounts = {account.name: account for account in accounts}
        self.refusals: list[str] = []
        self.logged_out: list[str] = []
        self.issuer = ""
        self.redirect_uri = ""
        self._codes: dict[str, tuple[Account, dict[str, str]]] = {}
        self._key = RSAKey.generate_key(2048, {"kid": "first"})
        self._unknown_key = RSAKey.generate_key(2048, {"kid": "first"})

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "end_session_endpoint": f"{self.issuer}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def keys(self) -> dict[str, Any]:
        return {"keys": [self._key.as_dict(private=False, use="sig", alg="RS256")]}

    def page(self, asked: dict[str, str]) -> str:
        """A link for each account, as a provider shows them to choose from."""
        links = (
            f'<p><a href="/approve?{escape(urlencode({**asked, "account": name}))}">'
            f"{escape(name)}</a></p>"
            for name in self.accounts
        )
        return f'<link rel="icon" href="data:,"><h1>Who are you?</h1>{"".join(links)}'

    def approve(self, asked: dict[str, str]) -> str | None:
        """Where a browser goes with a code; None where the client is not the registered one."""
        if (asked.get("client_id"), asked.get("redirect_uri")) != (CLIENT, self.redirect_uri):
            return None
        account = self.accounts[asked["account"]]
        code = secrets.token_urlsafe(16)
        self._codes[code] = (account, asked)
        state = asked.get("state", "") if account.state is None else account.state
        return f"{self.redirect_uri}?{urlencode({'code': code, 'state': state})}"

    def token(self, sent: dict[str, str], credentials: str | None) -> dict[str, Any] | None:
        """The tokens of a code; None, and a line in `refusals`, where a rule is broken."""
        account, asked = self._codes.pop(sent.get("code", ""), (None, {}))
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        pair = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        broken = [
            rule
            for rule, is_kept in {
                "code": account is not None,
                "client": credentials == f"Basic {pair}",
                "redirect_uri": sent.get("redirect_uri") == asked.get("redirect_uri"),
                "challenge": _base64(digest) == asked.get("code_challenge"),
            }.items()
            if not is_kept
        ]
        if broken or account is None:
            self.refusals.append(", ".join(broken))
            return None
        return {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "expires_in": LIFETIME_SECONDS,
            "id_token": self._id_token(account, asked),
        }

    def _id_token(self, account: Account, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": account.name,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
            "nonce": asked.get("nonce"),
            "email": account.email,
            "email_verified": True,
            **dict(account.claims),
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        if account.signature == "none":
            return ".".join((_part({"alg": "none"}), _part(claims), ""))
        if account.signature == "secret":
            return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT_SECRET))
        key = self._key if account.signature == "right" else self._unknown_key
        return jwt.encode({"alg": "RS256", "kid": "first"}, claims, key)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _single(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


class _Pages(BaseHTTPRequestHandler):
    """The provider by HTTP."""

    provider: Provider

    def do_GET(self) -> None:
        path, asked = urlsplit(self.path).path, _single(urlsplit(self.path).query)
        if path == "/.well-known/openid-configuration":
            self._answer(200, json.dumps(self.provider.metadata()), "application/json")
        elif path == "/keys":
            self._answer(200, json.dumps(self.provider.keys()), "application/json")
        elif path == "/authorize":
            self._answer(200, self.provider.page(asked), "text/html")
        elif path == "/approve" and (place := self.provider.approve(asked)):
            self._answer(302, "", "text/plain", Location=place)
        elif path == "/logout":
            self.provider.logged_out.append(asked.get("id_token_hint", ""))
            place = asked["post_logout_redirect_uri"]
            self._answer(302, "", "text/plain", Location=place)
        else:
            self._answer(404, "", "text/plain")

    def do_POST(self) -> None:
        sent = _single(self.rfile.read(int(self.headers["Content-Length"])).decode())
        tokens = self.provider.token(sent, self.headers["Authorization"])
        said = tokens or {"error": "invalid_grant"}
        self._answer(200 if tokens else 400, json.dumps(said), "application/json")

    def log_message(self, *_: object) -> None:
        """Nothing: the output is that of the tests."""

    def _answer(self, status: int, text: str, kind: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def provided(accounts: tuple[Account, ...]) -> Iterator[Provider]:
    """A provider that answers until the block ends; its `redirect_uri` is to be set."""
    provider = Provider(accounts)
    pages = type("Pages", (_Pages,), {"provider": provider})
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
