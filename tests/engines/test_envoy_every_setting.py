"""Every part of every setting changes Envoy's configuration, or it is said that it does not (docs/gateway.md).

What the changed configuration does is observed by the other tests of settings, on real requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.engines.test_envoy_settings_connections import CERTIFICATE, SECURE
from tests.worlds.gateway_settings import Object, gateway, route, service, to
from tests.worlds.setting_samples import NAMED, SAMPLES, Sample, changed, setting
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.gateway.model.enforcement import ENFORCEMENT, EnforcementState, unenforced
from tierwall.gateway.model.fields import CONDITIONAL, FIELDS, SECTIONS
from tierwall.resources.load import load_objects
from tierwall.resources.schema import Schema
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections

MESSAGES = ("listeners", "routes", "clusters", "secrets", "extension_configs")
# Fields for MCP servers and language models mean something only there.
BACKENDS: dict[str, Object] = {
    "host": {"static": {"host": "host.example", "port": 80}},
    "tools": {"mcp": {"targets": [{"name": "t", "static": {"host": "tools.example", "port": 80}}]}},
    "model": {"ai": {"provider": {"openai": {}}}},
}
MANIFESTS = [
    {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayBackend",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }
    for name, spec in BACKENDS.items()
]
REFS = [[{"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": name}] for name in BACKENDS]
WAY = route("web", [{"backendRefs": refs} for refs in (to("one"), *REFS)])


@cache
def _others(secure: bool) -> tuple[Object, ...]:
    listener = SECURE if secure else {}
    return gateway(**listener), service("one"), *MANIFESTS, WAY, CERTIFICATE, *NAMED


def compiled(field: str, value: Any, refused: str = "") -> tuple[dict[str, dict[str, bytes]], list[str]]:
    """The configuration with a setting on the Gateway, and what is said; `refused` are Envoy's words about it."""
    policy = setting("p", "Gateway/edge", field, value)
    snapshot = Snapshot.of(load_objects([*_others(field == "frontend.tls"), policy]))
    (resource,) = snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy")
    assert list(objections(snapshot, resource)) == []
    resources, _ = compile(snapshot, EnvoyOptions(), refused={resource.identity: refused} if refused else None)
    messages = {
        kind: {
            name: message.SerializeToString(deterministic=True) for name, message in getattr(resources, kind).items()
        }
        for kind in MESSAGES
    }
    # Nothing fails while it is compiled: the value was looked at before.
    assert [str(each.message) for each in resources.diagnostics if each.code == "TW661"] == []
    return messages, [str(each.message) for each in resources.diagnostics if each.code in ("TW662", "TW663")]


PARTS = [(sample, path) for sample in SAMPLES for path in sample.changes]


@pytest.mark.parametrize(("sample", "path"), PARTS, ids=[f"{sample.field}-{path}" for sample, path in PARTS])
def test_no_part_is_ignored_in_silence(sample: Sample, path: str) -> None:
    value = changed(sample.value, path, sample.changes[path])
    before, said_before = compiled(sample.field, sample.value)
    after, said = compiled(sample.field, value)
    is_said = said != said_before or (said and _is_said(sample, f"{sample.field}.{path}"))
    assert after != before or is_said


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.field for sample in SAMPLES])
def test_nothing_stays_of_a_policy_that_envoy_refuses(sample: Sample) -> None:
    """Otherwise Envoy would refuse the same filter again, and keep what it had before: routes without the policy."""
    closed, _ = compiled(sample.field, sample.value, refused="too large")
    other = "frontend.tls" if sample.field == "frontend.tls" else "traffic.timeouts"
    value = {"handshakeTimeout": "7s"} if other == "frontend.tls" else {"request": "7s"}
    assert closed == compiled(other, value, refused="too large")[0]


def _is_said(sample: Sample, path: str) -> bool:
    """Whether the table says that a part is not enforced, or nothing of the value that it is a part of is."""
    names = [name for name, rule in ENFORCEMENT.items() if rule.state is EnforcementState.NOT_ENFORCED]
    in_table = any(f"{path}.".startswith(f"{name}.") for name in names)
    return in_table or any(part.whole for part in unenforced(sample.field, sample.value))


def _leaves(schema: Schema, path: str) -> Iterator[str]:
    inner = [each for each in (schema.items or schema).properties if each.name != CONDITIONAL]
    for each in inner:
        yield from _leaves(each.schema, f"{path}.{each.name}")
    if not inner:
        yield path


def test_every_part_has_a_sample_or_a_row_that_says_why_not() -> None:
    covered = {f"{sample.field}.{path}" for sample, path in PARTS}
    covered |= {name for name, rule in ENFORCEMENT.items() if rule.state is EnforcementState.NOT_ENFORCED}
    missing = []
    for field in FIELDS:
        section, *keys = field.split(".")
        schema = SECTIONS[section].at(*keys)  # type: ignore[index]
        assert schema is not None
        for leaf in _leaves(schema, field):
            # The group and the kind of a reference only say what it may name.
            if not leaf.endswith(("Ref.group", "Ref.kind", "Refs.kind")):
                # The keys of a map are not parts.
                is_covered = any(f"{leaf}.".startswith(f"{path}.") or path.startswith(f"{leaf}.") for path in covered)
                missing += [] if is_covered else [leaf]
    assert missing == []
