"""Providers of language models behind a real Envoy: paths, keys, and what is closed (docs/gateway.md#backends)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.labs.settings_lab import SettingsLab, settings_lab
from tests.randomness import seeds
from tests.worlds.gateway_settings import Object, gateway, policy, route, secret
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
HERE = {"host": "models.example", "port": 80}
PATHS = ("/", "/v1", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/x/embeddings", "/v1beta")
SUFFIXES = ("/messages", "/count_tokens", "/v1/messages", "embeddings", "completions", "*", "a.b")
TYPES = ("Completions", "Messages", "Embeddings", "AnthropicTokenCount", "Responses", "Passthrough", "Detect", "Rerank")


def model(name: str, provider: Object, **policies: Any) -> Object:
    spec: Object = {"ai": {"provider": provider}, **({"policies": policies} if policies else {})}
    return {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayBackend",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }


def to(name: str, **more: Any) -> list[Object]:
    return [{"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": name, **more}]


def behind(backends: list[Object], **rule: Any) -> list[Object]:
    """A Gateway that leads to each backend by a host name of its own."""
    routes = [
        route(each["metadata"]["name"], [{"backendRefs": to(each["metadata"]["name"]), **rule}], hostnames=[host(each)])
        for each in backends
    ]
    return [gateway(), *backends, *routes]


def host(backend: Object) -> str:
    return f"{backend['metadata']['name']}.test"


def references(backends: list[Object]) -> tuple[str, ...]:
    return tuple(f"AgentgatewayBackend/shop/{each['metadata']['name']}" for each in backends)


KEY = {"auth": {"secretRef": {"name": "keys"}}}
OWN_HEADER = {"auth": {"key": "k", "location": {"header": {"name": "Authorization", "prefix": "Bearer "}}}}
MESSAGES = {"ai": {"routes": {"*": "Messages"}}}
BACKENDS = [
    model("openai", {"openai": {}}, **KEY),
    model("anthropic", {"anthropic": {}}, **KEY, **MESSAGES),
    model("own-header", {"anthropic": {}}, **OWN_HEADER, **MESSAGES),
    model("of-a-person", {"anthropic": {}}, auth={"key": "sk-ant-oat-1"}, **MESSAGES),
    model("no-secret", {"anthropic": {}}, auth={"secretRef": {"name": "gone"}}, **MESSAGES),
    model("untranslated", {"anthropic": {}}),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    objects = [*behind(BACKENDS), secret("keys", Authorization="Bearer our-key")]
    with settings_lab(objects, references(BACKENDS)) as running:
        yield running


def test_a_provider_gets_its_path_its_host_and_its_key(lab: SettingsLab) -> None:
    answer = lab.send("/any/path?a=b", "POST", b"{}", host="openai.test", authorization="Bearer mine")
    assert lab.backend.paths[-1] == "/v1/chat/completions?a=b"
    assert (answer.seen["host"], answer.seen["authorization"]) == ("api.openai.com", "Bearer our-key")


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("anthropic", {"x-api-key": "our-key"}),
        ("own-header", {"authorization": "Bearer k", "x-api-key": "mine"}),
        ("of-a-person", {"authorization": "Bearer sk-ant-oat-1"}),
        # A credential that is missing does not let the client's own through.
        ("no-secret", {}),
    ],
)
def test_anthropic_gets_keys_in_a_header_of_its_own(lab: SettingsLab, name: str, headers: dict[str, str]) -> None:
    given = {"authorization": "Bearer mine", "x_api_key": "mine", "anthropic_version": "old", "origin": "https://a"}
    seen = lab.send("/", "POST", b"{}", host=f"{name}.test", **given).seen
    assert {key: seen[key] for key in ("authorization", "x-api-key") if key in seen} == headers
    assert seen["anthropic-version"] == "2023-06-01"
    assert "origin" not in seen
    assert lab.backend.paths[-1] == "/v1/messages"


def test_what_needs_a_translation_is_closed(lab: SettingsLab) -> None:
    assert lab.send("/", "POST", b"{}", host="untranslated.test").status == 500
    said = "a request of type Completions (`backend.ai.routes`) to provider anthropic is not supported"
    assert sum(said in problem.message for problem in lab.diagnostics) == 1


# ---- Paths, against the reference.
def suffix(path: str) -> str:
    ends = {"Responses": "/responses", "Embeddings": "/embeddings", "Rerank": "/rerank", "Messages": "/messages"}
    return {**ends, "AnthropicTokenCount": "/messages/count_tokens"}.get(path, "/chat/completions")


def wanted(provider: Object, routes: Object, path: str, query: str) -> str | None:
    """Return the path at the provider; None if Envoy would have to translate."""
    fitting = [end for end in routes if end != "*" and path.endswith(end)]
    kind = routes[max(fitting, key=len)] if fitting else routes.get("*", "Completions")
    known = {
        "openai": ("Completions", "Responses", "Embeddings", "Rerank"),
        "anthropic": ("Messages", "AnthropicTokenCount"),
    }
    name = next(each for each in ("openai", "anthropic", "custom") if each in provider)
    formats = provider.get("custom", {}).get("formats", ())
    if kind not in ("Passthrough", "Detect", *known.get(name, [each["type"] for each in formats])):
        return None
    if "path" in provider:
        return f"{provider['path']}{query}"
    prefix = provider.get("pathPrefix", "").rstrip("/")
    if kind in ("Passthrough", "Detect"):
        rest = path[3:] if prefix and (path == "/v1" or path.startswith("/v1/")) else path
        return f"{prefix}{rest}{query}"
    if "host" in provider and not prefix and name != "custom":
        return f"{path}{query}"
    given = next((each["path"] for each in formats if each["type"] == kind and "path" in each), None)
    return f"{given or (prefix or '/v1') + suffix(kind)}{query}"


def some_provider(dice: Random) -> Object:
    kind = dice.choice(("openai", "anthropic", "custom"))
    types = dice.sample(("Completions", "Messages", "Embeddings"), 2)
    formats = [{"type": types[0]}, {"type": types[1], "path": f"/own/{types[1].lower()}"}]
    provider: Object = {kind: {"formats": formats} if kind == "custom" else {}}
    if kind == "custom" or dice.random() < 0.5:
        provider |= HERE
        if dice.random() < 0.5 and kind != "custom":
            provider["pathPrefix"] = dice.choice(("/api", "/api/v2/"))
    if "pathPrefix" not in provider and kind != "custom" and dice.random() < 0.2:
        provider["path"] = "/fixed"
    return provider


def test_random_providers_get_the_paths_of_the_reference() -> None:
    dice = Random(seeds(1)[0])
    drawn = []
    for number in range(40):
        routes = {end: dice.choice(TYPES) for end in dice.sample(SUFFIXES, dice.randint(0, 3))}
        drawn.append((some_provider(dice), routes, f"b{number}"))
    backends = [
        model(name, provider, **({"ai": {"routes": routes}} if routes else {})) for provider, routes, name in drawn
    ]
    refused = reached = 0
    with settings_lab(behind(backends), references(backends)) as running:
        for provider, routes, name in drawn:
            for path in PATHS:
                query = dice.choice(("", "?x=/messages", "?a"))
                expected = wanted(provider, routes, path, query)
                answer = running.send(f"{path}{query}", "POST", b"{}", host=f"{name}.test")
                assert answer.status == (500 if expected is None else 200), (provider, routes, path)
                if expected is None:
                    refused += 1
                else:
                    assert running.backend.paths[-1] == expected, (provider, routes, path, query)
                    reached += 1
    assert min(refused, reached) > 50


GUARD = {"request": [{"regex": {"matches": ["secret"], "action": "Reject"}}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"provider": {"openai": {"moderation": {}}}}, "`openai.moderation`"),
        ({"provider": {"gemini": {}}}, "provider gemini"),
        ({"provider": {"openai": {}, "path": "/v1/x?key=1"}}, "`path` with a query string"),
        ({"provider": {"openai": {}, "path": "/v1/x\r\nx-a: b"}}, "a control character in a path"),
        (
            {"provider": {"openai": {}, "host": "a", "port": 80, "pathPrefix": "/v1 HTTP/1.1"}},
            "a control character in a path",
        ),
        ({"provider": {"bedrock": {"region": "eu-west-1"}}}, "provider bedrock"),
        ({"groups": [{"providers": [{"name": name, "openai": {}} for name in "ab"]}]}, "with 2 providers"),
        (
            {"provider": {"openai": {}, "host": "127.0.0.1", "port": 80}},
            "host `127.0.0.1`, which is on the machine of Envoy,",
        ),
        (
            {"provider": {"custom": {"formats": [{"type": "Completions"}], "backendRef": {"name": "s", "port": 80}}}},
            "`custom.backendRef`",
        ),
    ],
)
def test_a_provider_that_envoy_does_not_serve_is_closed(spec: Object, words: str) -> None:
    closed = {**model("b", {}), "spec": {"ai": spec}}
    with settings_lab(behind([closed]), references([closed])) as running:
        assert running.send("/", "POST", b"{}", host="b.test").status == 500
        assert any(f"{words} is not supported" in problem.message for problem in running.diagnostics)


@pytest.mark.parametrize(
    "settings",
    [
        {"promptGuard": GUARD},
        {"prompt": {"prepend": [{"role": "system", "content": "be kind"}]}},
        {"transformations": [{"field": "max_tokens", "expression": "10"}]},
    ],
)
def test_what_judges_or_changes_messages_closes_its_target_alone(settings: Object) -> None:
    backends = [model("judged", {"openai": {}}), model("free", {"openai": {}})]
    judging = policy("p", "AgentgatewayBackend/judged", backend={"ai": settings})
    with settings_lab([*behind(backends), judging], references(backends)) as running:
        assert running.send("/", "POST", b"{}", host="judged.test").status == 500
        assert running.send("/", "POST", b"{}", host="free.test").status == 200


def test_a_path_that_is_rewritten_is_not_guessed() -> None:
    rewrite = {
        "type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/messages"}},
    }
    routes = {"/messages": "Messages", "*": "Passthrough"}
    backends = [model("read", {"anthropic": {}}, ai={"routes": routes}), model("whole", {"openai": {}})]
    with settings_lab(behind(backends, filters=[rewrite]), references(backends)) as running:
        assert running.send("/x", "POST", b"{}", host="read.test").status == 500
        assert running.send("/x", "POST", b"{}", host="whole.test").status == 200
        assert running.backend.paths[-1] == "/v1/chat/completions"


def test_a_provider_is_reached_over_tls_unless_the_backend_names_a_host() -> None:
    backends = [model("own", {"openai": {}}), model("elsewhere", {"openai": {}, **HERE})]
    resources, _ = compile(Snapshot.of(load_objects(behind(backends))), EnvoyOptions())
    clusters = {name.split("/")[3]: each for name, each in resources.clusters.items() if name.startswith("backend/")}
    address = clusters["own"].load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address
    assert (address.address, address.port_value) == ("api.openai.com", 443)
    assert clusters["own"].transport_socket.name == "envoy.transport_sockets.tls"
    assert clusters["elsewhere"].transport_socket.name == ""
