"""Options and fixtures that all tests share."""

import shutil

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-browser",
        action="store_true",
        help="fail, instead of skipping, where no Chromium is found",
    )


@pytest.fixture(scope="session")
def chromium_path(request: pytest.FixtureRequest) -> str:
    """Chromium's executable; without one the browser tests skip, or fail if asked to."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "no Chromium found; install Debian's package `chromium`"
        if request.config.getoption("--require-browser"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
