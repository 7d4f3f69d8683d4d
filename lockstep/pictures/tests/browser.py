"""A page in a real browser, for tests: any Chromium or Chrome on the PATH, driven by playwright."""

import atexit
import contextlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAPER = {"width": 687, "height": 1017}  # A4 without margins of 14 mm, in CSS pixels
# Elements that are beyond the window's edge, or hide a part of themselves.
BEYOND = """() => [...document.querySelectorAll("body *")].filter(each => {
    const box = each.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1 || each.scrollWidth > each.clientWidth + 1 &&
        getComputedStyle(each).overflowX !== "visible");
}).map(each => each.outerHTML.slice(0, 90))"""


@cache
def _browser(path: str) -> Any:
    """One for all tests of this process: to start one takes longer than a test."""
    api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: tox -e pictures")
    driver = api.sync_playwright().start()
    atexit.register(driver.stop)
    return driver.chromium.launch(executable_path=path)


@contextlib.contextmanager
def opened(text: str, folder: Path, **options: Any) -> Iterator[Any]:
    """The page with this text, from a file in the folder. ``options``: of playwright's `new_page`. Skips the test where
    there is no browser.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: one of {', '.join(BROWSERS)}")
    file = folder / "page.html"
    file.write_text(text, "utf-8")
    page = _browser(path).new_page(**options)
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.goto(file.as_uri())
    try:
        yield page
    finally:
        page.close()
