"""Compiling to Envoy: equal bytes for equal objects, closed in case of doubt, and only changes change anything."""

from __future__ import annotations

import base64
import datetime
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from envoy.config.rbac.v3 import rbac_pb2
from google.protobuf import json_format

from tests.labs.envoy_attacks import GATEWAY_API, NETWORKING, calls, objects, policy
from tests.labs.envoy_passed import Policy, passed
from tests.worlds.tool_objects import manifest
from tierwall.cli.envoy import compile as command
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, compile
from tierwall.engines.envoy.config.options import Denial, DenialDetail, EnvoyOptions, SocketAddress
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

Object = dict[str, Any]


OPTIONS = EnvoyOptions()


def compiled(extra: Sequence[Object] = (), options: EnvoyOptions = OPTIONS) -> XdsResources:
    return following(extra, CompileState(), options)[0]


def following(
    extra: Sequence[Object], state: CompileState, options: EnvoyOptions = OPTIONS
) -> tuple[XdsResources, CompileState]:
    return compile(Snapshot.of(load_objects([*objects(), *extra])), options, state)


KINDS = ("listeners", "routes", "clusters", "secrets", "extension_configs")


def wire(resources: XdsResources) -> dict[str, dict[str, bytes]]:
    return {
        kind: {
            name: message.SerializeToString(deterministic=True) for name, message in getattr(resources, kind).items()
        }
        for kind in KINDS
    }


def policies(resources: XdsResources, route: str) -> tuple[Policy, ...]:
    """Return the policies that requests of a route pass."""
    return passed(resources.routes, resources.extension_configs)[f"* {route}"].policies


def contents(resources: XdsResources) -> dict[str, Any]:
    """Return what requests pass, by route, without checkpoint names."""
    ways = passed(resources.routes, resources.extension_configs)
    return {name: way.content for name, way in ways.items()}


def codes(resources: XdsResources) -> list[str]:
    return [diagnostic.code for diagnostic in resources.diagnostics]


def test_the_order_of_objects_does_not_change_a_byte() -> None:
    listed = objects()
    first = wire(compile(Snapshot.of(load_objects(listed)), OPTIONS)[0])
    for seed in range(5):
        random.Random(seed).shuffle(listed)
        assert wire(compile(Snapshot.of(load_objects(listed)), OPTIONS)[0]) == first


def test_the_order_of_keys_does_not_change_a_byte() -> None:
    """API servers send the keys of an object in an order of their own."""
    sorted_keys = json.loads(json.dumps(objects(), sort_keys=True))
    assert json.dumps(sorted_keys) != json.dumps(objects())
    first, second = (
        wire(compile(Snapshot.of(load_objects(listed)), OPTIONS)[0]) for listed in (objects(), sorted_keys)
    )
    assert first == second


def test_policies_are_in_filters_that_routes_turn_on_and_never_in_listeners() -> None:
    before = compiled()
    after = compiled([policy("another", "mcp", [calls("sub")]), policy("yet-another", "open", [calls("sub")])])
    assert wire(before)["listeners"] == wire(after)["listeners"]
    assert wire(before)["clusters"] == wire(after)["clusters"]
    assert wire(before)["routes"] != wire(after)["routes"]
    assert wire(before)["extension_configs"] != wire(after)["extension_configs"]
    for resources in (before, after):
        assert "XAccessPolicy" not in str(resources.routes)


def test_an_unchanged_message_is_the_same_object() -> None:
    first, state = following([], CompileState())
    again, state = following([], state)
    for kind in KINDS:
        before, after = getattr(first, kind), getattr(again, kind)
        assert all(after[name] is message for name, message in before.items())
    changed, _ = following([policy("another", "mcp", [calls("sub")])], state)
    assert all(changed.listeners[name] is listener for name, listener in first.listeners.items())


def test_a_changed_policy_leaves_routes_and_listeners_unplanned() -> None:
    """They take twenty times as long as the policy: 1,000 policies on 200 routes, 84 ms instead of 4."""
    _, before = following([policy("another", "mcp", [calls("sub")])], CompileState())
    _, after = following([policy("another", "mcp", [calls("other")])], before)
    assert after.served is before.served is not None
    assert after.usable is before.usable


def test_a_state_only_changes_checkpoint_names() -> None:
    state = CompileState()
    versions = [
        [],
        [policy("another", "mcp", [calls("sub")])],
        [policy("another", "mcp", [calls("other")])],
        [policy("another", "mcp", [{"authorization": {"type": "Nonsense"}}])],
        [policy("lists", "mcp", [calls("add", "sub")])],
        [],
    ]
    for extra in versions:
        kept, state = following(extra, state)
        fresh = compiled(extra)
        assert {**wire(kept), "routes": 0, "extension_configs": 0} == {
            **wire(fresh),
            "routes": 0,
            "extension_configs": 0,
        }
        assert contents(kept) == contents(fresh)
        assert kept.diagnostics == fresh.diagnostics


def test_policies_are_in_the_order_of_the_proposal() -> None:
    older = policy("zz", "mcp", [calls("add")])
    older["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    first, second = policies(compiled([older]), "prod/mcp/0/0/mcp")
    assert first.slot < second.slot
    assert b"XAccessPolicy/prod/zz" in first.decision.SerializeToString()
    assert b"XAccessPolicy/prod/lists" in second.decision.SerializeToString()


def test_an_invalid_policy_denies_everything_on_its_target() -> None:
    bad = policy("bad", "open", [{"authorization": {"type": "Nonsense"}}])
    (only,) = policies(compiled([bad]), "prod/open/0/0/mcp")
    action = rbac_pb2.Action.FromString(only.decision.action.typed_config.value)
    assert (action.name, action.action) == ("XAccessPolicy/prod/bad", rbac_pb2.RBAC.DENY)


def test_an_expression_that_envoy_cannot_evaluate_is_reported_and_never_matches() -> None:
    rule = {"authorization": {"type": "CEL", "cel": {"expression": "request.mcp.tool_name.lowerAscii() == 'x'"}}}
    resources = compiled([policy("hard", "open", [rule])])
    assert "TW651" in codes(resources)
    (compiled_policy,) = policies(resources, "prod/open/0/0/mcp")
    assert b"hard rules[0]" not in compiled_policy.decision.SerializeToString()


def test_a_pattern_that_is_too_large_for_envoy_is_reported_and_never_matches() -> None:
    paths = [{"type": "RegularExpression", "value": "/(a|b|c|dd|ee|ffff){20,40}x"}]
    rules = [{"authorization": {"type": "Inline", "paths": paths}}]
    resources = compiled([policy("large", "open", rules)])
    assert "TW651" in codes(resources)
    assert "TW651" not in codes(compiled([policy("large", "open", rules)], EnvoyOptions(max_program_size=100_000)))


def test_requests_for_a_missing_authorizer_are_denied() -> None:
    asks: dict[str, Any] = {
        "action": "ExternalAuth",
        "externalAuth": {"protocol": "HTTP", "http": {}, "backendRef": {"name": "missing", "port": 80}},
    }
    resources = compiled([policy("lost", "open", [calls("add")], **asks)])
    assert "TW652" in codes(resources)
    (compiled_policy,) = policies(resources, "prod/open/0/0/mcp")
    assert b"XAccessPolicy/prod/lost" in compiled_policy.decision.SerializeToString()
    assert compiled_policy.asked is None


def test_a_route_without_policies_reads_mcp_but_refuses_nothing() -> None:
    assert policies(compiled(), "prod/open/0/0") == ()


def test_weighted_backends_have_their_own_policies() -> None:
    refs = [{"group": NETWORKING, "kind": "XBackend", "name": name, "weight": 3} for name in ("mcp", "open")]
    route = manifest(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        "both",
        {
            "parentRefs": [{"name": "gate"}],
            "rules": [{"matches": [{"path": {"value": "/both"}}], "backendRefs": refs}],
        },
    )
    (configuration,) = compiled([route]).routes.values()
    (to_both,) = [route for route in configuration.virtual_hosts[0].routes if route.name == "prod/both/0/0/mcp"]
    guarded, free = to_both.route.weighted_clusters.clusters
    assert any(name.startswith("tierwall.backend.") for name in guarded.typed_per_filter_config)
    assert not free.typed_per_filter_config
    assert guarded.weight.value == 3


def test_an_unsupported_filter_closes_its_rule() -> None:
    route = manifest(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        "mirrored",
        {
            "parentRefs": [{"name": "gate"}],
            "rules": [
                {
                    "matches": [{"path": {"value": "/mirrored"}}],
                    "filters": [
                        {
                            "type": "ExtensionRef",
                            "extensionRef": {"group": "example.org", "kind": "Filter", "name": "x"},
                        }
                    ],
                    "backendRefs": [{"group": NETWORKING, "kind": "XBackend", "name": "open"}],
                }
            ],
        },
    )
    resources = compiled([route])
    assert "TW655" in codes(resources)
    (configuration,) = resources.routes.values()
    (mirrored,) = [route for route in configuration.virtual_hosts[0].routes if route.name.startswith("prod/mirrored")]
    assert mirrored.direct_response.status == 500


def filtered(kind: str, /, **value: Any) -> Object:
    """Return a rule with a filter."""
    return {"filters": [{"type": kind, kind[:1].lower() + kind[1:] if kind != "CORS" else "cors": value}]}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (filtered("ExtensionRef", group="x", kind="Filter", name="y"), "AgentgatewayPolicy"),
        (filtered("RequestHeaderModifier", remove=["hOST"]), "URLRewrite with `hostname`"),
        (filtered("RequestHeaderModifier", set=[{"name": "Mcp-Name", "value": "refund"}]), "leave it out"),
        (filtered("ResponseHeaderModifier", set=[{"name": "Content-Length", "value": "1"}]), "leave it out"),
        ({"matches": [{"path": {"type": "RegularExpression", "value": "(/a{500}){500}"}}]}, "shorter pattern"),
        (filtered("CORS", allowOrigins=["*"], allowCredentials=True, exposeHeaders=["*"]), "name the headers"),
        ({"sessionPersistence": {"sessionName": "s"}}, "let servers share sessions"),
    ],
)
def test_a_hint_says_what_to_write_instead(rule: Object, words: str) -> None:
    backend = {"group": NETWORKING, "kind": "XBackend", "name": "open"}
    spec = {"parentRefs": [{"name": "gate"}], "rules": [{"backendRefs": [backend], **rule}]}
    route = manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "closed", spec)
    [problem] = [each for each in compiled([route]).diagnostics if each.code == "TW655"]
    assert words in (problem.hint or "")


def https(name: str, **tls: Any) -> Object:
    listener = {"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": name}]}}
    spec = {"gatewayClassName": "c", "listeners": [listener], **({"tls": tls} if tls else {})}
    return manifest("gateway.networking.k8s.io/v1", "Gateway", "secure", spec)


def secret(name: str, chain: bytes, key: bytes) -> Object:
    data = {"tls.crt": base64.b64encode(chain).decode(), "tls.key": base64.b64encode(key).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "prod"},
        "type": "kubernetes.io/tls",
        "data": data,
    }


FRONTEND = {"default": {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "callers"}]}}}


def authority_map(pem: bytes) -> Object:
    metadata = {"name": "callers", "namespace": "prod"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": pem.decode()}}


def test_certificates_come_from_secrets_and_authorities_from_config_maps() -> None:
    authority = CertificateAuthority()
    server = authority.server()
    resources = compiled([https("cert", frontend=FRONTEND), secret("cert", *server), authority_map(authority.pem)])
    assert codes(resources) == []
    authorities, certificate = resources.secrets
    assert (authorities, certificate) == tuple(
        f"{kind}/gateway/prod/secure/443/5x1+4s9/*" for kind in ("authority", "certificate")
    )
    assert resources.secrets[certificate].tls_certificate.private_key.inline_bytes == server.key
    assert "gateway/prod/secure/443" in resources.listeners


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", "Secret/prod/cert does not exist"),
        ("other key", "`tls.key` is not the key of `tls.crt`"),
        ("no pem", "`tls.crt` is not a PEM certificate"),
        ("no key", "`tls.key` is not an unencrypted PEM private key"),
        ("no authority", "ConfigMap/prod/callers does not exist"),
    ],
)
def test_a_listener_whose_certificate_cannot_be_used_is_not_opened(damage: str, words: str) -> None:
    authority = CertificateAuthority()
    pair, other = authority.server(), authority.server()
    chain = b"nonsense" if damage == "no pem" else pair.chain
    key = {"other key": other.key, "no key": b""}.get(damage, pair.key)
    extra = [https("cert", frontend=FRONTEND)]
    extra += [] if damage == "missing" else [secret("cert", chain, key)]
    extra += [] if damage == "no authority" else [authority_map(authority.pem)]
    resources = compiled(extra)
    assert codes(resources) == ["TW653"]
    assert words in resources.diagnostics[0].message
    assert "gateway/prod/secure/443" not in resources.listeners


def test_a_listener_without_an_authority_is_reported() -> None:
    resources = compiled([https("cert"), secret("cert", *CertificateAuthority().server())])
    assert codes(resources) == ["TW654"]


def test_two_gateways_do_not_share_a_port() -> None:
    twin = next(gateway for gateway in objects() if gateway["kind"] == "Gateway")
    twin = {**twin, "metadata": {"name": "twin", "namespace": "prod"}}
    resources = compiled([twin])
    assert codes(resources) == ["TW658"]
    assert list(resources.listeners) == ["gateway/prod/gate/80"]
    bound = compiled([twin], EnvoyOptions(bind={"prod/twin:80": SocketAddress("127.0.0.1", 81)}))
    assert codes(bound) == []
    assert len(bound.listeners) == 2


def test_a_port_stays_with_the_gateway_that_has_it() -> None:
    twin = next(gateway for gateway in objects() if gateway["kind"] == "Gateway")
    older = {**twin, "metadata": {"name": "a", "namespace": "a", "creationTimestamp": "2001-01-01T00:00:00Z"}}
    assert list(compiled([older]).listeners) == ["gateway/a/a/80"], "at a start the older one gets it"
    bound = EnvoyOptions(bind={"prod/gate:80": SocketAddress("0.0.0.0", 80)})
    assert list(compiled([older], bound).listeners) == ["gateway/prod/gate/80"], "unless options give it to another"
    _, state = following([], CompileState())
    later, state = following([older], state)
    assert list(later.listeners) == ["gateway/prod/gate/80"]
    [problem] = later.diagnostics
    assert (problem.code, str(problem.reference)) == ("TW658", "Gateway/a/a")
    again, state = following([older], state)
    assert list(again.listeners) == ["gateway/prod/gate/80"]
    without = [each for each in [*objects(), older] if each["metadata"]["name"] != "gate"]
    moved, state = compile(Snapshot.of(load_objects(without)), OPTIONS, state)
    assert list(moved.listeners) == ["gateway/a/a/80"]
    assert list(following([older], state)[0].listeners) == ["gateway/a/a/80"]


def test_a_gateway_with_an_error_keeps_its_port() -> None:
    """Otherwise another could take its place, and its callers, while it is being repaired."""
    twin = next(gateway for gateway in objects() if gateway["kind"] == "Gateway")
    older = {**twin, "metadata": {"name": "a", "namespace": "a"}}
    _, state = following([], CompileState())
    broken = [
        {**each, "spec": {**each["spec"], "gatewayClassName": 5}} if each["metadata"]["name"] == "gate" else each
        for each in objects()
    ]
    resources, state = compile(Snapshot.of(load_objects([*broken, older])), OPTIONS, state)
    assert list(resources.listeners) == []
    assert {"TW103", "TW658"} <= set(codes(resources))
    assert list(following([older], state)[0].listeners) == ["gateway/prod/gate/80"]


def gateway_with(*listeners: dict[str, Any]) -> Object:
    spec = {
        "gatewayClassName": "c",
        "listeners": [{"port": 90, "protocol": "HTTP", **listener} for listener in listeners],
    }
    return manifest("gateway.networking.k8s.io/v1", "Gateway", "many", spec)


@pytest.mark.parametrize(
    ("spec", "port"),
    [
        ({"ports": [{"port": 80, "targetPort": 9000}]}, 80),
        ({"clusterIP": "None", "ports": [{"port": 80, "targetPort": 9000}]}, 9000),
        ({"clusterIP": "None", "ports": [{"port": 80}]}, 80),
        # Each pod may have another number under this name, and DNS does not tell.
        ({"clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}]}, 80),
    ],
)
def test_the_pods_of_a_headless_service_are_reached_at_their_own_port(spec: Object, port: int) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "prod"}, "spec": spec}
    reference = {"backendRefs": [{"name": "s", "port": 80}]}
    route = manifest(f"{GATEWAY_API}/v1", "HTTPRoute", "s", {"parentRefs": [{"name": "gate"}], "rules": [reference]})
    clusters = compiled([service, route]).clusters
    # The Service itself, and a backend that names it.
    for name in ("service/prod/s/80", f"backend/{NETWORKING}/prod/mcp"):
        [endpoint] = clusters[name].load_assignment.endpoints[0].lb_endpoints
        assert endpoint.endpoint.address.socket_address.port_value == port, name


def test_listeners_on_one_port_differ_by_host_or_are_not_served() -> None:
    apart = compiled([gateway_with({"name": "a"}, {"name": "b", "hostname": "b.test"})])
    assert codes(apart) == []
    assert list(apart.routes) == ["gateway/prod/gate/80/5x1+4s9", "gateway/prod/many/90/5x1+4s9"]
    gateway = gateway_with({"name": "a", "hostname": "a.test"})
    gateway["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    spec = {
        "parentRef": {"name": "many"},
        "listeners": [{"name": "b", "port": 90, "protocol": "HTTP", "hostname": "a.test"}],
    }
    alike = compiled([gateway, manifest("gateway.networking.k8s.io/v1", "ListenerSet", "more", spec)])
    assert codes(alike) == ["TW658"]
    mixed = compiled([gateway_with({"name": "a"}, {"name": "b", "protocol": "HTTPS", "hostname": "b.test"})])
    assert codes(mixed) == ["TW658"]


def test_listener_sets_of_both_kinds_with_one_name_have_separate_routes() -> None:
    gateway = gateway_with({"name": "own"})
    gateway["spec"]["allowedListeners"] = {"namespaces": {"from": "Same"}}
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "many"}
    sets = [
        manifest(
            api, kind, "more", {"parentRef": parent, "listeners": [{"name": "web", "port": port, "protocol": "HTTP"}]}
        )
        for api, kind, port in (
            ("gateway.networking.k8s.io/v1", "ListenerSet", 91),
            ("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet", 92),
        )
    ]
    resources = compiled([gateway, *sets])
    ports = {name.split("/")[3] for name in resources.routes if name.startswith("gateway/prod/many/")}
    assert ports == {"90", "91", "92"}


def test_only_the_chosen_gateways_are_served() -> None:
    assert not compiled(options=EnvoyOptions(gateways=frozenset(("prod/other",)))).listeners


def test_denials_reveal_what_the_options_say() -> None:
    listeners = str(compiled().listeners)
    secretive = str(compiled(options=EnvoyOptions(reveal=DenialDetail.NOTHING)).listeners)
    assert "%CEL(response.code_details" in listeners
    assert "%CEL(response.code_details" not in secretive
    assert str(compiled(options=EnvoyOptions(denial=Denial.HTTP)).listeners) != listeners


def test_the_command_prints_the_configuration_without_keys(tmp_path: Any) -> None:
    server = CertificateAuthority().server()
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([*objects(), https("cert"), secret("cert", *server)]))
    result = CliRunner().invoke(command, ["-f", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert {listener["name"] for listener in printed["listeners"]} == {
        "gateway/prod/gate/80",
        "gateway/prod/secure/443",
    }
    assert base64.b64encode(server.key).decode() not in result.stdout
    assert "PRIVATE KEY" not in result.stdout
    # The generated messages lack the field that makes the parser strict, but it is in force.
    assert '"reject_duplicate_keys": true' in result.stdout
    assert '"path": "params.arguments.path"' in result.stdout
    as_yaml = CliRunner().invoke(command, ["-f", str(file)])
    assert yaml.safe_load(as_yaml.stdout) == printed


def test_the_command_suggests_a_similar_gateway(tmp_path: Any) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(objects()))
    result = CliRunner().invoke(command, ["-f", str(file), "--gateway", "prod/gat"])
    assert result.exit_code == 1
    assert "prod/gate" in result.stderr


def test_every_message_has_a_schema_in_envoy() -> None:
    for kind in wire(compiled()).values():
        assert all(isinstance(message, bytes) for message in kind.values())
    for listener in compiled().listeners.values():
        json_format.MessageToDict(listener)


def test_an_expired_certificate_is_left_to_envoy() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(past).not_valid_after(past + datetime.timedelta(days=1))
    chain = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert "gateway/prod/secure/443" in compiled([https("cert"), secret("cert", chain, pem)]).listeners


@pytest.mark.parametrize(
    "matchers",
    [
        # Tierwall's own headers do not come from the caller.
        {"headers": [{"name": "X-Tierwall-Caller", "value": "spiffe://cluster.local/ns/prod/sa/agent"}]},
        # Envoy would read the letter as two.
        {"headers": [{"name": "x-name", "type": "RegularExpression", "value": "[äö]"}]},
    ],
)
def test_a_matcher_that_envoy_would_read_differently_is_reported_and_never_matches(matchers: Object) -> None:
    resources = compiled([policy("hard", "open", [{"authorization": {"type": "Inline", **matchers}}])])
    assert "TW651" in codes(resources)
    (compiled_policy,) = policies(resources, "prod/open/0/0/mcp")
    assert b"hard rules[0]" not in compiled_policy.decision.SerializeToString()
