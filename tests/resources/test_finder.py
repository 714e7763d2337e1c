"""The finder returns the objects that names refer to, and reports names that do not exist."""

from __future__ import annotations

import pytest

from tierwall.core.diagnostics import Diagnostic, InputError, UnknownName, input_error, unknown_name_diagnostic
from tierwall.resources.finder import ResourceFinder, name_hint
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

ROUTE, SERVICE = ("gateway.networking.k8s.io", "HTTPRoute"), ("", "Service")
OLD, NEW = ("old.example", "Thing"), ("new.example", "Thing")
SNAPSHOT = Snapshot.of(
    load_objects(
        [
            {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": "shop", "name": name}}
            for api_version, kind, name in (
                ("gateway.networking.k8s.io/v1", "HTTPRoute", "web"),
                ("v1", "Service", "api"),
                ("old.example/v1", "Thing", "both"),
                ("new.example/v1", "Thing", "both"),
                ("new.example/v1", "Thing", "one"),
            )
        ]
    )
)


def find() -> ResourceFinder:
    return ResourceFinder(SNAPSHOT, [])


def said(finder: ResourceFinder) -> list[tuple[str, str, str]]:
    return [(problem.code, problem.message, problem.hint) for problem in finder.problems]


def test_a_name_is_found_in_its_kind() -> None:
    finder = find()
    service = finder.by_name("service", "shop/api", (SERVICE,))
    assert service is not None
    assert str(service.reference) == "Service/shop/api"
    assert finder.problems == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("shop/apj", ("TW704", "there is no Service `shop/apj`", "did you mean `shop/api`?")),
        ("zzz/zzzzzz", ("TW704", "there is no Service `zzz/zzzzzz`", "")),
        ("api", ("TW703", "expected `namespace/name` as `service`, found `api`", "")),
        ("shop/", ("TW703", "expected `namespace/name` as `service`, found `shop/`", "")),
        (None, ("TW703", "expected `namespace/name` as `service`, found nothing", "")),
        (3, ("TW703", "expected `namespace/name` as `service`, found `3`", "")),
    ],
)
def test_a_name_that_is_malformed_or_does_not_exist(value: object, problem: tuple[str, str, str]) -> None:
    finder = find()
    assert finder.by_name("service", value, (SERVICE,)) is None
    assert said(finder) == [problem]


def test_the_first_of_several_kinds_counts_unless_the_name_must_be_unique() -> None:
    finder = find()
    first = finder.by_name("thing", "shop/both", (OLD, NEW))
    assert first is not None
    assert first.group == "old.example"
    assert finder.problems == []
    assert finder.by_name("thing", "shop/one", (OLD, NEW), one_only=True) is not None
    assert finder.problems == []
    finder.by_name("thing", "shop/both", (OLD, NEW), one_only=True)
    hint = "say `Thing.old.example/shop/both` or `Thing.new.example/shop/both`"
    assert said(finder) == [("TW703", "Thing `shop/both` is ambiguous: both groups have one", hint)]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("HTTPRoute/shop/wep", ("TW704", "there is no HTTPRoute/shop/wep", "did you mean `HTTPRoute/shop/web`?")),
        (
            "HTTProute/shop/web",
            (
                "TW703",
                "expected one of HTTPRoute, Service as kind of `route`, found `HTTProute`",
                "did you mean `HTTPRoute`?",
            ),
        ),
        ("shop/web", ("TW703", "expected `Kind/namespace/name` as `route`, found `shop/web`", "")),
        (
            "HTTPRoute/shop/web#a",
            ("TW703", "expected `Kind/namespace/name` as `route`, found `HTTPRoute/shop/web#a`", ""),
        ),
        (7, ("TW703", "expected `Kind/namespace/name` as `route`, found `7`", "")),
    ],
)
def test_a_reference_that_is_malformed_or_does_not_exist(value: object, problem: tuple[str, str, str]) -> None:
    finder = find()
    assert finder.by_reference("route", value, {"HTTPRoute": ROUTE, "Service": SERVICE}) is None
    assert said(finder) == [problem]


def test_a_reference_is_found() -> None:
    finder = find()
    route = finder.by_reference("route", "HTTPRoute/shop/web", {"HTTPRoute": ROUTE})
    assert route is not None
    assert route.name == "web"
    assert finder.problems == []


def test_a_hint_lists_all_names_inside_an_object_if_none_is_near() -> None:
    assert name_hint("wbe", ["web", "tls"], "listeners") == "did you mean `web`?"
    assert name_hint("zzz", ["web", "tls", "web"], "listeners") == "use one of its listeners: web, tls"
    assert name_hint("zzz", [], "listeners") == "it has no listeners"


def test_an_unknown_name_error_has_only_names_that_do_not_exist() -> None:
    absent, wrong = unknown_name_diagnostic("there is no x"), Diagnostic("TW703", "expected y")
    assert type(input_error([absent, absent])) is UnknownName
    assert type(input_error([absent, wrong])) is InputError
    assert type(input_error([])) is InputError


@pytest.mark.parametrize(
    ("value", "groups"),
    [
        ("Thing/shop/both", ["new.example", "old.example"]),
        ("Thing.old.example/shop/both", ["old.example"]),
        ("Service/shop/api", [""]),
    ],
)
def test_a_reference_matches_every_group_unless_it_gives_one(value: str, groups: list[str]) -> None:
    finder = find()
    assert sorted(resource.group for resource in finder.by_reference_among("object", value, SNAPSHOT)) == groups
    assert finder.problems == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("Thing/shop/bath", ("TW704", "there is no object `Thing/shop/bath`", "did you mean `Thing/shop/both`?")),
        ("Thing.other.example/shop/both", ("TW704", "there is no object `Thing.other.example/shop/both`", "did you")),
        ("api", ("TW703", "expected `Kind/namespace/name` as object, found `api`", "did you mean `Service/shop/api`?")),
        ("", ("TW703", "expected `Kind/namespace/name` as object, found an empty string", "")),
    ],
)
def test_a_reference_to_an_object_that_does_not_exist(value: str, problem: tuple[str, str, str]) -> None:
    finder = find()
    assert finder.by_reference_among("object", value, SNAPSHOT) == []
    ((code, message, hint),) = said(finder)
    assert (code, message) == problem[:2]
    assert hint.startswith(problem[2])


def test_a_reference_to_an_object_of_another_sort() -> None:
    finder = find()
    routes = SNAPSHOT.of_kind(*ROUTE)
    assert finder.by_reference_among("route", "Service/shop/api", routes, "is not a route") == []
    assert said(finder) == [("TW703", "Service/shop/api is not a route", "")]
