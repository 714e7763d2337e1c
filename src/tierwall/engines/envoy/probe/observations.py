"""Observations of settings: each function sends requests, and returns which values explain what was seen.

A function gets all values that policies set, so that its requests tell them apart. `None` stands for a field that is
not set. What no request shows in reasonable time is `Unobservable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from tierwall.engines.envoy.config.settings.expressions import constant
from tierwall.engines.envoy.config.settings.limits import LocalLimit, local_limits
from tierwall.engines.envoy.config.settings.measures import byte_count
from tierwall.engines.envoy.probe.recorder import RecordedRequest
from tierwall.engines.envoy.probe.staging import values_of
from tierwall.resources.resource import list_of_maps, nested_map
from tierwall.values.time import NANOS, parse_duration

# Says whether a value explains what was seen.
Explains = Callable[[Any], bool]
_TIMEOUT = "x-envoy-expected-rq-timeout-ms"
# The longest timeout that is awaited, in milliseconds. Of longer ones Envoy tells the backend.
_AWAITED_MS = 1000
_MAX_SECONDS, _MAX_REQUESTS, _MAX_BYTES = 5, 300, 8 << 20
# Delays are told apart only if they differ by this much, in nanoseconds; timers may be a little early.
_CLEARLY, _EARLY = NANOS // 2, NANOS // 20
_LIMITED = 429
_STRANGER = "https://stranger.tierwall.test"


class Unobservable(Exception):
    """A setting that no request shows, with the reason."""


class ObservedAnswer(NamedTuple):
    """An answer, the requests that reached the backend meanwhile, and how long it took, in nanoseconds."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    arrived: tuple[RecordedRequest, ...]
    nanoseconds: int

    @property
    def passed(self) -> bool:
        """Whether the request reached the backend."""
        return bool(self.arrived)


class ProbeClient(Protocol):
    """Sends requests to the place of a question."""

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
        """Send a request; the backend answers with this status and these headers, or is silent."""

    def connects_from(self, address: str) -> bool:
        """Whether a request of a client with this address, as a proxy says, reaches the backend."""


def _arrived(seen: ObservedAnswer) -> RecordedRequest:
    """Return the request as it reached the backend."""
    if not seen.passed:
        raise Unobservable(f"a request does not reach the backend, Envoy answers {seen.status}")
    return seen.arrived[0]


def timeouts(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Read the timeout that Envoy tells the backend, and wait for it if it is short."""
    told = _arrived(client.send()).headers.get(_TIMEOUT)
    # Envoy may tell the stream's own limit where the route has none.
    ends = told is None or int(told) > _AWAITED_MS or client.send(silent=True).status == 504

    def explains(value: Any) -> bool:
        wanted = None if value is None else _nanoseconds(value.get("request")) // (NANOS // 1000)
        return ends and (told is None if not wanted else told == str(wanted))

    return explains


def retry(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Count the attempts for each code that the backend may answer with."""
    if any(_nanoseconds(value.get("backoff", "25ms")) * value.get("attempts", 1) > NANOS for value in values):
        raise Unobservable("the time between attempts is too long for a test")
    codes = sorted({500, 503, *values_of(values, "codes")})
    attempts = {code: len(client.send(status=code).arrived) for code in codes}

    def explains(value: Any) -> bool:
        repeated = value.get("codes") or () if value is not None else ()
        return all(
            count == (1 + value.get("attempts", 1) if code in repeated else 1) for code, count in attempts.items()
        )

    return explains


def request_headers(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Look at the headers that arrive."""
    sent = dict.fromkeys(_header_names(values), "sent")
    arrived = _arrived(client.send(headers=sent)).headers
    return lambda value: _modified(sent, value) == {name: arrived[name] for name in sent if name in arrived}


def response_headers(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Look at the headers of an answer."""
    sent = dict.fromkeys(_header_names(values), "sent")
    got = client.send(answer=sent).headers
    return lambda value: _modified(sent, value) == {name: got[name] for name in sent if name in got}


def _header_names(values: Sequence[Any]) -> list[str]:
    named = [header["name"] for key in ("set", "add") for header in values_of(values, key)]
    return sorted({str(name).lower() for name in (*named, *values_of(values, "remove"))})


def _modified(sent: Mapping[str, str], value: Any) -> dict[str, str]:
    """Return headers after a change; of several with one name the last."""
    out = dict(sent)
    for name in (value or {}).get("remove") or ():
        out.pop(name.lower(), None)
    for key in ("set", "add"):
        for header in list_of_maps((value or {}).get(key)):
            out[header["name"].lower()] = header["value"]
    return out


def direct_response(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """See whether a request is answered without a backend, and how."""
    seen = client.send()

    def explains(value: Any) -> bool:
        if value is None:
            return seen.passed
        body = constant(value["bodyExpression"]) if "bodyExpression" in value else value.get("body", "")
        return not seen.passed and (seen.status, seen.body) == (value["status"], body.encode())

    return explains


def cors(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Ask before a request as browsers do, for pages of every origin that a value names and for a stranger."""
    origins = [_STRANGER, *(origin.replace("*", _STRANGER if origin == "*" else "a") for origin in _origins(values))]
    answers = {}
    for origin in origins:
        headers = {"origin": origin, "access-control-request-method": "GET"}
        seen = client.send("OPTIONS", headers=headers)
        answers[origin] = seen.headers.get("access-control-allow-origin"), seen.headers.get("access-control-max-age")

    def explains(value: Any) -> bool:
        patterns = [re.escape(origin).replace(r"\*", ".+") for origin in _origins([value or {}])]
        age = (value or {}).get("maxAge")
        return all(
            (allowed is not None) == any(re.fullmatch(pattern, origin) for pattern in patterns)
            and (allowed is None or age is None or seen_age == str(age))
            for origin, (allowed, seen_age) in answers.items()
        )

    return explains


def _origins(values: Sequence[Any]) -> list[str]:
    return [str(origin) for origin in values_of(values, "allowOrigins")]


def csrf(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Send changes from pages of every origin that a value names, and from a stranger's."""
    origins = [_STRANGER, *values_of(values, "additionalOrigins")]
    passed = {origin: client.send("POST", headers={"origin": origin}).passed for origin in origins}
    return lambda value: all(
        may == (value is None or origin in (value.get("additionalOrigins") or ())) for origin, may in passed.items()
    )


def buffer(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Send bodies of the size that a value permits, and larger ones."""
    sizes = {_limit(value) for value in values}
    if max(sizes) > _MAX_BYTES:
        raise Unobservable("the limit is too large for a test")
    passed = {size: client.send("POST", body=b"x" * size).passed for limit in sizes for size in (limit, limit + 1)}
    return lambda value: all(may == (value is None or size <= _limit(value)) for size, may in passed.items())


def _limit(value: Any) -> int:
    size = nested_map(value, "request").get("maxBytes")
    return byte_count(size) if size is not None else 1 << 20


def delay(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Wait for an answer, and take the shorter of two times."""
    delays = sorted({0, *(_nanoseconds(value.get("duration")) for value in values)})
    if delays[-1] > _MAX_SECONDS * NANOS:
        raise Unobservable("the delay is too long for a test")
    if any(after - before < _CLEARLY for before, after in pairwise(delays)):
        raise Unobservable("the delays are too close together to tell them apart")
    took = min(client.send().nanoseconds for _ in range(2))
    observed = max(held for held in delays if held <= took + _EARLY)
    return lambda value: observed == (0 if value is None else _nanoseconds(value.get("duration")))


def local_limit(client: ProbeClient, values: Sequence[Any]) -> Explains:
    """Send requests until all of the largest limit are used up, and count those that pass."""
    buckets = [local_limits(value, "") for value in values]
    number = max(_capacity(each, 0) for each in buckets) + 2
    if number > _MAX_REQUESTS:
        raise Unobservable(f"the limit is larger than the {_MAX_REQUESTS} requests of a test")
    seen = [client.send() for _ in range(number)]
    # An entry of a list may have a global limit, too, whose service is not there.
    passed = sum(answer.status != _LIMITED for answer in seen)
    took = sum(answer.nanoseconds for answer in seen)

    def explains(value: Any) -> bool:
        if value is None:
            return passed == number
        limits = local_limits(value, "")
        # The bucket fills again while requests are sent.
        return _capacity(limits, 0) <= passed <= _capacity(limits, took)

    return explains


def _capacity(limits: Sequence[LocalLimit], nanoseconds: int) -> int:
    """Return how many requests pass in a time that begins with full buckets."""
    return min(limit.capacity + limit.refill * nanoseconds // (limit.seconds * NANOS) for limit in limits)


def _nanoseconds(text: object) -> int:
    duration = parse_duration(text)
    if duration is None:
        raise Unobservable(f"`{text}` is not a duration")
    return duration
