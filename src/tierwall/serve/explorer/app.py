"""Answers requests of browsers: pages as HTML or JSON, static files, changes, and the stream of versions."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from threading import Event
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tierwall.core.diagnostics import InputError
from tierwall.core.words import failure_words
from tierwall.explore.ask import parse_query
from tierwall.explore.change import MAX_BYTES, NotWanted, change
from tierwall.explore.page import ExploredWorld, Page, Query, failed, first
from tierwall.explore.shell import document
from tierwall.explore.site import page_at
from tierwall.render.json import dump
from tierwall.serve.explorer.access import CHANGE, HEADERS, SINGLE_HEADERS, Access
from tierwall.serve.explorer.followed import ExplorerFollower
from tierwall.serve.explorer.page_runner import PageRunner, ServerEnds

STATIC = {
    "explorer.css": "text/css",
    "explorer.js": "text/javascript",
    "change.js": "text/javascript",
    "drawing.js": "text/javascript",
    "table.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
# How often a quiet stream says that it is alive, in seconds; the most streams, parameters of an address, and fields of
# a form.
ALIVE_S, MAX_STREAMS, MAX_PARAMETERS, MAX_FIELDS = 15.0, 64, 100, 10


class ExplorerApp:
    """The application of one server."""

    def __init__(self, follower: ExplorerFollower, access: Access) -> None:
        self._follower, self._access = follower, access
        self._threads = PageRunner()
        self._streams = 0

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever its method is: every answer has the same headers."""
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    def end(self) -> None:
        """End the streams and wait for no page any more: the server stops."""
        self._follower.end()
        self._threads.end()

    async def _answer(self, request: Request) -> Response:
        try:
            response = await self._respond(request)
        except ServerEnds:
            response = PlainTextResponse("the explorer is ending\n", 503)
        except Exception as error:
            # A mistake in one page leaves the others alone. Whoever reports it finds the place in the output.
            traceback.print_exc()
            response = PlainTextResponse(f"this page cannot be made: {failure_words(error)}\n", 500)
        response.headers.update(HEADERS)
        return response

    async def _respond(self, request: Request) -> Response:
        # Not from the whole address: there, a decoded `?` or `#` of a name would end the path.
        path, sent = request.scope["path"], request.scope["query_string"].decode("ascii", "replace")
        if any(len(request.headers.getlist(name)) > 1 for name in SINGLE_HEADERS):
            return PlainTextResponse("a header is there twice\n", 400)
        refused = self._access.refusal(request.method, path, request.headers)
        if refused is not None:
            return PlainTextResponse(f"{refused.words}\n", refused.status)
        given = request.query_params.get("token")
        if given is not None and self._access.is_token(given):
            return self._admitted(_raw_path(request), sent)
        if not self._access.has_token(";".join(request.headers.getlist("cookie"))):
            words = "open the address that `tierwall ui` printed: it has the token, which is new after each start"
            return PlainTextResponse(f"{words}\n", 403)
        if path.startswith("/static/"):
            return _static(path.removeprefix("/static/"))
        if path == "/follow":
            return self._stream()
        try:
            query = parse_query(f"?{sent}")
        except ValueError:
            return PlainTextResponse(f"an address has at most {MAX_PARAMETERS} parameters\n", 400)
        if request.method == "POST":
            return await self._changed(request, query)
        # Inside the path, names are quoted once more.
        raw = _raw_path(request)
        shown = path if not raw.startswith("/policy/") else _unquoted(raw)
        return await self._page(request, lambda explored: page_at(explored, shown, query))

    def _admitted(self, path: str, query: str) -> Response:
        """Send the browser to the address without the token, which becomes a cookie."""
        pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "token"]
        # Two slashes at the beginning would lead to another server.
        target = "/" + path.lstrip("/\\") + (f"?{urlencode(pairs)}" if pairs else "")
        return RedirectResponse(target, 303, {"Set-Cookie": self._access.set_cookie})

    async def _page(self, request: Request, make: Callable[[ExploredWorld], tuple[Page, bool]]) -> Response:
        explored = self._follower.explored
        assert explored is not None
        version = self._follower.version

        def rendered() -> Response:
            with self._follower.computing():
                return shown()

        def shown() -> Response:
            try:
                page, as_json = make(explored)
            except InputError as error:
                page, as_json = failed("This cannot be shown", error, ""), False
            if page.moved_to and not as_json:
                return RedirectResponse(page.moved_to, 303)
            if as_json:
                return Response(page.json() + "\n", page.status, media_type="application/json")
            sent = request.scope["query_string"].decode("ascii", "replace")
            address = _raw_path(request) + (f"?{sent}" if sent else "")
            html = document(page, address, version, explored.source, self._follower.problem)
            return Response(html.encode(errors="replace"), page.status, media_type="text/html; charset=utf-8")

        return await self._threads.run(rendered)

    async def _changed(self, request: Request, query: Query) -> Response:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    return PlainTextResponse(f"a change has at most {MAX_BYTES >> 20} MB\n", 413)
        except ClientDisconnect:
            return Response(status_code=400)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("application/yaml", "application/x-yaml", "text/yaml"):
            text, as_json = body.decode(errors="replace"), first(query, "format") != "html"
            is_gone = Event()
            watching = asyncio.create_task(_set_when_gone(request, is_gone))
            try:
                return await self._page(
                    request,
                    lambda explored: (change(explored, query, text, as_json, lambda: not is_gone.is_set()), as_json),
                )
            except NotWanted:
                return Response(status_code=400)
            finally:
                watching.cancel()
        if kind == "application/x-www-form-urlencoded":
            try:
                fields = dict(
                    parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
                )
            except ValueError:
                return PlainTextResponse(f"the form of {CHANGE} has at most {MAX_FIELDS} fields\n", 400)
            given = fields.get("manifests", "").replace("\r\n", "\n")
            # Before scripts work, an empty editor begins with the object that was chosen beside it.
            start = {**query, "object": (fields.get("object", ""),)}
            chosen = given if given.strip() or not start["object"][0] else None
            return await self._page(request, lambda explored: (change(explored, start, chosen), False))
        return PlainTextResponse(f"POST {CHANGE} takes application/yaml, or a form with `manifests`\n", 415)

    def _stream(self) -> Response:
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse("too many pages follow already\n", 503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            told: dict[str, Any] = {}
            while not self._follower.has_ended:
                now = {"version": self._follower.version, "problem": self._follower.problem}
                yield f"event: world\ndata: {_line(now)}\n\n" if now != told else ": alive\n\n"
                told = now
                await self._follower.wait(ALIVE_S)
        finally:
            self._streams -= 1


async def _set_when_gone(request: Request, is_gone: Event) -> None:
    """Set an event when whoever asked, and has sent everything, does not wait for the answer any more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    is_gone.set()


def _line(document_value: dict[str, Any]) -> str:
    return " ".join(dump(document_value).split("\n"))


def _raw_path(request: Request) -> str:
    """Return the path as it was sent: with its escapes."""
    return bytes(request.scope["raw_path"]).decode("ascii", "replace").partition("?")[0]


def _unquoted(raw: str) -> str:
    """Return a path whose parts may hold any character: a slash in a name does not divide it."""
    return "/".join(unquote(part).replace("/", "\ufffd") for part in raw.split("/"))


def _static(name: str) -> Response:
    if name not in STATIC:
        return PlainTextResponse("there is no such file\n", 404)
    text = files("tierwall.explore").joinpath("static", name).read_bytes()
    return Response(text, media_type=STATIC[name])
