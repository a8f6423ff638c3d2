"""The login: what secrets must say, where the server listens, and what a page shows to whom."""

import os
import re
import socket
import subprocess
import sys

import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

from analysis.errors import UserError
from app.server import HERE, LOOPBACK, server_config
from app.widgets.login import Login, check_address, login_of, read_login

AUTH = {
    "redirect_uri": "https://studio.example.org/oauth2callback",
    "cookie_secret": "0123456789abcdef" * 2,
    "client_id": "studio",
    "client_secret": "of the provider",
    "server_metadata_url": "https://login.example.org/.well-known/openid-configuration",
}
USERS = ["one@else.example", "@Example.org"]


def test_secrets_make_a_login_and_those_of_other_programs_none():
    login = login_of({"auth": AUTH, "moeprune": {"users": USERS}})
    assert login == Login(tuple(USERS), "https://studio.example.org")
    for secrets in ({}, {"auth": AUTH}, {"other": {"users": USERS}}):
        assert login_of(secrets) is None


@pytest.mark.parametrize(
    ("auth", "ours", "said"),
    [
        (AUTH, {}, "needs users"),
        (AUTH, {"users": []}, "needs users"),
        (AUTH, {"users": "@example.org"}, "needs users"),
        (AUTH, {"users": ["example.org"]}, "needs users"),
        (AUTH, {"users": ["one@example.org,@else.example"]}, "needs users"),
        (AUTH, "users", "needs users"),
        ({}, {"users": USERS}, "lacks redirect_uri, cookie_secret, client_id"),
        ({**AUTH, "client_id": ""}, {"users": USERS}, r"\[auth\] lacks client_id in"),
        ({**AUTH, "cookie_secret": "short"}, {"users": USERS}, "fewer than 32 characters"),
        *(
            (
                {**AUTH, "redirect_uri": address},
                {"users": USERS},
                re.escape(f"{address!r}; it must"),
            )
            for address in (
                "studio.example.org",
                "https://a.example/x",
                "https://a.example:x/oauth2callback",
                "https://[a/oauth2callback",
            )
        ),
    ],
)
def test_secrets_that_would_let_in_nobody_or_anybody_are_refused(auth, ours, said):
    with pytest.raises(UserError, match=said):
        login_of({"auth": auth, "moeprune": ours})


@pytest.mark.parametrize(
    ("place", "origin"),
    [
        ("https://Studio.Example.org", "https://studio.example.org"),
        ("https://studio.example.org:443", "https://studio.example.org"),
        ("https://studio.example.org:", "https://studio.example.org"),
        ("https://one@studio.example.org", "https://studio.example.org"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_an_address_that_browsers_write_otherwise_is_refused(place, origin):
    """Their Origin would be another one: sockets get 403, and Streamlit forgets who logged in."""

    def login_at(address):
        auth = AUTH | {"redirect_uri": f"{address}/oauth2callback"}
        return login_of({"auth": auth, "moeprune": {"users": USERS}})

    with pytest.raises(UserError, match=re.escape(f"use {origin}/oauth2callback, here and")):
        login_at(place)
    assert login_at(origin).origin == origin
    assert login_at(f"{origin}:8501").origin == f"{origin}:8501"


def write_secrets(folder, text, mode=0o600):
    file = folder / ".streamlit" / "secrets.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


KEYS = "".join(f"{key} = {value!r}\n" for key, value in AUTH.items())
OURS = "[moeprune]\nusers = ['@example.org']\n"


def test_secrets_that_others_can_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = write_secrets(tmp_path, f"[auth]\n{KEYS}{OURS}")
    for mode in (0o600, 0o400, 0o440, 0o640):
        file.chmod(mode)
        assert read_login() is not None
    for mode in (0o644, 0o604, 0o660, 0o602, 0o601):
        file.chmod(mode)
        with pytest.raises(UserError, match=f"chmod 600 {file}"):
            read_login()
    # Secrets of other programs are theirs to keep.
    write_secrets(tmp_path, f"[auth]\n{KEYS}", 0o644)
    assert read_login() is None


def test_secrets_lie_where_streamlit_looks_for_them(tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    monkeypatch.setitem(sys.modules, "authlib", None)
    assert read_login() is None
    write_secrets(home, f"[auth]\n{KEYS}")
    assert read_login() is None
    ours = write_secrets(here, OURS)
    with pytest.raises(UserError, match="needs authlib"):
        read_login()
    # Streamlit is told the same files: it looks beside its program too, where these do not lie.
    asked = [str(folder / ".streamlit" / "secrets.toml") for folder in (home, here)]
    assert server_config(1)["secrets.files"] == asked
    ours.write_text("[moeprune")
    with pytest.raises(UserError, match=r"secrets.toml is not valid TOML: Expected"):
        read_login()
    ours.write_text("users = " + 20_000 * "[")
    with pytest.raises(UserError, match=r"secrets.toml cannot be read: it is nested too"):
        read_login()


STRANGERS = ("two@else.example", "me@example.org.evil.example", "me@evil-example.org")

STRANGERS += ("@example.org@evil.example", "example.org", "")


@pytest.mark.parametrize(
    ("claims", "is_admitted"),
    [
        ({"email": "one@else.example"}, True),
        ({"email": "ONE@else.example", "email_verified": True}, True),
        ({"email": "any.body@example.org", "email_verified": "true"}, True),
        ({"email": "any.body@example.org", "email_verified": False}, False),
        ({"email": "any.body@example.org", "email_verified": "false"}, False),
        ({"name": "one@else.example"}, False),
        *(({"email": email}, False) for email in STRANGERS),
    ],
)
def test_only_the_users_are_admitted(claims, is_admitted):
    assert Login(tuple(USERS)).admits(claims) == is_admitted


def test_beyond_this_machine_only_behind_a_login_by_https():
    safe = Login(tuple(USERS), "https://studio.example.org")
    check_address(LOOPBACK, None)
    check_address("::1", None)
    check_address("0.0.0.0", safe)  # noqa: S104
    for address in ("0.0.0.0", "::", "192.0.2.1"):  # noqa: S104
        with pytest.raises(UserError, match="needs a login"):
            check_address(address, None)
    with pytest.raises(UserError, match="can be intercepted"):
        check_address("192.0.2.1", Login(tuple(USERS), "http://studio.example.org"))
    with pytest.raises(UserError, match="'studio' is not a numeric address"):
        check_address("studio", safe)


def test_the_host_of_the_login_is_one_to_ask_for_pages_under():
    login = Login(tuple(USERS), "https://studio.example.org")
    plain, opened = server_config(1), server_config(1, "0.0.0.0", login)  # noqa: S104
    assert plain["server.address"] == LOOPBACK
    assert plain["server.allowedHosts"] == ["localhost", LOOPBACK]
    assert opened["server.allowedHosts"] == ["localhost", LOOPBACK, "studio.example.org"]
    differing = {key for key in opened if opened[key] != plain[key]}
    assert differing == {"server.address", "server.allowedHosts"}
    for address in ("127.0.0.2", "::1"):  # other addresses of this machine
        assert server_config(1, address)["server.allowedHosts"] == ["localhost", LOOPBACK, address]


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [
        *((address, True) for address in (LOOPBACK, "localhost", "::1")),
        *((address, False) for address in ("0.0.0.0", None, "studio.example.org")),  # noqa: S104
    ],
)
def test_streamlits_own_command_shows_nothing_to_other_machines(monkeypatch, address, is_shown):
    """`streamlit run` in a clone asks nobody who he is, so it has to stay on this machine."""
    monkeypatch.delenv("MOEPRUNE_USERS", raising=False)
    before = config.get_option("server.address")
    config.set_option("server.address", address)
    try:
        page = AppTest.from_file(str(HERE / "pages" / "main.py"), default_timeout=60).run()
    finally:
        config.set_option("server.address", before)
    assert not page.exception
    if is_shown:
        assert not page.error
        assert page.title[0].value.startswith("Half of the experts gone")
    else:
        assert "listens on the network" in page.error[0].value
        assert (len(page.title), len(page.sidebar), len(page.button)) == (0, 0, 0)


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setenv("MOEPRUNE_USERS", "one@else.example,@example.org")

    def run(**claims):
        page = AppTest.from_file(str(HERE / "pages" / "main.py"), default_timeout=60)
        page.user = claims
        return page.run()

    return run


def test_who_has_not_logged_in_sees_a_button_and_nothing_else(dashboard):
    page = dashboard(is_logged_in=False)
    assert not page.exception
    assert [button.label for button in page.button] == ["Log in"]
    assert len(page.sidebar) == 0
    assert [title.value for title in page.title] == ["MoE Prune Studio"]


def test_a_stranger_sees_the_way_out_and_nothing_else(dashboard):
    page = dashboard(is_logged_in=True, email="two@else.example")
    assert "two@else.example has no access to this dashboard" in page.error[0].value
    assert [button.label for button in page.button] == ["Log out"]
    assert len(page.sidebar) == 0


def test_a_user_sees_the_dashboard_and_the_way_out(dashboard):
    page = dashboard(is_logged_in=True, email="any.body@example.org")
    assert not page.exception
    assert page.title[0].value.startswith("Half of the experts gone")
    assert "Logged in as any.body@example.org" in [text.value for text in page.sidebar.text]


def test_the_command_listens_to_nobody_else_without_a_login(tmp_path):
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    words = ["app", "--address", "0.0.0.0", "--port", str(port)]  # noqa: S104
    ended = subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    assert "Anyone who can reach 0.0.0.0" in line
