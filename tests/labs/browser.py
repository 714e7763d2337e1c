"""A real browser for tests: Debian's chromium, headless, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.needs import unavailable

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser. Only one module at a time may have it: Playwright keeps an event loop in this thread."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        unavailable("chromium is missing; `make browser-tools` installs it")
    with sync_playwright() as playwright:
        # Tests often run as root in a container, where the sandbox cannot be set up. Only pages of tests are opened.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


class PageWatch:
    """Everything that a page complains about: errors of scripts, and what its security policy stops."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def _note(self, kind: str, text: str) -> None:
        # An answer of 404 or 422 is not an error of the page.
        if kind == "error" and "the server responded with a status of 4" not in text:
            self.complaints.append(text)
