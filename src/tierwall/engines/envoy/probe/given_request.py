"""Sends the request that the facts of a question describe, so that conditional lists choose as the question says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tierwall.engines.envoy.probe.observations import ObservedAnswer, ProbeClient, Unobservable

_METHOD = re.compile(r"[A-Z]+", re.ASCII)
_PATH = re.compile(r"/[A-Za-z0-9/_.~-]*", re.ASCII)
_NAME = re.compile(r"(?!x-(forwarded|envoy|request|tierwall)-|(host|connection|te|upgrade)$|content-)[a-z][a-z0-9-]*")
_TEXT = re.compile(r"[!-~]([ -~]*[!-~])?|")


class GivenRequest:
    """A client whose requests have the method, the path and the headers that a question gives."""

    def __init__(self, client: ProbeClient, variables: Mapping[str, Any]) -> None:
        self._client = client
        given = dict(variables)
        request = given.pop("request", None)
        request = dict(request) if isinstance(request, dict) else {}
        self._method = _text("method", request.pop("method", "GET"), _METHOD)
        self._path = _text("path", request.pop("path", "/"), _PATH)
        headers = request.pop("headers", {})
        if given or request:
            name = next(iter(given), None) or f"request.{next(iter(request))}"
            raise Unobservable(f"a test does not choose `{name}` of its requests")
        if not isinstance(headers, dict):
            raise Unobservable("`request.headers` is not what a client can send")
        self._headers = {_text("headers", name, _NAME): _text("headers", headers[name], _TEXT) for name in headers}

    def send(
        self,
        method: str = "GET",
        path: str = "/",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        status: int = 200,
        answer: Mapping[str, str] | None = None,
        silent: bool = False,
    ) -> ObservedAnswer:
        """Send the request; `headers` come on top of those that the question gives."""
        every = {**self._headers, **(headers or {})}
        return self._client.send(self._method, self._path, every, body, status=status, answer=answer, silent=silent)

    def connects_from(self, address: str) -> bool:
        """Whether a request of a client with this address, as a proxy says, reaches the backend."""
        return self._client.connects_from(address)


def _text(name: str, value: object, form: re.Pattern[str]) -> str:
    if isinstance(value, str) and form.fullmatch(value):
        return value
    raise Unobservable(f"`request.{name}` is not what a client can send")
