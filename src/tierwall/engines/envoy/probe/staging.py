"""Stages a question about gateway settings: the objects, changed so far that requests can show one field at a place.

A place may ask for a token, limit requests and set a timeout at once. To see one of them, all others are taken away:
fields are merged one by one, so that the merge of the one stays the same. Keys of tokens and passwords are replaced by
the test's own, because nobody else can sign for an issuer. Every policy gets other ones, so that the loser's are seen,
too. Backends are replaced by one that records.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND, GATEWAY, GATEWAY_API, SERVICE
from tierwall.attach.reach import RouteRule
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.engines.envoy.config.agentgateway_backends import backend_target
from tierwall.engines.envoy.config.settings import authentication
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.gateway.model.fields import CONDITIONAL, Phase, PolicyField, fields_written_by
from tierwall.gateway.model.places import RequestPlace
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood

MCP_RULES = "backend.mcp.authorization"
RECORDER = "tierwall-recorder"
_PROBE = "tierwall-probe"
_LIFETIME_S = 3600


class StagedRule(NamedTuple):
    """A rule on a listener that stands for the place of a question."""

    gateway: Resource
    listener: Listener
    # The rules that delegate to it, and the rule itself.
    chain: tuple[RouteRule, ...]
    # The backend that the question names, and the part of it.
    backend: Resource | None = None
    section: str = ""

    @property
    def route(self) -> Resource:
        """The route of the rule."""
        return self.chain[-1].route


class StagedSnapshot:
    """The objects for one field in one phase, and what only the test knows of them."""

    def __init__(self, snapshot: Snapshot, field: PolicyField, phase: Phase) -> None:
        self._original = snapshot
        self._field = field
        self._phase = phase
        self._signing_keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        dropped = [resource for key in (*ACCESS_POLICIES, *GATEWAY_POLICIES) for resource in snapshot.of_kind(*key)]
        kept = [policy for key in GATEWAY_POLICIES for policy in map(self._policy, snapshot.of_kind(*key)) if policy]
        self._snapshot = snapshot.with_changes(drop=dropped).with_changes(kept)

    @property
    def snapshot(self) -> Snapshot:
        """The changed objects, with the rules that were added so far."""
        return self._snapshot

    def _policy(self, policy: Resource) -> Resource | None:
        """Return a policy with only the field; None if it does not set it. One that is refused stays as it is."""
        if not is_understood(self._original, policy):
            return policy
        section = self._field.section
        if not any(written.field is self._field for written in fields_written_by(policy, section, self._phase)):
            return None
        settings = policy.spec[section]
        outer = self._field.keys[0]
        value = settings[outer]
        if self._field.part and CONDITIONAL not in value:
            value = {self._field.part: value[self._field.part]}
        kept = {key: settings[key] for key in ("phase",) if key in settings}
        targets = {key: policy.spec[key] for key in ("targetRefs", "targetSelectors", "strategy") if key in policy.spec}
        spec = {**targets, section: {**kept, outer: self._with_own_keys(policy, value)}}
        return _changed(policy, spec)

    def _with_own_keys(self, policy: Resource, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a setting with keys and passwords of the test, if Envoy can enforce it as it is."""
        try:
            match self._field.path:
                case "traffic.jwtAuthentication":
                    authentication.token_requirement(self._original, policy, value)
                    return {**value, "providers": [self._provider(provider) for provider in value["providers"]]}
                case "traffic.basicAuthentication":
                    authentication.basic_users(self._original, policy, value, self._phase)
                    rest = {key: item for key, item in value.items() if key not in ("users", "secretRef")}
                    return {**rest, "users": [f"tierwall:{{SHA}}{_sha1(password_of(policy))}"]}
        except Unenforceable:
            pass
        return value

    def _provider(self, provider: Mapping[str, Any]) -> Mapping[str, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.public_key().public_numbers()
        x, y = (_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        text = json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "x": x, "y": y}]})
        self._signing_keys[text] = key
        return {**provider, "jwks": {"inline": text}}

    def token(self, provider: Mapping[str, Any]) -> str:
        """Return a token that a provider accepts."""
        key = self._signing_keys[provider["jwks"]["inline"]]
        claims = {"iss": provider["issuer"], "exp": int(time.time()) + _LIFETIME_S}
        if provider.get("audiences"):
            claims["aud"] = provider["audiences"][0]
        head, body = (_base64url(json.dumps(part).encode()) for part in ({"alg": "ES256"}, claims))
        r, s = decode_dss_signature(key.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())))
        return f"{head}.{body}.{_base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def _server(self, place: RequestPlace, route: Resource) -> Mapping[str, Any]:
        """Return a reference to the MCP server of a place, which has nothing but its rules."""
        backend = place.backend
        if backend is None or (backend.group, backend.kind) != BACKEND or isinstance(backend_target(backend), str):
            return {"name": RECORDER, "port": 80}
        rules = nested_map(backend.spec, "policies", "mcp").get("authorization")
        policies = {"policies": {"mcp": {"authorization": rules}}} if rules is not None else {}
        targets: Sequence[Mapping[str, Any]] = list_of_maps(nested_map(backend.spec, "mcp").get("targets"))
        # Only the server that the question names is asked, by its own names.
        named = (target for target in targets if target.get("name") == place.section)
        target = next(named, next(iter(targets), {}))
        static = {key: text for key, text in nested_map(target, "static").items() if key != "policies"}
        served = {"mcp": {"targets": [{"name": target.get("name"), "static": static}]}} if target else {}
        self._snapshot = self._snapshot.with_changes([_changed(backend, {**(served or backend.spec), **policies})])
        if backend.namespace != route.namespace:
            source = {"group": route.group, "kind": route.kind, "namespace": route.namespace}
            grant = {"from": [source], "to": [{"group": backend.group, "kind": backend.kind}]}
            made = _object(
                GATEWAY_API, "v1beta1", "ReferenceGrant", backend.namespace, f"{_PROBE}-{route.namespace}", grant
            )
            self._snapshot = self._snapshot.with_changes([made])
        return {"group": backend.group, "kind": backend.kind, "name": backend.name, "namespace": backend.namespace}

    def add(self, place: RequestPlace) -> StagedRule:
        """Add a rule for a place. What the question does not name gets a name that no policy names."""
        gateway = place.gateway
        if gateway is None:
            namespace = next((part.namespace for part in place.objects), "default")
            gateway = _object(GATEWAY_API, "v1", "Gateway", namespace, _PROBE, {"listeners": []})
            gateway = self._snapshot.get(*GATEWAY, namespace, _PROBE) or gateway
        owner = place.listener_set or gateway
        listener = place.listener or Listener(owner, 0, _PROBE, 0, "HTTP", "", {})
        rules = list(list_of_maps(place.route.spec.get("rules"))) if place.route is not None else []
        # The last rule is for questions that name no rule.
        number = place.rule if place.rule is not None else len(rules)
        route = place.route or _object(GATEWAY_API, "v1", "HTTPRoute", gateway.namespace, _PROBE, {"parentRefs": []})
        to_recorder: list[Mapping[str, Any]] = [{"name": RECORDER, "port": 80}]
        if self._field.path == MCP_RULES:
            to_recorder = [self._server(place, route)]
        staged = [{**rule, "backendRefs": to_recorder} for rule in (*rules, {})]
        route = _changed(route, {**route.spec, "rules": staged})
        recorder = _object("", "v1", "Service", route.namespace, RECORDER, {"ports": [{"port": 80}]})
        known = self._snapshot.get(*SERVICE, route.namespace, RECORDER)
        self._snapshot = self._snapshot.with_changes([gateway, route, recorder if known is None else known])
        return StagedRule(gateway, listener, (*place.parents, RouteRule(route, number)), place.backend, place.section)


def password_of(policy: Resource) -> str:
    """Return the password that stands for those of a policy."""
    return f"password of {policy.reference}"


def _changed(resource: Resource, spec: Mapping[str, Any]) -> Resource:
    value = {**resource.value, "spec": dict(spec)}
    return Resource(
        resource.group, resource.version, resource.kind, resource.namespace, resource.name, value, resource.origin
    )


def _object(group: str, version: str, kind: str, namespace: str, name: str, spec: Mapping[str, Any]) -> Resource:
    written = f"{group}/{version}" if group else version
    metadata = {"name": name, "namespace": namespace}
    value = {"apiVersion": written, "kind": kind, "metadata": metadata, "spec": dict(spec)}
    return Resource(group, version, kind, namespace, name, value)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _sha1(text: str) -> str:
    return base64.b64encode(hashlib.sha1(text.encode(), usedforsecurity=False).digest()).decode()


def values_of(values: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """Return the items of a list that several values have."""
    return [item for value in values for item in value.get(key) or ()]
