"""A browser session without a browser: Streamlit's socket, its messages, a page as they draw it.

It does to the server what a tab does: one socket, a rerun for every change of a control, and the
large elements that it has already are not sent again. Nothing is painted, so that many sessions
fit beside the server on one machine.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import ClientConnection, connect

# As long as the pages' own tests wait for something: only reached where something is broken.
PATIENCE_SECONDS = 120.0
# Runs of the script for which a browser keeps a large element: `global.maxCachedMessageAge`.
_KEPT_RUNS = 2
_LARGEST_MESSAGE = 200 * 1024**2
Path = tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """What one run of a page's script sent.

    Args:
        seconds: from the request to its last message.
        nbytes: of all messages, as they came through the socket.
        elements: what stands where on the page.
    """

    seconds: float
    nbytes: int
    elements: Mapping[Path, Element]

    @property
    def exceptions(self) -> list[str]:
        """What the page says of programs that failed."""
        found = (block.exception for block in self._of("exception"))
        return [f"{exception.type}: {exception.message}" for exception in found]

    @property
    def texts(self) -> list[str]:
        """Words in plain paragraphs and badges."""
        plain = [block.text.body for block in self._of("text")]
        return plain + [block.markdown.body for block in self._of("markdown")]

    @property
    def keys(self) -> list[str]:
        """Keys of the controls from top to bottom."""
        widgets = (_widget(element) for _, element in sorted(self.elements.items()))
        return [key for widget in widgets if widget is not None and (key := _key(widget.id))]

    @property
    def digest(self) -> str:
        """Of all that the page says; not of its controls, whose state depends on the last click."""
        parts = hashlib.sha256()
        for path, element in sorted(self.elements.items()):
            kind = element.WhichOneof("type") or ""
            inner = getattr(element, kind, None)
            # Where a file will be, once it is asked for, is drawn by lot.
            is_control = inner is not None and "set_value" in inner.DESCRIPTOR.fields_by_name
            if kind != "download_button" and not is_control:
                parts.update(repr(path).encode())
                parts.update(element.SerializeToString(deterministic=True))
        return parts.hexdigest()

    def _of(self, kind: str) -> list[Element]:
        return [element for element in self.elements.values() if element.WhichOneof("type") == kind]


class Session:
    """One tab at one page; `visit` first, then `choose`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._page_hash = self._query = ""
        self._values: dict[str, WidgetState] = {}
        self._widgets: dict[str, tuple[str, Any]] = {}
        # Hash -> the message, and the run that it came or was meant in.
        self._kept: dict[str, tuple[ForwardMsg, int]] = {}
        self._run = 0
        self._fragment = ""

    async def visit(self, page: str, query: str = "") -> Drawn:
        """Open a page as a link does; its name is that in the address, empty for the first."""
        self._page_hash, self._query, self._page = "", query, page
        self._values.clear()
        return await self._rerun()

    async def choose(self, key: str, option: str) -> Drawn:
        """Choose an option of the control with this key, as it is written on the screen."""
        self._values[key] = _state(*self._widgets[key], option)
        return await self._rerun()

    def options(self, key: str) -> list[str]:
        """The options of a control, as they are written on the screen."""
        return _options(self._widgets[key][1])

    def has(self, key: str) -> bool:
        """Whether the page has a control with this key now."""
        return key in self._widgets

    @property
    def polls(self) -> bool:
        """Whether a part of the page asks to be drawn again by itself."""
        return bool(self._fragment)

    async def poll(self) -> Drawn:
        """Draw that part again, as a browser does each second."""
        return await self._rerun(self._fragment)

    async def _rerun(self, fragment: str = "") -> Drawn:
        message = BackMsg()
        state = message.rerun_script
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
        state.query_string = self._query
        state.page_script_hash = self._page_hash
        state.page_name = "" if self._page_hash else self._page
        state.widget_states.widgets.extend(self._values.values())
        state.cached_message_hashes.extend(self._kept)
        state.context_info.timezone = "UTC"
        state.context_info.locale = "en-GB"
        if not fragment:
            self._fragment = ""  # the page says again what it wants to be drawn by itself
        began = time.perf_counter()
        await self._socket.send(message.SerializeToString())
        nbytes, elements = await self._receive()
        seconds = time.perf_counter() - began
        found = {
            key: (widget.id, widget)
            for element in elements.values()
            if (widget := _widget(element)) is not None and (key := _key(widget.id))
        }
        self._widgets = {**self._widgets, **found} if fragment else found
        self._values = {key: value for key, value in self._values.items() if key in self._widgets}
        return Drawn(seconds, nbytes, elements)

    async def _receive(self) -> tuple[int, dict[Path, Element]]:
        """Messages until the script has run to its end."""
        nbytes, elements = 0, dict[Path, Element]()
        self._run += 1
        while True:
            data = await self._socket.recv(decode=False)
            nbytes += len(data)
            message = self._whole(ForwardMsg.FromString(data))
            kind = message.WhichOneof("type")
            if kind == "delta":
                _apply(message, elements)
            elif kind == "navigation":
                self._page_hash = message.navigation.page_script_hash
            elif kind == "auto_rerun":
                self._fragment = message.auto_rerun.fragment_id
            elif kind == "page_info_changed":
                self._query = message.page_info_changed.query_string
            elif kind == "script_finished":
                if message.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    elements.clear()
                    continue
                self._forget()
                return nbytes, elements

    def _whole(self, message: ForwardMsg) -> ForwardMsg:
        """The message, or the kept one that it stands for, at the place where it belongs now."""
        if message.WhichOneof("type") == "ref_hash":
            kept, _ = self._kept[message.ref_hash]
            self._kept[message.ref_hash] = kept, self._run
            return ForwardMsg(delta=kept.delta, metadata=message.metadata)
        if message.metadata.cacheable:
            self._kept[message.hash] = message, self._run
        return message

    def _forget(self) -> None:
        first = self._run - _KEPT_RUNS
        self._kept = {key: result for key, result in self._kept.items() if result[1] > first}


def connected(port: int) -> connect:
    """A socket to a server of this machine, for `async with`."""
    return connect(
        f"ws://127.0.0.1:{port}/_stcore/stream",
        subprotocols=["streamlit"],  # type: ignore[list-item]
        origin=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
        max_size=_LARGEST_MESSAGE,
        open_timeout=PATIENCE_SECONDS,
        # A server that is busy with sessions answers late, which is what is measured.
        ping_timeout=None,
        proxy=None,
    )


def _apply(message: ForwardMsg, elements: dict[Path, Element]) -> None:
    path = tuple(message.metadata.delta_path)
    if message.delta.WhichOneof("type") == "new_element":
        elements[path] = message.delta.new_element


def _widget(element: Element) -> Any:
    kind = element.WhichOneof("type")
    inner = getattr(element, kind) if kind else None
    return inner if getattr(inner, "id", "") else None


def _key(widget_id: str) -> str:
    """The key that a page gave to a widget; empty where it gave none."""
    # $$ID-<hash>-<key>
    key = widget_id.split("-", 2)[-1] if widget_id.startswith("$$ID-") else ""
    return "" if key == "None" else key


def _options(widget: Any) -> list[str]:
    return [getattr(option, "content", option) for option in widget.options]


def _state(widget_id: str, widget: Any, option: str) -> WidgetState:
    if type(widget).__name__ == "Pagination":
        return WidgetState(id=widget_id, int_value=int(option))
    options = _options(widget)
    if option not in options:
        raise ValueError(f"{_key(widget_id)} offers {options}, not {option!r}")
    state = WidgetState(id=widget_id)
    if type(widget).__name__ == "Selectbox":
        state.string_value = option
    else:
        state.string_array_value.data.append(option)
    return state
