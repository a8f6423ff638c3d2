"""Options and fixtures that all tests share."""

import gc
import os
import random
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from forks import Forks, forking
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

# One thread for each worker and for what it starts: matrices of tests are tiny, and workers that
# share the cores would only wait for each other. Read when libraries compute for the first time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Code is compiled once, and not by each of the many processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# xdist tells its workers how wide its own terminal is; tables of commands are as wide as they need.
os.environ.pop("COLUMNS", None)


def _without_waiting(file: int | IO[bytes]) -> None:
    """Sync nothing: the power stays on, and a sync takes 4 ms, thousands of times in a run."""
    os.fstat(file if isinstance(file, int) else file.fileno())  # a closed file is an error as ever


# Before the program is imported. What tests start in processes of its own syncs as it does.
os.fsync = os.fdatasync = _without_waiting

# No test is timed, and one that fails must fail again: the same examples in every run.
settings.register_profile("same-examples", deadline=None, derandomize=True)
settings.load_profile("same-examples")


CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    # A page costs a third less processor time without threads that animate, paint and optimise.
    "--disable-gpu-rasterization",
    "--num-raster-threads=1",
    "--js-flags=--no-opt",
    "--disable-threaded-animation",
    "--force-prefers-reduced-motion",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-browser",
        action="store_true",
        help="fail, instead of skipping, where no Chromium is found",
    )
    parser.addoption(
        "--write-engine-results",
        action="store_true",
        help="put the rows that tests/engines measures into pruning/serving/engine_results.json",
    )
    parser.addoption(
        "--write-refusals",
        action="store_true",
        help="put the answers that commands give into tests/cli/refusals, where they are others",
    )


# Of the slow part; the last file has a worker alone.
LONGEST = ("test_published", "test_demo_records", "test_guides", "test_docs_commands")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first: those of browsers, then these."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage less often, and never among what was imported, such as torch.

    Many tests allocate a lot: a sixth of their processor time went into walks over live objects,
    and so did a tenth of that of the imports.
    """
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test or its fixtures draw without a seed is the same in every run and order.

    Of libraries that are imported already: most tests need none.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, walks leave out what its tests imported, such as modules of transformers."""
    if nextitem is None or nextitem.get_closest_marker("e2e") is None:
        BROWSER.close()
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache for the tests alone, as what a person measured there would change their plans."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Runs scripts and ranks in processes that have the libraries at hand."""
    with forking(tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.fixture(scope="session")
def chromium_path(request: pytest.FixtureRequest) -> str:
    """Chromium's executable; without one the browser tests skip, or fail if asked to.

    The headless shell is the same without windows, and takes a seventh less time.
    """
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = f"no Chromium found; install Debian's package `{names[0]}` or `{names[1]}`"
        if request.config.getoption("--require-browser"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


class SharedBrowser:
    """One browser for all files: it starts once, and keeps the scripts it has fetched and compiled.

    It ends after the last browser test: until then a loop of asyncio runs in this thread, where no
    other can.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._context: BrowserContext | None = None

    def context(self, path: str, folder: Path) -> "BrowserContext":
        from playwright.sync_api import sync_playwright

        if self._context is None:
            playwright = self._stack.enter_context(sync_playwright())
            self._context = playwright.chromium.launch_persistent_context(
                folder, executable_path=path, args=CHROMIUM_ARGS, locale="en-GB"
            )
            self._stack.callback(self._context.close)
        return self._context

    def close(self) -> None:
        self._context = None
        self._stack.close()


BROWSER = SharedBrowser()


@pytest.fixture(scope="module")
def profile(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> "BrowserContext":
    """The browser with one profile: tests close their pages, and clear what they store."""
    return BROWSER.context(chromium_path, tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def chromium(profile: "BrowserContext") -> "Browser":
    """The same browser, for contexts that share nothing."""
    assert profile.browser
    return profile.browser
