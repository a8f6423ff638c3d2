"""The login from button to button: a browser, the server, and a provider that may lie."""

import json
import re
import time
from collections.abc import Iterator
from html import escape, unescape

import pytest
from dashboards import Dashboard, running
from joserfc import jwt
from joserfc.jwk import OctKey
from openid import CLIENT, CLIENT_SECRET, Account, Provider, provided
from playwright.sync_api import Page, expect
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
from tabs import JOB_MS, job, open_plan, pick, settled, slide, unfold, visit

from app.jobs.model import JobState

# Each test logs in anew; tests/app/test_login.py has the rules and the pages without a provider.
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
STRANGER = "two@else.example"
USER, COLLEAGUE = "one@else.example", "any.body@example.org"
COOKIE_SECRET = "0123456789abcdef" * 4
START = re.compile("experts gone: ")
HOUR = 3600


def lying(name: str, **claims: object) -> Account:
    """A token that says it is the user's, and is wrong in one thing."""
    return Account(name, USER, tuple(claims.items()))


# What lies, and what the server's log says of it. Clocks are granted two minutes: an hour is more.
LIARS = {
    lying("of another audience", aud="another-client"): "Missing claim: 'azp'",
    lying("of another's client", aud=(CLIENT, "x"), azp="x"): "Invalid claim: 'azp'",
    lying("without an audience", aud=None): "Missing claim: 'aud'",
    lying("of another issuer", iss="https://login.example.org"): "Invalid claim: 'iss'",
    lying("with another nonce", nonce="of another login"): "Invalid claim: 'nonce'",
    lying("without a nonce", nonce=None): "Missing claim: 'nonce'",
    lying("expired", exp=int(time.time()) - HOUR): "The token is expired",
    lying("without an end", exp=None): "Missing claim: 'exp'",
    Account("signed by another key", USER, signature="unknown key"): "bad_signature",
    Account("signed with a secret", USER, signature="secret"): "'HS256' is not allowed",
    Account("not signed", USER, signature="none"): "'none' is not allowed",
    Account("with another state", USER, state="x"): "Missing provider for OAuth callback",
    Account("without a state", USER, state=""): "Missing provider for OAuth callback",
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    accounts = (Account(name, name) for name in (USER, COLLEAGUE, STRANGER))
    with provided((*accounts, *LIARS)) as provider:
        yield provider


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory, provider) -> Iterator[Dashboard]:
    """A dashboard that asks this provider who somebody is."""
    dashboard = Dashboard(tmp_path_factory.mktemp("dashboard"))
    provider.redirect_uri = f"{dashboard.url}/oauth2callback"
    secrets = dashboard.root / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir()
    secrets.touch(mode=0o600)
    secrets.write_text(
        f"""
[moeprune]
users = ["{USER}", "@example.org"]

[auth]
redirect_uri = "{provider.redirect_uri}"
cookie_secret = "{COOKIE_SECRET}"
client_id = "{CLIENT}"
client_secret = "{CLIENT_SECRET}"
server_metadata_url = "{provider.issuer}/.well-known/openid-configuration"
"""
    )
    with running(dashboard):
        yield dashboard


def buttons(tab: Page) -> list[str]:
    return settled(tab).get_by_role("button").all_inner_texts()


def is_asked_for_a_login(tab: Page) -> bool:
    """Whether there is a button, and nothing of the dashboard."""
    tab.get_by_role("heading", level=1, name="MoE Prune Studio").wait_for()
    tab.get_by_role("button", name="Log in").wait_for()
    expect(tab.get_by_test_id("stSidebar")).to_have_count(0)
    # A heading has a link to itself, by Streamlit; the links to the pages lead elsewhere.
    links = tab.get_by_role("link").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert [link for link in links if not str(link).startswith("#")] == []
    return buttons(tab) == ["Log in"]


def log_in(tab: Page, name: str) -> Page:
    """Press the button, and choose an account on the provider's page."""
    settled(tab).get_by_role("button", name="Log in").click()
    tab.get_by_role("heading", name="Who are you?").wait_for()
    tab.get_by_role("link", name=name, exact=True).click()
    tab.get_by_role("button", name=re.compile("Log (in|out)")).wait_for()
    return settled(tab)


def cookies(tab: Page) -> dict[str, dict]:
    return {cookie["name"]: cookie for cookie in tab.context.cookies()}


def test_a_user_comes_in_and_goes_out(open_tab, dashboard, provider):
    tab = open_tab()
    assert is_asked_for_a_login(tab)
    visit(tab, dashboard, "export")
    assert is_asked_for_a_login(tab)
    log_in(tab, USER)
    tab.get_by_role("heading", level=1, name=START).wait_for()
    expect(tab.get_by_test_id("stSidebar")).to_contain_text(f"Logged in as {USER}")
    visit(tab, dashboard, "explore")
    expect(tab.locator("canvas.base").first).to_be_visible()
    held = cookies(tab)
    for name in ("_streamlit_user", "_streamlit_user_tokens"):
        assert (held[name]["httpOnly"], held[name]["sameSite"]) == (True, "Lax")
    open_plan(tab)
    tab.get_by_role("button", name="Log out").click()
    assert is_asked_for_a_login(tab)
    # The provider was told whose session ends, and the browser holds nothing that opens a page.
    assert provider.logged_out[-1].count(".") == 2
    assert not {name for name in cookies(tab) if name.startswith("_streamlit_user")}
    visit(tab, dashboard, "explore")
    assert is_asked_for_a_login(tab)
    # Who is no user is told so, and may go.
    log_in(tab, STRANGER)
    expect(tab.get_by_role("alert")).to_contain_text("has no access to this dashboard.")
    assert buttons(tab) == ["Log out"]
    tab.get_by_role("button", name="Log out").click()
    assert is_asked_for_a_login(tab)
    # The client kept the provider's rules: its secret, the challenge, each code once.
    assert provider.refusals == []


def follow_login(tab: Page, dashboard: Dashboard, provider: Provider, name: str) -> None:
    """Ask for what the button and the link of an account lead to; no page is drawn."""
    claims = {"provider": "default", "exp": int(time.time()) + HOUR}
    start = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(COOKIE_SECRET))
    ask = tab.context.request
    accounts = ask.get(f"{dashboard.url}/auth/login?provider={start}").text()
    (link,) = re.findall(f'href="([^"]+)">{re.escape(escape(name))}</a>', accounts)
    assert ask.get(provider.issuer + unescape(link)).url.startswith(dashboard.url)


def test_a_token_that_lies_opens_nothing(open_tab, dashboard, provider):
    tab, log = open_tab(), dashboard.root / "server.log"
    for liar, reason in LIARS.items():
        before = len(log.read_text())
        follow_login(tab, dashboard, provider, liar.name)
        assert not {name for name in cookies(tab) if name.startswith("_streamlit_user")}, liar.name
        assert reason in log.read_text()[before:], liar.name
    tab.reload()
    assert is_asked_for_a_login(tab)
    # The same way lets a right one in.
    follow_login(tab, dashboard, provider, USER)
    tab.reload()
    tab.get_by_role("heading", level=1, name=START).wait_for()


def test_a_cookie_of_another_server_opens_nothing(open_tab, dashboard):
    tab = open_tab()
    for secret, origin in (
        ("f" * 64, dashboard.url),
        (COOKIE_SECRET, "http://127.0.0.1:1"),  # another program that shares the secrets
    ):
        take_cookie(tab, dashboard, secret, origin)
        assert is_asked_for_a_login(tab), (secret, origin)
    # As the server writes it: the others differ in one thing.
    take_cookie(tab, dashboard, COOKIE_SECRET, dashboard.url)
    tab.get_by_role("heading", level=1, name=START).wait_for()


def take_cookie(tab: Page, dashboard: Dashboard, secret: str, origin: str) -> None:
    """Reload the page with a login that a secret signs for an origin."""
    login = {"email": USER, "is_logged_in": True, "provider": "default", "origin": origin}
    signed = create_signed_value(secret, "_streamlit_user", json.dumps(login)).decode()
    tab.context.add_cookies([{"name": "_streamlit_user", "value": signed, "url": dashboard.url}])
    tab.reload()


def test_the_end_of_a_login_that_another_browser_began_opens_nothing(open_tab):
    """Who sends somebody the end of his own login does not get him into his account."""
    mine, other = open_tab(), open_tab()
    settled(mine).get_by_role("button", name="Log in").click()
    mine.route("**/oauth2callback*", lambda route: route.fulfill(status=204))
    with mine.expect_request("**/oauth2callback*") as seen:
        mine.get_by_role("link", name=USER, exact=True).click()
    other.goto(seen.value.url)
    assert is_asked_for_a_login(other)
    # The code is as good as before, where the login began.
    mine.unroute("**/oauth2callback*")
    mine.goto(seen.value.url)
    mine.get_by_role("heading", level=1, name=START).wait_for()


def test_a_job_has_an_owner_who_alone_cancels_it(open_tab, dashboard):
    mine, other = log_in(open_tab(), USER), log_in(open_tab(), COLLEAGUE)
    unfold(mine, "Data and jobs")
    pick(mine, "Corpus", "demo-code")
    slide(mine, "start-tokens", "End")
    slide(mine, "start-seq_len", "ArrowRight")
    mine.get_by_role("button", name="Run calibration").click()
    title = "demo on demo-code"
    expect(job(mine, title)).to_contain_text(re.compile("queued|running"))
    (queued,) = dashboard.jobs.list()
    assert queued.requested_by == USER
    other.reload()
    expect(job(other, title)).to_contain_text(USER)
    job(other, title).get_by_role("button", name="Cancel").click()
    expect(other.get_by_test_id("stToast")).to_contain_text(f"belongs to {USER}, who alone can")
    assert dashboard.jobs.get(queued.id).cancel_at is None
    expect(mine.get_by_text("1 job running")).to_be_visible()
    expect(job(mine, title)).to_contain_text(re.compile("calibrating [0-9,]+ of"), timeout=JOB_MS)
    job(mine, title).get_by_role("button", name="Cancel").click()
    expect(job(mine, title)).to_contain_text("canceled", timeout=JOB_MS)
    assert dashboard.jobs.get(queued.id).state is JobState.CANCELED
    expect(mine.get_by_text("1 job running")).to_have_count(0)
    expect(job(mine, title).get_by_role("button", name="Retry")).to_be_visible()
    finished = [path.name for path in (dashboard.root / "stats").iterdir() if path.is_dir()]
    assert [name for name in finished if "demo-code" in name and ".partial" not in name] == []
