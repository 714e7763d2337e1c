"""The table of settings that Envoy obeys (docs/gateway.md#obeyed-by-run); the page shows it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import ROOT
from tests.worlds.gateway_settings import PLAIN, gateway, policy, route, service
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.findings import envoy_findings
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.effects import merge_status
from tierwall.gateway.model.enforcement import ENFORCEMENT, EnforcementState, unenforced
from tierwall.gateway.model.fields import CONDITIONAL, FIELDS, SECTIONS
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.resources.load import load_objects
from tierwall.resources.schema import Schema
from tierwall.resources.snapshot import BackendRefGrants, Snapshot

_FOLDERS = ("engines/envoy/config", "attach")
# What turns settings into Envoy's configuration.
COMPILER = "".join(
    path.read_text() for folder in _FOLDERS for path in sorted((ROOT / "src" / "tierwall" / folder).rglob("*.py"))
)
PAGE = (ROOT / "docs" / "gateway.md").read_text().split("## Obeyed by `run`")[1].split("\n## ")[0]


def rows() -> Iterator[str]:
    for name, rule in ENFORCEMENT.items():
        closes = rule.restricts and rule.state is EnforcementState.NOT_ENFORCED
        yield f"| `{name}` | {rule.state}{'; closes' if closes else ''} | {rule.words} |"


def test_the_page_has_the_table() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `")] == list(rows())


def test_every_field_has_a_row() -> None:
    assert [path for path in FIELDS if path not in ENFORCEMENT] == []


@pytest.mark.parametrize("name", [name for name in ENFORCEMENT if name not in FIELDS])
def test_every_other_row_is_a_part_of_a_field_that_envoy_enforces(name: str) -> None:
    path, _, value = name.partition("=")
    field = max((other for other in FIELDS if path == other or path.startswith(f"{other}.")), key=len)
    assert ENFORCEMENT[field].state is not EnforcementState.NOT_ENFORCED
    section, *keys = path.split(".")
    schema: Schema | None = SECTIONS[section]  # type: ignore[index]
    for key in keys:
        assert schema is not None
        schema = (schema.items or schema).at(key)
    assert schema is not None
    assert not value or value in (schema.enum or ())


def keys_below(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Every key of a value with its path, but those of conditional lists, whose entries are values again."""
    for each in (schema.items or schema).properties:
        if each.name != CONDITIONAL:
            yield each.name, f"{path}.{each.name}"
            yield from keys_below(each.schema, f"{path}.{each.name}")


@pytest.mark.parametrize(
    "field", [path for path in FIELDS if ENFORCEMENT[path].state is not EnforcementState.NOT_ENFORCED]
)
def test_what_the_compiler_does_not_read_of_a_field_is_in_the_table(field: str) -> None:
    section, *keys = field.split(".")
    schema = SECTIONS[section].at(*keys)  # type: ignore[index]
    assert schema is not None
    rows_of_parts = {name.partition("=")[0] for name in ENFORCEMENT if name != field}
    unread = []
    for key, path in keys_below(schema, field):
        in_table = any(path == name or path.startswith(f"{name}.") for name in rows_of_parts)
        # Both sides of a message have some keys, such as `requestBodyMode`.
        side = f'}}{key.removeprefix("request").removeprefix("response")}"'
        is_read = f'"{key}"' in COMPILER or (key.startswith(("request", "response")) and side in COMPILER)
        is_named = any(
            f"`{part}{end}" in ENFORCEMENT[field].words for part in path.removeprefix(field).split(".") for end in "`:"
        )
        if not (in_table or is_read or is_named):
            unread.append(path)
    assert unread == []


def test_a_row_that_is_not_enforced_as_it_is_written_says_why() -> None:
    assert [
        name for name, rule in ENFORCEMENT.items() if rule.state is not EnforcementState.ENFORCED and not rule.words
    ] == []


def test_a_field_that_is_not_enforced_is_named_whole() -> None:
    (part,) = unenforced("backend.ai.promptGuard", {"request": [{"regex": {}}]})
    assert (part.name, part.path, part.restricts) == ("backend.ai.promptGuard", (), True)


def _told(*objects: dict[str, Any], **facts: Any) -> tuple[list[str], list[str], list[str]]:
    """Return what `check`, the status and the answer of `effective` say of the settings that Envoy does not enforce."""
    snapshot = Snapshot.of(load_objects([*PLAIN, *objects]))
    (policy,) = snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy")
    checked = [str(finding.message) for finding in envoy_findings(snapshot) if finding.code == "TW662"]
    status = [condition.message for condition in merge_status(snapshot, policy, "docs").enforced]
    asked = GatewayQuestion(gateway="shop/edge", listener="http", route="HTTPRoute/shop/web", rule="a", request=facts)
    answer = ask(snapshot, asked)
    assert isinstance(answer.detail, GatewayDetail)
    return checked, status, [note for note in answer.detail.notes if "does not enforce" in note]


ASKED = {"backendRef": {"name": "ask", "port": 80}}


@pytest.mark.parametrize(
    ("traffic", "words"),
    [
        ({"authorization": {"policy": {"matchExpressions": ["source.port == 1"]}}}, "it has no `source.port`"),
        ({"basicAuthentication": {"users": ["ann:$2y$05$abcdefghijklmnopqrstuv"]}}, "in the form {SHA}"),
        ({"transformation": {"request": {"remove": ["host"]}}}, "does not change header `host`"),
        ({"headerModifiers": {"request": {"set": [{"name": "Host", "value": "x"}]}}}, "a change of header `Host`"),
        ({"directResponse": {"status": 200, "bodyExpression": "request.path"}}, "only constant texts"),
        ({"jwtAuthentication": {"providers": [{"issuer": "i", "jwks": {"inline": "{}"}}]}}, "JSON Web Key Set"),
        ({"cors": {"allowOrigins": ["*"], "exposeHeaders": ["*"], "allowCredentials": True}}, "together with"),
        ({"transformation": {"request": {"set": [{"name": "x-a", "value": r"'a\r\nb'"}]}}}, "no control character"),
        ({"extAuth": {**ASKED, "http": {"path": "'/a b'"}}}, "control character in a path"),
        (
            {"jwtAuthentication": {"providers": [{"issuer": "i", "jwks": {"remote": {**ASKED, "jwksPath": "/a\n"}}}]}},
            "control character in a path",
        ),
        (
            {"extProc": {"backendRef": {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "b"}}},
            "asks",
        ),
    ],
)
def test_a_value_that_envoy_lacks_is_said_everywhere(traffic: dict[str, Any], words: str) -> None:
    for told in _told(policy("p", "HTTPRoute/web", traffic=traffic)):
        assert len(told) == 1
        assert words in told[0]


FAR = {"backendRef": {"name": "ask", "namespace": "far", "port": 80}}


@pytest.mark.parametrize("granted", [None, "ask", "other"])
@pytest.mark.parametrize(
    ("target", "spec", "field"),
    [
        ("HTTPRoute/web", {"traffic": {"extAuth": {**FAR, "grpc": {}}}}, "traffic.extAuth"),
        ("HTTPRoute/web", {"traffic": {"extProc": FAR}}, "traffic.extProc"),
        (
            "HTTPRoute/web",
            {
                "traffic": {
                    "jwtAuthentication": {
                        "providers": [{"issuer": "i", "jwks": {"remote": {**FAR, "jwksPath": "/keys"}}}],
                    }
                }
            },
            "traffic.jwtAuthentication",
        ),
        ("Gateway/edge", {"frontend": {"tracing": {**FAR, "protocol": "GRPC"}}}, "frontend.tracing"),
    ],
)
def test_a_service_elsewhere_without_a_grant_is_said(
    target: str, spec: dict[str, Any], field: str, granted: str | None
) -> None:
    grant = {
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
        "kind": "ReferenceGrant",
        "metadata": {"name": "g", "namespace": "far"},
        "spec": {
            "from": [{"group": "agentgateway.dev", "kind": "AgentgatewayPolicy", "namespace": "shop"}],
            "to": [{"group": "", "kind": "Service", "name": granted}],
        },
    }
    far = {**service("ask"), "metadata": {"name": "ask", "namespace": "far"}}
    objects = load_objects([*PLAIN, far, policy("p", target, **spec), *([grant] if granted else [])])
    modes: tuple[BackendRefGrants, ...] = ("route", "strict")
    for mode in modes:
        snapshot = Snapshot.of(objects, backend_ref_grants=mode)
        answer = ask(snapshot, GatewayQuestion(gateway="shop/edge", listener="http", route="HTTPRoute/shop/web"))
        assert isinstance(answer.detail, GatewayDetail)
        told = [note for note in answer.detail.notes if f"`{field}`: no ReferenceGrant permits Service/far/ask" in note]
        findings = [each for each in envoy_findings(snapshot) if "no ReferenceGrant permits it" in each.message]
        is_permitted = mode == "route" or granted == "ask"
        assert (len(told), len(findings)) == ((0, 0) if is_permitted else (1, 1))


def test_rules_of_several_policies_that_are_too_many_together_are_said() -> None:
    def rules(count: int) -> dict[str, Any]:
        return {"policy": {"matchExpressions": [f"request.path == '/{number}'" for number in range(count)]}}

    for last, is_closed in ((250, False), (251, True)):
        each = [policy(f"p{n}", "HTTPRoute/web", traffic={"authorization": rules(250)}) for n in range(3)]
        objects = (*PLAIN, *each, policy("p3", "Gateway/edge", traffic={"authorization": rules(last)}))
        snapshot = Snapshot.of(load_objects(objects))
        asked = GatewayQuestion(gateway="shop/edge", listener="http", route="HTTPRoute/shop/web", rule="a")
        detail = ask(snapshot, asked).detail
        assert isinstance(detail, GatewayDetail)
        for told in (
            [str(finding.message) for finding in envoy_findings(snapshot)],
            list(detail.notes),
            [str(each.message) for each in compile(snapshot, EnvoyOptions())[0].diagnostics],
        ):
            assert any("there are 1001 rules, expected at most 1000" in words for words in told) is is_closed


def test_lists_of_several_levels_of_which_one_has_override_are_said() -> None:
    entries = [{"condition": "request.path == '/a'", "policy": {"status": 404}}]
    conditional = {"directResponse": {"conditional": entries}}
    objects = [
        *PLAIN,
        policy("low", "Gateway/edge", traffic=conditional, inheritance="Override"),
        policy("high", "HTTPRoute/web", traffic=conditional),
    ]
    snapshot = Snapshot.of(load_objects(objects))
    ran = {str(each.reference) for each in compile(snapshot, EnvoyOptions())[0].diagnostics if each.code == "TW663"}
    told = {str(each.reference) for each in envoy_findings(snapshot) if "of several levels" in str(each.message)}
    assert ran == told != set()


def test_a_list_that_depends_on_the_request_is_said_whichever_entry_is_selected() -> None:
    limit = {"local": [{"tokens": 9, "unit": "Hours"}]}
    entries = [{"condition": "request.path == '/a'", "policy": limit}]
    conditional = policy("p", "HTTPRoute/web", traffic={"rateLimit": {"conditional": entries}})
    for facts in ({}, {"request.path": "/a"}, {"request.path": "/b"}):
        for told in _told(conditional, **facts):
            assert len(told) == 1
            assert "`traffic.rateLimit.local.tokens`" in told[0]


def test_lists_of_which_one_has_override_are_said() -> None:
    entries = [{"condition": "request.path == '/a'", "policy": {"status": 204}}]
    setting = {"directResponse": {"conditional": entries}}
    wide = policy("wide", "Gateway/edge", traffic=setting, inheritance="Override")
    snapshot = Snapshot.of(load_objects([*PLAIN, wide, policy("p", "HTTPRoute/web", traffic=setting)]))
    answer = ask(snapshot, GatewayQuestion(gateway="shop/edge", route="HTTPRoute/shop/web", rule="a"))
    assert isinstance(answer.detail, GatewayDetail)
    (note,) = (note for note in answer.detail.notes if "does not enforce" in note)
    assert "if one of them has Override" in note


def test_a_list_with_nothing_but_a_last_entry_is_said_like_its_value() -> None:
    entries = [{"policy": {"local": [{"tokens": 9, "unit": "Hours"}]}}]
    for told in _told(policy("p", "HTTPRoute/web", traffic={"rateLimit": {"conditional": entries}})):
        assert len(told) == 1
        assert "`traffic.rateLimit.local.tokens`" in told[0]


def test_inline_settings_and_backends_that_envoy_does_not_serve_are_found() -> None:
    def backend(name: str, **spec: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "shop"}
        version = "agentgateway.dev/v1alpha1"
        return {"apiVersion": version, "kind": "AgentgatewayBackend", "metadata": metadata, "spec": spec}

    tunnel = {"tunnel": {"backendRef": {"name": "one", "port": 80}}}
    static = {"host": "a.example", "port": 80, "policies": tunnel}
    objects = [
        backend("model", ai={"provider": {"gemini": {}}}),
        backend("whole", static={"host": "a.example", "port": 80}, policies=tunnel),
        backend("part", mcp={"targets": [{"name": "t", "static": static}]}),
    ]
    said: dict[str, str] = {}
    for finding in envoy_findings(Snapshot.of(load_objects(objects))):
        said[str(finding.reference).rpartition("/")[2]] = str(finding.message)
    assert set(said) == {"model", "whole", "part"}
    assert "provider gemini is not supported" in said["model"]
    assert "`backend.tunnel`" in said["whole"]
    assert "`backend.tunnel`" in said["part"]


def test_backends_that_only_agentgateway_serves_are_found() -> None:
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool", "port": 80}
    models = {"group": "agentgateway.dev", "kind": "AgentgatewayModel", "name": "*"}
    gpt = {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayModel",
        "metadata": {"name": "gpt", "namespace": "shop"},
        "spec": {"provider": "OpenAI", "parentRefs": [{"name": "edge"}]},
    }
    way = route("web", [{"backendRefs": [pool]}, {"backendRefs": [models]}])
    messages = [str(each.message) for each in envoy_findings(Snapshot.of(load_objects([gateway(), way, gpt])))]
    assert messages == [
        "Envoy does not serve InferencePool/shop/pool: requests to it are answered with 500",
        "Envoy does not serve AgentgatewayModel/shop/*: requests to it are answered with 500",
        "Envoy does not serve AgentgatewayModel/shop/gpt: no request gets to it",
    ]
