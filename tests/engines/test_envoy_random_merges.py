"""One Envoy obeys random policies at every level as the reference merges them: each request shows what is in force.

Every value that is drawn is its own: a header with the name of its policy, a size, a location, a key. So what is seen
is the winner's, and what would pass if a loser counted is tried and refused.
"""

from __future__ import annotations

import base64
import http.client
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from random import Random
from typing import Any

import pytest

from tests.engines.test_envoy_settings import headers, jwt, rules, sha, token
from tests.labs.settings_lab import Answer, EchoBackend
from tests.randomness import seeds
from tests.reference import gateway as reference
from tests.worlds.gateway_settings import Object, gateway, policy, route, secret, service
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy
from tierwall.gateway.model.fields import PROFILES, Profile
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
LEVELS = (
    *(("Gateway/edge", section) for section in (None, "http")),
    *(("ListenerSet/more", section) for section in (None, "http")),
    *(("HTTPRoute/web", section) for section in (None, "a", "b")),
    *(("HTTPRoute/other", section) for section in (None, "a")),
)
OF_BACKENDS = (
    *LEVELS,
    *(("Service/one", None), ("Service/one", "80"), ("Service/two", None)),
    *2 * [("AgentgatewayBackend/own", None)],
)
AGES = (None, "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", "2024-01-02T02:00:00+02:00")
ORIGINS = [f"https://{letter}.example" for letter in "pqrs"]
CODES = (502, 503, 504)
KEY_HEADERS = ("x-key", "x-other-key")
LISTENERS = ("edge", "more")
# The path, the route, the rule, and the backend.
WAYS = (
    ("/a", "web", "a", "one"),
    ("/b", "web", "b", "two"),
    ("/c", "web", 2, "own"),
    ("/d", "other", "a", "one"),
    ("/e", "other", "b", "own"),
)
_OWN: Object = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "own"}


def _basic(name: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{name}".encode()).decode()


DRAWN: dict[str, Callable[[Random, str], Any]] = {
    "timeouts": lambda dice, name: {"request": f"{dice.randint(20_000, 90_000)}ms"},
    "retry": lambda dice, name: {"attempts": dice.randint(1, 3), "codes": [dice.choice(CODES)], "backoff": "1ms"},
    "headerModifiers": lambda dice, name: {
        side: headers(**{f"x_{side}": name})
        for side in dice.choice((("request",), ("response",), ("request", "response")))
    },
    "transformation": lambda dice, name: {"request": {"set": [{"name": "x-late", "value": f"'{name}'"}]}},
    "cors": lambda dice, name: {"allowOrigins": dice.sample(ORIGINS, 2), "maxAge": dice.randint(1, 9999)},
    "csrf": lambda dice, name: {"additionalOrigins": dice.sample(ORIGINS, 2)},
    "buffer": lambda dice, name: {"request": {"maxBytes": dice.randint(10, 400)}},
    "directResponse": lambda dice, name: {"status": dice.choice((203, 410, 418)), "body": name},
    "rateLimit": lambda dice, name: {
        "local": [{"requests": dice.randint(20, 60), "burst": dice.randint(1, 9), "unit": "Hours"}]
    },
    "jwtAuthentication": lambda dice, name: jwt(location={"header": {"name": f"x-token-{name}", "prefix": "T "}}),
    "basicAuthentication": lambda dice, name: {"users": [sha(name, name)]},
    "apiKeyAuthentication": lambda dice, name: {
        "secretRef": {"name": f"keys-{name}"},
        "location": {"header": {"name": dice.choice(KEY_HEADERS)}},
    },
    "authorization": lambda dice, name: dice.choice(
        (
            rules(f"request.headers['x-deny'] == '{name}'", action="Deny"),
            rules(f"'x-need-{name}' in request.headers", action="Require"),
        )
    ),
}
EARLY: dict[str, Callable[[Random, str], Any]] = {
    "authorization": DRAWN["authorization"],
    "transformation": lambda dice, name: {"request": {"set": [{"name": "x-early", "value": f"'{name}'"}]}},
}
OF_BACKEND: dict[str, Callable[[Random, str], Any]] = {
    "transformation": lambda dice, name: {"request": {"set": [{"name": "x-last", "value": f"'{name}'"}]}},
    "auth": lambda dice, name: {"key": name, "location": {"header": {"name": "x-credential"}}},
}
RARE = ("directResponse", "basicAuthentication", "apiKeyAuthentication", "jwtAuthentication")


def some(dice: Random, table: dict[str, Callable[[Random, str], Any]], name: str) -> Object:
    chosen = [field for field in table if dice.random() < (0.12 if field in RARE else 0.3)] or [next(iter(table))]
    return {field: table[field](dice, name) for field in chosen}


def drawn_policy(dice: Random, name: str) -> Object:
    kind = dice.random()
    spec: Object = {}
    if kind < 0.25:
        target, section = dice.choice(OF_BACKENDS)
        spec["backend"] = some(dice, OF_BACKEND, name)
        if target[0] in "GLH" and dice.random() < 0.5:
            spec["traffic"] = some(dice, DRAWN, name)
    elif kind < 0.4:
        target, section = dice.choice(LEVELS[:4])
        spec["traffic"] = {"phase": "PreRouting", **some(dice, EARLY, name)}
    else:
        target, section = dice.choice(LEVELS)
        spec["traffic"] = some(dice, DRAWN, name)
    inheritance = dice.choice((None, None, "Default", "Override")) if "backend" not in spec else None
    made = policy(name, target, section=section, inheritance=inheritance, **spec)
    if age := dice.choice(AGES):
        made["metadata"]["creationTimestamp"] = age
    return made


def world(seed: int) -> list[Object]:
    """A Gateway and a ListenerSet, whose listeners have one name; routes on both, and policies at all levels."""
    dice, space = Random(seed), f"w{seed}"
    edge = gateway()
    edge["spec"]["listeners"][0]["port"] = port(seed, "edge")
    edge["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    added = [{"name": "http", "port": port(seed, "more"), "protocol": "HTTP"}]
    more = {**edge, "kind": "ListenerSet", "metadata": {"name": "more"}}
    more["spec"] = {"parentRef": {"name": "edge"}, "listeners": added}
    parents = [{"name": "edge"}, {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "more"}]
    with_host: Object = {"static": {"host": "own.example", "port": 80}}
    with_host |= {"policies": some(dice, OF_BACKEND, "inline")} if dice.random() < 0.5 else {}
    kind = {"apiVersion": "agentgateway.dev/v1alpha1", "kind": "AgentgatewayBackend"}
    objects = [edge, more, service("one"), service("two"), {**kind, "metadata": {"name": "own"}, "spec": with_host}]
    for name in ("web", "other"):
        each: list[Object] = [
            {
                "matches": [{"path": {"value": path}}],
                "backendRefs": [_OWN if to == "own" else {"name": to, "port": 80}],
                **({"name": rule} if isinstance(rule, str) else {}),
            }
            for path, of, rule, to in WAYS
            if of == name
        ]
        objects.append({**route(name, each), "spec": {"parentRefs": parents, "rules": each}})
    for number in range(dice.randint(6, 16)):
        name = f"p{dice.randrange(100):02}-{number}"
        objects += [drawn_policy(dice, name), secret(f"keys-{name}", only=f"key-{name}")]
    return [{**item, "metadata": {"labels": {}, **item["metadata"], "namespace": space}} for item in objects]


def port(seed: int, listener: str) -> int:
    return 1000 + 2 * seed + LISTENERS.index(listener)


def host(number: int) -> str:
    """An address for each listener, so that all can choose a free port."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Place:
    """One way from a listener to a backend, with the settings that the reference says."""

    def __init__(
        self, objects: list[Object], seed: int, listener: str, way: int, number: int, profile: Profile
    ) -> None:
        self.path, of, rule, backend = WAYS[way]
        self.listener, self.number = f"w{seed}/{listener}", number
        space = f"w{seed}"
        question = {"gateway": f"{space}/edge", "listener": "http", "route": f"HTTPRoute/{space}/{of}", "rule": rule}
        if backend == "own":
            question |= {"backend": f"AgentgatewayBackend/{space}/own"}
        else:
            question |= {"backend": f"Service/{space}/{backend}", "backendSection": 80}
        question |= {"listenerSet": f"{space}/more"} if listener == "more" else {}
        self.settings = {
            (phase, field): merged.setting
            for phase in ("PreRouting", "PostRouting")
            for field, merged in reference.merge(objects, {**question, "phase": phase}, profile).items()
            if field.startswith("traffic.") or phase == "PostRouting"
        }

    def value(self, field: str, phase: str = "PostRouting", section: str = "traffic") -> Any:
        setting = self.settings.get((phase, f"{section}.{field}"))
        return setting["value"] if setting is not None else None

    @property
    def rules(self) -> list[Any]:
        """The rules of both phases."""
        return [*(self.value("authorization", "PreRouting") or ()), *(self.value("authorization") or ())]

    @property
    def bucket(self) -> tuple[str, str] | None:
        """The bucket that counts the requests of the place: of a policy, which has one target, and a listener."""
        setting = self.settings.get(("PostRouting", "traffic.rateLimit.local"))
        if setting is None:
            return None
        return setting["from"], self.listener

    def passes(self) -> dict[str, str]:
        """The headers with which requests pass."""
        out: dict[str, str] = {}
        for rule in self.rules:
            if rule["action"] == "Require":
                out[rule["policy"]["matchExpressions"][0].split("'")[1]] = "1"
        if required := self.value("jwtAuthentication"):
            out[required["location"]["header"]["name"]] = "T " + token().removeprefix("Bearer ")
        if users := self.value("basicAuthentication"):
            out["authorization"] = _basic(users["users"][0].partition(":")[0])
        if keys := self.value("apiKeyAuthentication"):
            out[keys["location"]["header"]["name"]] = "key-" + keys["secretRef"]["name"].removeprefix("keys-")
        return out


class Merged:
    """The running Envoy. It tells what requests show that is not as the reference says."""

    def __init__(self, ports: dict[str, int], backend: EchoBackend) -> None:
        self._ports, self._backend = ports, backend
        self._connections: dict[int, http.client.HTTPConnection] = {}
        self._taken: Counter[tuple[str, ...]] = Counter()
        self.wrong: list[object] = []
        self.shown: Counter[str] = Counter()

    def send(self, place: Place, given: Mapping[str, str], method: str = "GET", body: bytes = b"") -> Answer:
        if place.number not in self._connections:
            name = f"gateway/{place.listener.partition('/')[0]}/edge/{place.number}"
            address = host(place.number), self._ports[name]
            self._connections[place.number] = http.client.HTTPConnection(*address, timeout=20)
        connection = self._connections[place.number]
        connection.request(method, place.path, body if method == "POST" else None, dict(given))
        with connection.getresponse() as answer:
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())

    def expect(self, place: Place, about: str, got: object, wanted: object) -> None:
        self.shown[about] += 1
        if got != wanted:
            self.wrong.append((place.listener, place.path, about, got, wanted))

    def passing(self, place: Place, given: Mapping[str, str], method: str = "GET", body: bytes = b"") -> Answer | None:
        """Send a request that nothing before the limit refuses; None if it should be limited."""
        answer = self.send(place, given, method, body)
        bucket = place.bucket
        if bucket is None:
            return answer
        (limit,) = place.value("rateLimit.local")
        self._taken[bucket] += 1
        is_over = self._taken[bucket] > limit["requests"] + limit["burst"]
        self.expect(place, "rateLimit.local", answer.status == 429, is_over)
        return None if is_over else answer

    def exhaust(self, place: Place) -> None:
        """Send until the bucket of a place has nothing left, and once more."""
        if (bucket := place.bucket) is not None:
            (limit,) = place.value("rateLimit.local")
            given = place.passes()
            for _ in range(max(1, limit["requests"] + limit["burst"] - self._taken[bucket] + 1)):
                self.passing(place, given)

    def refusals(self, place: Place, given: dict[str, str], losers: list[Place]) -> None:
        """What is demanded is demanded, and what only losers would accept is refused."""
        others = [each.passes() for each in losers]
        known = {name: {other[name] for other in others if name in other} for name in ("authorization", *KEY_HEADERS)}
        gates = ("jwtAuthentication", 401), ("basicAuthentication", 401), ("apiKeyAuthentication", 401)
        for field, status in gates:
            value = place.value(field)
            if value is None:
                continue
            name = "authorization" if field == "basicAuthentication" else value["location"]["header"]["name"]
            without = {key: text for key, text in given.items() if key != name}
            self.expect(place, field, self.send(place, without).status, status)
            for text in sorted(known.get(name, set()) - {given[name]}):
                self.expect(place, field, self.send(place, {**without, name: text}).status, status)
        for rule in place.rules:
            text = rule["policy"]["matchExpressions"][0].split("'")
            if rule["action"] == "Deny":
                self.expect(place, "authorization", self.send(place, {**given, "x-deny": text[3]}).status, 403)
            else:
                without = {key: each for key, each in given.items() if key != text[1]}
                self.expect(place, "authorization", self.send(place, without).status, 403)
        for each in losers:
            for rule in each.rules:
                text = rule["policy"]["matchExpressions"][0].split("'")
                if rule["action"] == "Deny" and rule not in place.rules:
                    answer = self.passing(place, {**given, "x-deny": text[3]})
                    self.expect(place, "authorization", answer is None or answer.status != 403, True)

    def look(self, place: Place, losers: list[Place]) -> None:
        """Ask for everything that a place shows."""
        given = place.passes()
        self.pages(place, given)
        self.refusals(place, given, losers)
        answer = self.passing(place, {**given, "origin": ORIGINS[0]})
        if answer is None:
            return
        cors = place.value("cors")
        allowed = ORIGINS[0] if cors is not None and ORIGINS[0] in cors["allowOrigins"] else None
        self.expect(place, "cors", answer.headers.get("access-control-allow-origin"), allowed)
        response = place.value("headerModifiers.response")
        said = response["set"][0]["value"] if response else None
        self.expect(place, "headerModifiers.response", answer.headers.get("x-response"), said)
        if direct := place.value("directResponse"):
            self.expect(
                place, "directResponse", (answer.status, answer.body), (direct["status"], direct["body"].encode())
            )
            return
        self.expect(place, "directResponse", (answer.status, answer.headers.get("x-from")), (200, "backend"))
        if answer.status == 200:
            self.arrived(place, answer.seen)
        self.bodies(place, given)
        self.attempts(place, given)

    def arrived(self, place: Place, seen: dict[str, str]) -> None:
        request = place.value("headerModifiers.request")
        self.expect(place, "headerModifiers.request", seen.get("x-request"), request and request["set"][0]["value"])
        for name, value in (
            ("x-early", place.value("transformation", "PreRouting")),
            ("x-late", place.value("transformation")),
            ("x-last", place.value("transformation", section="backend")),
        ):
            wanted = value["request"]["set"][0]["value"].strip("'") if value else None
            self.expect(place, f"transformation {name}", seen.get(name), wanted)
        auth = place.value("auth", section="backend")
        self.expect(place, "backend.auth", seen.get("x-credential"), auth and auth["key"])
        timeouts = place.value("timeouts")
        wanted = timeouts["request"].removesuffix("ms") if timeouts else None
        self.expect(place, "timeouts", seen.get("x-envoy-expected-rq-timeout-ms"), wanted)

    def bodies(self, place: Place, given: dict[str, str]) -> None:
        csrf, buffer = place.value("csrf"), place.value("buffer")
        for origin in ORIGINS if csrf is not None else ORIGINS[:1]:
            answer = self.passing(place, {**given, "origin": origin}, "POST", b"x")
            if answer is not None:
                wanted = 200 if csrf is None or origin in csrf["additionalOrigins"] else 403
                self.expect(place, "csrf", answer.status, wanted)
        origin = csrf["additionalOrigins"][0] if csrf is not None else ORIGINS[0]
        most = buffer["request"]["maxBytes"] if buffer is not None else 450
        for size, status in ((most, 200), (most + 1, 413 if buffer is not None else 200)):
            # Where tokens are checked, bodies are limited before anything counts them.
            is_first = status == 413 and place.value("jwtAuthentication") is not None
            send = self.send if is_first else self.passing
            answer = send(place, {**given, "origin": origin}, "POST", b"x" * size)
            if answer is not None:
                self.expect(place, "buffer", answer.status, status)

    def attempts(self, place: Place, given: dict[str, str]) -> None:
        retry = place.value("retry")
        for code in CODES:
            before = len(self._backend.paths)
            if self.passing(place, {**given, "x-status": str(code)}) is not None:
                wanted = retry["attempts"] + 1 if retry is not None and code in retry["codes"] else 1
                self.expect(place, "retry", len(self._backend.paths) - before, wanted)

    def pages(self, place: Place, given: dict[str, str]) -> None:
        cors = place.value("cors")
        for origin in ORIGINS if cors is not None else ():
            asks = {"origin": origin, "access-control-request-method": "GET"}
            # The filter answers every preflight, so nothing counts it.
            answer = self.send(place, {**given, **asks}, "OPTIONS")
            got = answer.headers.get("access-control-allow-origin"), answer.headers.get("access-control-max-age")
            allowed = origin if origin in cors["allowOrigins"] else None
            self.expect(place, "cors", got, (allowed, str(cors["maxAge"])))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@contextmanager
def merged(objects: list[Object], numbers: dict[int, str], profile: Profile) -> Iterator[Merged]:
    """Run an Envoy for all Gateways; `numbers` has the namespace of each port."""
    with ExitStack() as running:
        backend = running.enter_context(closing(EchoBackend()))
        options = EnvoyOptions(
            static=True,
            profile=profile,
            bind={f"{space}/edge:{number}": SocketAddress(host(number), 0) for number, space in numbers.items()},
            endpoints={
                name.format(space): backend.address
                for space in numbers.values()
                for name in ("Service/{}/one", "Service/{}/two", "AgentgatewayBackend/{}/own")
            },
        )
        resources, _ = compile(Snapshot.of(load_objects(objects)), options)
        assert [str(each.message) for each in resources.diagnostics if each.code in ("TW661", "TW662", "TW663")] == []
        envoy = running.enter_context(StandaloneEnvoy(resources))
        yield running.enter_context(closing(Merged(envoy.ports(), backend)))


def places(worlds: Mapping[int, list[Object]], profile: Profile) -> Iterator[list[Place]]:
    """The places of each world."""
    for seed, objects in worlds.items():
        ways = product(LISTENERS, range(len(WAYS)))
        yield [Place(objects, seed, listener, way, port(seed, listener), profile) for listener, way in ways]


@pytest.mark.parametrize("profile", PROFILES)
def test_requests_show_what_the_reference_says(profile: Profile) -> None:
    worlds = {seed: world(seed) for seed in seeds(8)}
    numbers = {port(seed, listener): f"w{seed}" for seed in worlds for listener in LISTENERS}
    with merged([each for objects in worlds.values() for each in objects], numbers, profile) as running:
        for every in places(worlds, profile):
            for place in every:
                running.look(place, every)
            for place in every:
                running.exhaust(place)
        assert running.wrong == [], "\n".join(map(str, running.wrong[:40]))
        # It would be seen if another merge were in force.
        (other,) = {*PROFILES} - {profile}
        for every in places(worlds, other):
            for place in every:
                running.look(place, every)
        assert running.wrong
    assert len(running.shown) >= 15, running.shown
