"""Login for dashboards on a network, through Streamlit's OpenID Connect."""

import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from analysis.errors import UserError
from analysis.machine.extras import has_extra, install_line
from app.literal import literal

_USERS_VARIABLE = "MOEPRUNE_USERS"
_NAME = "MoE Prune Studio"
_KEYS = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
_CALLBACK = "/oauth2callback"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SHORTEST_SECRET = 32
_USER = re.compile(r"[^@,\s]*@[^@,\s]+")
_OTHERS = stat.S_IRWXO | stat.S_IWGRP
_WHERE = "in .streamlit/secrets.toml; docs/guide/security.md shows one"


@dataclass(frozen=True, slots=True)
class Login:
    """A login that every user needs."""

    # allowed e-mail addresses, such as `one@example.org`, or `@example.org` for a domain
    users: tuple[str, ...]
    origin: str = ""  # public URL of the dashboard, such as `https://studio.example.org`

    @property
    def host(self) -> str:
        """Host name of the dashboard's URL."""
        return urlsplit(self.origin).hostname or ""

    @property
    def is_encrypted(self) -> bool:
        """Whether the URL is https."""
        return urlsplit(self.origin).scheme == "https"

    def admits(self, claims: Mapping[str, Any]) -> bool:
        """Whether the identity from the provider is an allowed user.

        Args:
            claims: of the identity token; unverified addresses do not count.
        """
        address = str(claims.get("email") or "").casefold()
        if str(claims.get("email_verified", True)).casefold() != "true" or "@" not in address:
            return False
        domain = "@" + address.rpartition("@")[2]
        return any(user.casefold() in (address, domain) for user in self.users)


def login_of(secrets: Mapping[str, Any]) -> Login | None:
    """The login that the secrets configure; None without a section `moeprune`.

    A section `auth` alone does not count: several programs may share a secrets file.
    """
    ours = secrets.get("moeprune")
    if ours is None:
        return None
    users = ours.get("users") if isinstance(ours, Mapping) else None
    # An address or a domain, without the characters that separate a list.
    if (
        not isinstance(users, list | tuple)
        or not users
        or not all(isinstance(user, str) and _USER.fullmatch(user) for user in users)
    ):
        raise UserError(
            "[moeprune] needs users, a list of addresses that may log in, such as "
            f'["one@example.org", "@example.com"], {_WHERE}.'
        )
    section = secrets.get("auth")
    auth = section if isinstance(section, Mapping) else {}
    if missing := [key for key in _KEYS if not isinstance(auth.get(key), str) or not auth[key]]:
        raise UserError(f"[auth] lacks {', '.join(missing)} {_WHERE}.")
    if len(auth["cookie_secret"]) < _SHORTEST_SECRET:
        raise UserError(
            f"The cookie_secret of [auth] has fewer than {_SHORTEST_SECRET} characters; make one "
            'with `python -c "import secrets; print(secrets.token_hex(32))"`.'
        )
    return Login(tuple(users), _origin_of(auth["redirect_uri"]))


def _origin_of(redirect_uri: str) -> str:
    """The origin of the dashboard's URL, if written as browsers write it.

    Streamlit compares its own form of the URL with the browser's, character by character, and
    drops every login if they differ.
    """
    try:
        place = urlsplit(redirect_uri)
        host, port = place.hostname, place.port
    except ValueError as error:  # such as a port that is not a number
        raise _no_address(redirect_uri) from error
    if not host or place.path != _CALLBACK:
        raise _no_address(redirect_uri)
    host_text = f"[{host}]" if ":" in host else host
    is_default = port is None or port == _DEFAULT_PORTS.get(place.scheme)
    origin = f"{place.scheme}://{host_text}" + ("" if is_default else f":{port}")
    if origin != f"{place.scheme}://{place.netloc}":
        raise UserError(
            f"The redirect_uri of [auth] is {redirect_uri!r}, which browsers write differently, so "
            f"every login would be dropped; use {origin}{_CALLBACK}, here and at the provider."
        )
    return origin


def _no_address(redirect_uri: str) -> UserError:
    return UserError(
        f"The redirect_uri of [auth] is {redirect_uri!r}; it must be the dashboard's URL and then "
        f"{_CALLBACK}, such as https://studio.example.org{_CALLBACK}."
    )


def secrets_files() -> tuple[Path, ...]:
    """Secrets files; sections of later files take precedence."""
    return tuple(folder / ".streamlit" / "secrets.toml" for folder in (Path.home(), Path.cwd()))


def read_login() -> Login | None:
    """The login in this server's secrets; None if they configure none.

    Not read by `st.secrets`, which would parse Streamlit's settings before the
    server gives its own.
    """
    files = [file for file in secrets_files() if file.is_file()]
    secrets: dict[str, Any] = {}
    for file in files:
        secrets |= _secrets_in(file)
    login = login_of(secrets)
    if login is None:
        return None
    for file in files:
        # Group-readable is allowed: containers pass secrets to non-root users this way.
        if file.stat().st_mode & _OTHERS:
            raise UserError(
                f"Other users of this machine can read or change {file}, and log in as anybody "
                f"with its secrets; run chmod 600 {file}"
            )
    if not has_extra("login"):
        raise UserError(f"The login needs authlib: {install_line('login')}.")
    return login


def _secrets_in(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise UserError(f"{file} cannot be read: it is nested too deeply.") from error


def is_loopback(address: str) -> bool:
    """Whether `address` accepts connections from this machine only.

    Raises:
        UserError: not a numeric address; the caller may resolve a name.
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError as error:
        raise UserError(f"{address!r} is not a numeric address, such as 127.0.0.1.") from error


def check_address(address: str, login: Login | None) -> None:
    """Refuse to listen on a network without a login over https."""
    if is_loopback(address):
        return
    if login is None:
        raise UserError(
            f"Anyone who can reach {address} could read and export your models, so it needs a "
            "login: add [moeprune] and [auth] to .streamlit/secrets.toml (docs/guide/security.md), "
            "or stay on 127.0.0.1 and forward the port: ssh -L 8501:127.0.0.1:8501 HOST."
        )
    if not login.is_encrypted:
        raise UserError(
            f"A login over http to {address} can be intercepted: put a proxy with TLS in front and "
            "use https:// in the redirect_uri of [auth]."
        )


def publish(login: Login | None) -> None:
    """Pass the login to the pages, which never reread the file."""
    if login is None:
        os.environ.pop(_USERS_VARIABLE, None)
    else:
        os.environ[_USERS_VARIABLE] = ",".join(login.users)


def require_login() -> None:
    """Stop the page for users who are not logged in, if a login is configured."""
    if _USERS_VARIABLE not in os.environ:
        _stop_if_open()
        return
    if not getattr(st.user, "is_logged_in", False):
        _name_page()
        st.title(_NAME)
        st.text("Log in to use this dashboard.")
        st.button("Log in", type="primary", on_click=st.login)
        st.stop()
    if not Login(tuple(os.environ[_USERS_VARIABLE].split(","))).admits(st.user.to_dict()):
        _name_page()
        st.title(_NAME)
        who = literal(str(st.user.to_dict().get("email") or "Your account"))
        st.error(f"{who} has no access to this dashboard.", icon=":material/block:")
        st.button("Log out", on_click=st.logout)
        st.stop()


def _name_page() -> None:
    """Title the window, which a page of the dashboard does by itself."""
    st.set_page_config(page_title=_NAME)


def _stop_if_open() -> None:
    """Stop if `streamlit run` listens on a network without a login, as `moeprune app` does."""
    address = str(st.get_option("server.address") or "0.0.0.0")  # noqa: S104  (Streamlit's own)
    try:
        is_private = address == "localhost" or is_loopback(address)
    except UserError:  # another name, which may resolve to any address
        is_private = False
    if not is_private:
        _name_page()
        st.error(
            "This server listens on the network without a login. Start it with "
            "`moeprune app`, or with `--server.address 127.0.0.1`.",
            icon=":material/block:",
        )
        st.stop()


def log_out_part() -> None:
    """User name and logout button; nothing without a login."""
    if _USERS_VARIABLE in os.environ:
        st.text(f"Logged in as {st.user.to_dict().get('email')}")
        st.button("Log out", on_click=st.logout)
