"""The page as it is first painted: Streamlit's, with our style and the scripts that it will need.

Streamlit sends its style and fetches the script of a widget when the first one is drawn, after the
page was painted without them: everything moved, by half the window on some pages.
"""

import re
from pathlib import Path
from typing import Final

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HERE = Path(__file__).parent
# Scripts of what most pages draw at once, by the name before their hash.
SCRIPTS: Final = (
    "Html",
    "rehype-katex",
    "Selectbox",
    "ButtonGroup",
    "Slider",
    "Button",
    "PageLink",
    "BidiComponent",
    "PlotlyChart",
    "TextInput",
    "Checkbox",
    "FileUploader",
    "StreamlitSyntaxHighlighter",
    "Metric",
    "DataFrame",
)
# The largest of all: a page that draws no chart at once would wait for it.
CHARTS: Final = "PlotlyChart"
WITHOUT_CHARTS: Final = ("/compare",)
_IMPORT: Final = re.compile(r'(?:from|import)"\./([\w.-]+\.js)"')
_IMPORTS_END: Final = 8192  # characters of a script, in which its imports stand


def preloads(*, charts: bool = True) -> str:
    """Links that fetch the scripts of widgets with the page, and what they import.

    Those of charts are left out without `charts`.
    """
    static = Path(st.__file__).parent / "static"
    page, folder = (static / "index.html").read_text(encoding="utf-8"), static / "static" / "js"
    names = [name for name in SCRIPTS if charts or name != CHARTS]
    wanted = [path.name for name in names for path in folder.glob(f"{name}.*.js")]
    scripts: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in scripts or name in page:  # the page fetches some by itself
            continue
        scripts.add(name)
        with (folder / name).open(encoding="utf-8") as file:
            wanted += _IMPORT.findall(file.read(_IMPORTS_END))
    return "".join(
        f'<link rel="modulepreload" crossorigin href="./static/js/{script}">\n'
        for script in sorted(scripts)
    )


def styles() -> str:
    """The style of the first page and that of all, which `focus.js` tells apart by their ids."""
    texts = {
        name: (HERE / "static" / f"{name}.css").read_text(encoding="utf-8")
        for name in ("first_page", "page")
    }
    return "".join(f'<style id="{name}">\n{text}</style>\n' for name, text in texts.items())


class FirstPaint:
    """Adds the styles and the preloads to every HTML page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # At the ends of head and body: after Streamlit's, which win over what stands before them.
        self._styles = styles()
        self._preloads = {charts: preloads(charts=charts) for charts in (True, False)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request; what asks for a page gets it with what is added."""
        if scope["type"] != "http" or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        # As it is, not compressed, and whole: a browser keeps no page whose style may have changed.
        asked = {b"accept-encoding", b"if-none-match", b"if-modified-since", b"range"}
        headers = [(name, value) for name, value in scope["headers"] if name not in asked]
        start: Message = {}
        chunks: list[bytes] = []

        async def complete(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            chunks.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = b"".join(chunks)
            answer = MutableHeaders(raw=start["headers"])
            if body and answer.get("content-type", "").startswith("text/html"):
                body = self._complete(body, scope["path"])
                answer["content-length"] = str(len(body))
                for name in ("etag", "last-modified"):
                    del answer[name]
            await send(start)
            await send({"type": "http.response.body", "body": body})

        await self._app({**scope, "headers": headers}, receive, complete)

    def _complete(self, page: bytes, path: str) -> bytes:
        text = page.decode()
        scripts = self._preloads[not path.endswith(WITHOUT_CHARTS)]
        for end, added in (("</head>", scripts), ("</body>", self._styles)):
            text = text.replace(end, f"{added}{end}", 1)
        return text.encode()
