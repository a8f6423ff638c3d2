"""The page as the server sends it: Streamlit's, with the style and the scripts of widgets."""

import re
from pathlib import Path

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from app.first_paint import FirstPaint, preloads, styles

STATIC = Path(st.__file__).parent / "static"
_IN_COLUMNS = ("stMetric", "stMetric", "stPlotlyChart")
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client():
    site = Starlette(
        routes=[Route("/note", lambda _: PlainTextResponse("</head></body>"))],
        middleware=[Middleware(FirstPaint), Middleware(GZipMiddleware)],
    )
    site.mount("/", StaticFiles(directory=STATIC, html=True))
    return TestClient(site)


def asked(client, path, **headers):
    return client.get(path, headers={"accept": "text/html,*/*;q=0.8", **headers})


def test_a_page_has_the_style_last_and_the_scripts_in_its_head(client):
    answer = asked(client, "/", **{"accept-encoding": "gzip"})
    head, _, body = answer.text.partition("</head>")
    assert len(answer.content) == int(answer.headers["content-length"])
    assert preloads() in head
    assert body.rstrip().endswith(f"{styles()}</body>\n</html>")
    # Nothing of Streamlit's page is lost.
    assert answer.text.replace(preloads(), "").replace(styles(), "") == PAGE


def test_a_browser_that_has_streamlits_page_gets_ours(client):
    tag = client.get("/index.html").headers["etag"]
    assert client.get("/index.html", headers={"if-none-match": tag}).status_code == 304
    answer = asked(client, "/index.html", **{"if-none-match": tag})
    assert answer.status_code == 200
    assert "etag" not in answer.headers
    assert styles() in answer.text


def test_what_is_no_page_stays_as_it_is(client):
    assert asked(client, "/note").text == "</head></body>"
    script = re.search(r"\./(static/js/[\w.-]+\.js)", preloads())
    assert script
    path = script.group(1)
    assert asked(client, f"/{path}").content == (STATIC / path).read_bytes()


def test_scripts_are_fetched_with_those_that_they_import():
    scripts = re.findall(r"/static/js/([\w.-]+)\"", preloads())
    assert len(scripts) == len(set(scripts))
    for name in scripts:
        text = (STATIC / "static" / "js" / name).read_text(encoding="utf-8")
        imports = set(re.findall(r"(?:\bfrom|\bimport)\s*[\"']\./([\w.-]+\.js)[\"']", text))
        assert {script for script in imports if script not in PAGE} <= set(scripts), name


def test_the_style_that_stays_makes_a_change_restyle_no_whole_branch():
    # A toggle restyled 4,200 elements by such selectors, 380 without them.
    page = re.sub(r"/\*.*?\*/", "", styles().partition('<style id="page">')[2], flags=re.DOTALL)
    assert ":has(>" in page
    # Columns hold metrics and charts at any depth; nothing else looks further than children.
    deep = re.findall(r"(\S+):has\((?!>)(.*?)\)", page)
    names = [[f'[data-testid="{name}"]' for name in ("stColumn", inside)] for inside in _IN_COLUMNS]
    assert deep == [tuple(pair) for pair in names]
    assert "class*=" not in page
    assert ":not(:has(" not in page
