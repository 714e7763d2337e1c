"""What is around every page: the ask field, the ways to other pages, and how to get the same elsewhere."""

from __future__ import annotations

from tierwall.explore.markup import Markup, joined, tag
from tierwall.explore.page import Page, link
from tierwall.version import __version__

ROOMS = (
    ("network", "/network", "Network"),
    ("tools", "/tools", "Tools"),
    ("settings", "/settings", "Settings"),
    ("permissions", "/permissions", "Permissions"),
    ("findings", "/findings", "Findings"),
    ("change", "/change", "Change"),
)
KEYS = (
    ("/", "go to the ask field"),
    ("?", "show these keys"),
    ("g then n, t, s, p, f, c", "go to Network, Tools, Settings, Permissions, Findings, Change"),
    ("+ and -", "zoom the drawing"),
    ("Escape", "leave a field or close this"),
)
EXAMPLE = "shop/web -> shop/db:5432"


def document(page: Page, address: str, version: int, source: str, problem: str = "") -> str:
    """Return the whole HTML of a page. `problem` says why what is shown is old."""
    head = joined(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", page.title if page.room == "home" else f"{page.title} · Tierwall"),
        tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/explorer.css"),
        tag("script", src="/static/explorer.js", type="module"),
        [tag("script", src=f"/static/{name}", type="module") for name in page.scripts],
    )
    body = joined(
        tag("a", "Skip to the page", href="#main", class_="skip"),
        _header(page),
        tag(
            "div",
            tag("span", problem),
            tag("button", "Try again", type="button", data_retry=True, hidden=True),
            id="badge",
            class_="badge",
            hidden=not problem,
        ),
        tag("main", page.body, id="main", tabindex="-1"),
        _footer(page, address, source),
        _keys(),
    )
    whole = tag("html", tag("head", head), tag("body", body), lang="en", data_version=version)
    return f"<!doctype html>\n{whole}\n"


def _header(page: Page) -> Markup:
    rooms = [
        link(words, href, aria_current="page" if room == page.room else None, data_room=room)
        for room, href, words in ROOMS
    ]
    field = tag(
        "input",
        id="ask",
        name="q",
        type="search",
        value=page.asked,
        placeholder=EXAMPLE,
        list="completions",
        autocomplete="off",
        spellcheck="false",
        aria_label="Ask who may do what",
        aria_keyshortcuts="/",
        maxlength=1000,
    )
    return tag(
        "header",
        tag("a", tag("span", "▤", class_="logo", aria_hidden="true"), " Tierwall", href="/", class_="brand"),
        tag(
            "form",
            field,
            tag("datalist", id="completions"),
            tag("button", "Ask", type="submit"),
            action="/ask",
            method="get",
            role="search",
        ),
        tag("nav", rooms, aria_label="Pages"),
    )


def _footer(page: Page, address: str, source: str) -> Markup:
    separator = "&" if "?" in address else "?"
    command = None
    if page.command:
        # A line ends between words: an option is not broken at its hyphens.
        first, *others = (tag("span", word) for word in page.command.split(" "))
        command = tag(
            "p",
            "The same in a terminal: ",
            tag("code", first, [(" ", word) for word in others], id="command"),
            " ",
            tag("button", "Copy", type="button", data_copy="command"),
            class_="command",
        )
    return tag(
        "footer",
        command,
        tag(
            "p",
            link("This page as JSON", f"{address}{separator}format=json"),
            " · ",
            tag("button", "Keys", type="button", data_keys=True, class_="plain"),
            f" · {source} · Tierwall {__version__}",
        ),
        tag("p", "", id="told", role="status", class_="told"),
    )


def _keys() -> Markup:
    rows = [tag("div", tag("dt", tag("kbd", keys)), tag("dd", words)) for keys, words in KEYS]
    return tag(
        "dialog",
        tag("h2", "Keys", id="keys-title"),
        tag("dl", rows),
        tag("label", tag("input", type="checkbox", id="keys-on", checked=True), " Single keys work"),
        tag("form", tag("button", "Close", type="submit"), method="dialog"),
        id="keys",
        aria_labelledby="keys-title",
    )
