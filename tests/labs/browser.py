"""A real browser for tests: Debian's chromium, headless, driven by Playwright.

Nothing here can hang. Playwright has a thread and an event loop of its own, so that tests beside it may run theirs, and
every journey and the end of the browser have a limit. Whoever waits for the thread waits no longer than that: it is
left behind, and chromium ends with this process at the latest.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from playwright.async_api import Browser, BrowserContext, Dialog, Page, Playwright, async_playwright

from tests.labs.waiting import PATIENCE_S
from tests.needs import unavailable

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Tests often run as root in a container, where the sandbox cannot be set up. Only pages of tests are opened. Nothing is
# fetched, drawn by a graphics card or set up that no test asks for.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = PATIENCE_S * 1000
# The limits of a whole journey, and of the end of the browser.
JOURNEY_S, CLOSING_S = 4 * PATIENCE_S, 30.0
T = TypeVar("T")


class BrowserLab:
    """A running browser. `run` does something with it and waits for the end, but not forever."""

    def __init__(self, program: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self.run(self._launch(program))

    def run(self, work: Coroutine[Any, Any, T], seconds: float = JOURNEY_S) -> T:
        """Run something in the thread of the browser. TimeoutError after so many seconds."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        # Longer than the other limit, which cancels in order. Only a loop that is stuck lets this one pass.
        return future.result(seconds + CLOSING_S)

    @asynccontextmanager
    async def context(self, **options: Any) -> AsyncIterator[BrowserContext]:
        """Open a window that shares nothing with others."""
        assert self._browser is not None
        opened = await self._browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        opened.set_default_timeout(PATIENCE_MS)
        try:
            yield opened
        finally:
            await asyncio.wait_for(opened.close(), CLOSING_S)

    def close(self) -> None:
        """End the browser, its thread and its loop."""
        try:
            self.run(self._end(), CLOSING_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSING_S)
        self._loop.close()

    async def _launch(self, program: str) -> None:
        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(executable_path=program, args=ARGUMENTS)

    async def _end(self) -> None:
        assert self._browser is not None
        assert self._playwright is not None
        await self._browser.close()
        await self._playwright.stop()


@contextmanager
def browser() -> Iterator[BrowserLab]:
    """Start a browser."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        unavailable("chromium is missing; `make browser-tools` installs it")
    assert program is not None
    running = BrowserLab(program)
    try:
        yield running
    finally:
        running.close()


def journey(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an async test one that runs in the thread of the browser, which is the fixture `chromium`."""
    wanted = inspect.signature(test)

    def run(*, chromium: BrowserLab, **fixtures: Any) -> None:
        chromium.run(test(**fixtures, **({"chromium": chromium} if "chromium" in wanted.parameters else {})))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    browser_parameter = inspect.Parameter("chromium", inspect.Parameter.KEYWORD_ONLY)
    others = (each for name, each in wanted.parameters.items() if name != "chromium")
    run.__signature__ = wanted.replace(parameters=(*others, browser_parameter))  # type: ignore[attr-defined]
    return run


class PageWatch:
    """Everything that a page complains about: errors of scripts, and what its security policy stops."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))
        # Somebody must answer a dialog, or the page stands still.
        page.on("dialog", self._dismiss)

    async def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog {dialog.message}")
        await dialog.dismiss()

    def _note(self, kind: str, text: str) -> None:
        # An answer of 404 or 422 is not an error of the page.
        if kind == "error" and "the server responded with a status of 4" not in text:
            self.complaints.append(text)
