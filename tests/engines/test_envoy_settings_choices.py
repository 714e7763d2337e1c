"""A real Envoy chooses the entries of conditional lists as the merge does (docs/gateway.md#obeyed-by-run)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeAlias

import pytest

from tests.engines.test_envoy_settings import jwt, token
from tests.labs.envoy_services import LIMIT, EnvoyServices
from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, service, to
from tierwall.gateway.detail import GatewayDetail, Setting
from tierwall.gateway.model.fields import PROFILES, Profile
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
_CONDITIONS = ("request.headers['x-a'] == '1'", "request.headers['x-b'] == '1'", "'x-a' in request.headers", "x y")
_REQUESTS: tuple[dict[str, str], ...] = ({}, {"x-a": "1"}, {"x-a": "2"}, {"x-b": "1"}, {"x-a": "1", "x-b": "1"})


def listed(*entries: tuple[str | None, Object]) -> Object:
    return {
        "conditional": [
            {"policy": value, **({"condition": condition} if condition is not None else {})}
            for condition, value in entries
        ]
    }


def says(text: str) -> Object:
    return {"request": {"set": [{"name": "x-said", "value": f"'{text}'"}]}}


def drawn_transformation(draw: random.Random, name: str) -> Object:
    if draw.random() < 0.3:
        return says(name)
    count = draw.randint(1, 3)
    entries: list[tuple[str | None, Object]] = [
        (draw.choice(_CONDITIONS), says(f"{name}-{number}")) for number in range(count)
    ]
    return listed(*entries, *([(None, says(f"{name}-last"))] if draw.random() < 0.3 else []))


def drawn_world(seed: int, drawn: Callable[[random.Random, str], Object]) -> list[Object]:
    """A Gateway and routes whose levels have settings, some of them as lists, and sometimes of two policies."""
    draw = random.Random(seed)
    objects = [gateway(), service("one"), *map(service, SERVICES)]
    if draw.random() < 0.7:
        objects.append(policy("g", "Gateway/edge", traffic=drawn(draw, "g")))
    for number in range(PLACES):
        way = {"name": "a", "matches": [{"path": {"value": f"/{number}"}}], "backendRefs": to("one")}
        objects.append(route(f"r{number}", [way]))
        for name, section in ((f"route{number}", None), (f"rule{number}", "a")):
            for suffix in draw.choice(((), ("",), ("",), ("-first", "-second"))):
                settings = drawn(draw, f"{name}{suffix}")
                objects.append(policy(f"{name}{suffix}", f"HTTPRoute/r{number}", section=section, traffic=settings))
    return objects


SERVICES = ("first", "second")
PLACES = 8
Settings: TypeAlias = Mapping[str, Setting]


def in_force(snapshot: Snapshot, profile: Profile, number: int, headers: Mapping[str, str]) -> Settings:
    """The settings for a request at a place, as the merge says."""
    asked = GatewayQuestion(
        gateway="shop/edge",
        listener="http",
        route=f"HTTPRoute/shop/r{number}",
        rule="a",
        profile=profile,
        request={"request.headers": headers},
    )
    detail = ask(snapshot, asked).detail
    assert isinstance(detail, GatewayDetail)
    return detail.effective


def every_request(snapshot: Snapshot, profile: Profile) -> Iterator[tuple[str, Settings, dict[str, str]]]:
    """Each request with its path, the settings for it, and its headers as the lab sends them."""
    for number in range(PLACES):
        for headers in _REQUESTS:
            sent = {name.replace("-", "_"): text for name, text in headers.items()}
            yield f"/{number}", in_force(snapshot, profile, number, headers), sent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("profile", PROFILES)
def test_envoy_chooses_as_the_merge(seed: int, profile: Profile) -> None:
    def drawn(draw: random.Random, name: str) -> Object:
        return {"transformation": drawn_transformation(draw, name)}

    objects = drawn_world(seed, drawn)
    snapshot = Snapshot.of(load_objects(objects))
    with settings_lab(objects, profile=profile) as lab:
        for path, settings, headers in every_request(snapshot, profile):
            setting = settings.get("traffic.transformation")
            value: Any = setting.value if setting is not None else None
            expected = value["request"]["set"][0]["value"].strip("'") if value is not None else None
            assert lab.send(path, "GET", None, **headers).seen.get("x-said") == expected, (path, headers)


class DrawnLimits:
    """Draws limits, of which no two in one policy are equal, and no two domains of global ones."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, draw: random.Random, name: str) -> Object:
        if draw.random() < 0.3:
            return {"rateLimit": self._parts(draw)}
        entries: list[tuple[str | None, Object]] = [
            (draw.choice(_CONDITIONS), self._parts(draw)) for _ in range(draw.randint(1, 3))
        ]
        last: list[tuple[str | None, Object]] = [(None, self._parts(draw))] if draw.random() < 0.3 else []
        return {"rateLimit": listed(*entries, *last)}

    def _parts(self, draw: random.Random) -> Object:
        self._count += 1
        local = {"local": [{"requests": 1 + self._count % 3, "burst": self._count // 3 % 4, "unit": "Hours"}]}
        descriptors = [{"entries": [{"name": "who", "expression": "'all'"}]}]
        asked = {"backendRef": {"name": draw.choice(SERVICES), "port": 80}}
        counted = {"global": {**asked, "domain": f"d{self._count}", "descriptors": descriptors}}
        return draw.choice((local, counted, {**local, **counted}))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("profile", PROFILES)
def test_envoy_limits_as_the_chosen_entry_says(seed: int, profile: Profile) -> None:
    objects = drawn_world(seed, DrawnLimits())
    snapshot = Snapshot.of(load_objects(objects))
    with closing(EnvoyServices()) as first, closing(EnvoyServices()) as second:
        by_name = dict(zip(SERVICES, (first, second), strict=True))
        wanted: Counter[tuple[str, str]] = Counter()
        taken: Counter[tuple[str, int, int]] = Counter()
        refused: Counter[str] = Counter()
        elsewhere = {name: running.address for name, running in by_name.items()}
        with settings_lab(objects, elsewhere=elsewhere, profile=profile) as lab:
            for _ in range(2):
                for path, settings, headers in every_request(snapshot, profile):
                    expected = 200
                    if (local := settings.get("traffic.rateLimit.local")) is not None:
                        (limit,) = local.value
                        bucket = str(local.sources[0]), limit["requests"], limit["burst"]
                        taken[bucket] += 1
                        expected = 429 if taken[bucket] > limit["requests"] + limit["burst"] else 200
                        refused["local"] += expected == 429
                    counting = settings.get("traffic.rateLimit.global")
                    if counting is not None and expected == 200:
                        key = counting.value["backendRef"]["name"], counting.value["domain"]
                        wanted[key] += 1
                        expected = 429 if wanted[key] > LIMIT else 200
                        refused["global"] += expected == 429
                    assert lab.send(path, "GET", None, **headers).status == expected, (path, headers, settings)
        counted = {(name, key[0]): count for name, each in by_name.items() for key, count in each.counted.items()}
        assert counted == wanted
        assert min(refused["local"], refused["global"]) > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_envoy_has_the_service_of_the_chosen_entry_process(profile: Profile) -> None:
    def drawn(draw: random.Random, name: str) -> Object:
        entries: list[tuple[str | None, Object]] = [
            (draw.choice(_CONDITIONS), {"backendRef": {"name": draw.choice(SERVICES), "port": 80}})
            for _ in range(draw.randint(1, 3))
        ]
        return {"extProc": listed(*entries)}

    objects = drawn_world(4, drawn)
    snapshot = Snapshot.of(load_objects(objects))
    with closing(EnvoyServices()) as first, closing(EnvoyServices()) as second:
        by_name = dict(zip(SERVICES, (first, second), strict=True))
        elsewhere = {name: running.address for name, running in by_name.items()}
        with settings_lab(objects, elsewhere=elsewhere, profile=profile) as lab:
            for path, settings, headers in every_request(snapshot, profile):
                before = {name: each.processed for name, each in by_name.items()}
                seen = lab.send(path, "POST", b"a body", **headers).seen
                setting = settings.get("traffic.extProc")
                expected = [setting.value["backendRef"]["name"]] if setting is not None else []
                asked = [name for name, each in by_name.items() if each.processed > before[name]]
                assert asked == expected, (path, headers)
                assert ("x-processed" in seen) == bool(expected)
            choosing = next(path for path, settings, sent in every_request(snapshot, profile) if settings and sent)
            before_blocked = len(lab.backend.paths)
            for headers in _REQUESTS:
                sent = {name.replace("-", "_"): text for name, text in headers.items()}
                is_chosen = bool(in_force(snapshot, profile, int(choosing[1:]), headers))
                assert (lab.send(choosing, "GET", None, x_block="1", **sent).status == 403) == is_chosen
            assert len(lab.backend.paths) - before_blocked < len(_REQUESTS)


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    teapot = {"status": 418, "body": 'a "quoted"\n%text\\', "headers": [{"name": "x-pot", "value": "'tea'"}]}
    settings: dict[str, Object] = {
        "answer": {
            "directResponse": listed(
                ("request.headers['x-a'] == '1'", teapot), ("'x-b' in request.headers", {"status": 403, "body": "no"})
            )
        },
        "claims": {
            "jwtAuthentication": jwt(mode="Optional"),
            "directResponse": listed(("jwt.sub == 'ann'", {"status": 204})),
        },
        "unknown": {"directResponse": listed(("source.port == 1", {"status": 204}))},
    }
    ways = [{"name": n, "matches": [{"path": {"value": f"/{n}"}}], "backendRefs": to("one")} for n in settings]
    policies = [policy(name, "HTTPRoute/r", section=name, traffic=value) for name, value in settings.items()]
    with settings_lab([gateway(), service("one"), route("r", ways), *policies]) as running:
        yield running


def test_an_answer_is_chosen(lab: SettingsLab) -> None:
    assert lab.send("/answer").status == 200
    answer = lab.send("/answer", x_a="1", x_b="1")
    assert (answer.status, answer.body, answer.headers["x-pot"]) == (418, b'a "quoted"\n%text\\', "tea")
    refused = lab.send("/answer", x_b="1")
    assert (refused.status, refused.body) == (403, b"no")


def test_a_condition_reads_claims_that_were_checked(lab: SettingsLab) -> None:
    assert lab.send("/claims").status == 200
    assert lab.send("/claims", authorization=token(sub="ann")).status == 204
    assert lab.send("/claims", authorization=token(sub="bob")).status == 200


def test_a_condition_that_envoy_does_not_know_closes_a_restriction(lab: SettingsLab) -> None:
    assert lab.send("/unknown").status == 500
    assert any("source.port" in str(problem.message) for problem in lab.diagnostics if problem.code == "TW663")


def test_a_service_is_asked_where_the_condition_says() -> None:
    with closing(EchoBackend()) as guard:
        url = f"http://127.0.0.1:{guard.address.port}"
        asks = listed(
            ("request.headers['x-a'] == '1'", {"url": f"{url}/first", "http": {}}),
            ("request.headers['x-a'] == '2'", {"url": f"{url}/second", "http": {}}),
        )
        objects = [gateway(), service("one"), route("r", [{"backendRefs": to("one")}])]
        with settings_lab([*objects, policy("p", "HTTPRoute/r", traffic={"extAuth": asks})]) as running:
            assert running.send("/").status == 200
            assert guard.paths == []
            guard.refused.add("/second")
            assert running.send("/", x_a="1").status == 200
            before = len(running.backend.paths)
            assert running.send("/", x_a="2").status == 403
            assert guard.paths == ["/first", "/second"]
            assert len(running.backend.paths) == before


def test_lists_that_compete_with_override_are_closed() -> None:
    first, second = (listed(("'x-a' in request.headers", {"status": 204})) for _ in range(2))
    objects = [gateway(), service("one"), route("r", [{"backendRefs": to("one")}])]
    wide = policy("wide", "Gateway/edge", traffic={"directResponse": first}, inheritance="Override")
    with settings_lab([*objects, wide, policy("q", "HTTPRoute/r", traffic={"directResponse": second})]) as running:
        assert running.send("/").status == 500
        assert any("Override" in str(problem.message) for problem in running.diagnostics if problem.code == "TW663")


def test_conditions_that_are_constants_or_about_the_client_open_nothing() -> None:
    wanted = {
        "true": (418, 418),
        "false": (404, 200),
        "cidr('127.0.0.0/8').containsIP(source.address)": (500, 500),
        "request.method == 'POST' || source.address == '127.0.0.1'": (500, 500),
    }
    objects = [gateway(), service("one")]
    for number, condition in enumerate(wanted):
        for name in ("over", "alone"):
            way = {"name": "a", "matches": [{"path": {"value": f"/{number}/{name}"}}], "backendRefs": to("one")}
            objects.append(route(f"{name}{number}", [way]))
            above = {"directResponse": listed((condition, {"status": 418}))}
            objects.append(policy(f"above-{name}{number}", f"HTTPRoute/{name}{number}", section="a", traffic=above))
        below = {"directResponse": {"status": 404}}
        objects.append(policy(f"below{number}", f"HTTPRoute/over{number}", traffic=below))
    with settings_lab(objects) as lab:
        got = {
            condition: tuple(lab.send(f"/{number}/{name}").status for name in ("over", "alone"))
            for number, condition in enumerate(wanted)
        }
        said = [str(problem.message) for problem in lab.diagnostics]
    assert got == wanted
    assert any("Envoy does not know `source.address` where it chooses an entry" in message for message in said)
