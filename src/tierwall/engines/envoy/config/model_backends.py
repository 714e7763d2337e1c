"""Language models as backends: the host of a provider, and the paths of its API (agentgateway, "LLM providers").

The suffix of a request's path says what it is (`backend.ai.routes`); without routes, everything is a chat completion.
Envoy sends on what the provider understands itself, and does not translate: other requests are answered with 500. It
does not judge contents, so a provider that does is not served.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.paths import UNSENDABLE_PATH, is_sendable, replace_path
from tierwall.engines.envoy.config.patterns import escaped, pattern_problem
from tierwall.resources.resource import Resource, list_of_maps, nested_map

_BASE = "/v1"
# What a provider understands, with the end of its path.
_OPENAI = {
    "Completions": "/chat/completions",
    "Responses": "/responses",
    "Embeddings": "/embeddings",
    "Rerank": "/rerank",
}
_ANTHROPIC = {"Messages": "/messages", "AnthropicTokenCount": "/messages/count_tokens"}
_UNCHANGED = ("Passthrough", "Detect")
_DEFAULT, _EVERY_PATH = "Completions", "*"
_HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
ANTHROPIC = "anthropic"
# How the problem of a request begins that Envoy would have to translate.
OF_TYPE = "a request of type"
# What routes and the script need of `backend.ai`.
OF_MODELS = tuple(f"backend.ai.{name}" for name in ("routes", "defaults", "overrides", "modelAliases"))


class PathChange(NamedTuple):
    """The change of the path of a request that ends with a suffix."""

    suffix: str = ""
    # The path instead; empty to keep it.
    path: str = ""
    # What replaces `/v1` at the beginning, or comes before everything else.
    prefix: str = ""
    # Why these requests are answered with 500, or an empty string.
    problem: str = ""
    # Whether their bodies are not read.
    passes: bool = False

    @property
    def pattern(self) -> str:
        """A pattern of the paths, with their query strings."""
        return rf"[^?]*{escaped(self.suffix)}(?:\?.*)?"

    def apply(self, action: Any) -> None:
        """Have requests go to the path, after everything else that changes it."""
        if self.path:
            replace_path(action, self.path)
        elif self.prefix:
            action.regex_rewrite.pattern.regex = rf"^(?:{_BASE}(/[^?]*|)|(/[^?]*))(\?|$)"
            literal = self.prefix.replace("\\", "\\\\")
            action.regex_rewrite.substitution = rf"{literal}\1\2\3"


class ModelBackend(NamedTuple):
    """A provider of language models: its name in the backend, its kind, and where it is."""

    section: str
    kind: str
    value: Mapping[str, Any]

    @property
    def host(self) -> str:
        """The host of its own API; empty if the backend names another."""
        return "" if "host" in self.value else _HOSTS.get(self.kind, "")

    def path_changes(self, routes: Mapping[str, Any]) -> tuple[PathChange, ...]:
        """Return what becomes of paths, the most specific suffix first; `routes` are those of `backend.ai`."""
        suffixes = sorted((suffix for suffix in routes if suffix != _EVERY_PATH), key=lambda text: (-len(text), text))
        changes = [self._change(suffix, str(routes[suffix])) for suffix in suffixes]
        return *changes, self._change("", str(routes.get(_EVERY_PATH, _DEFAULT)))

    def _change(self, suffix: str, kind: str) -> PathChange:
        ends = self._paths
        if kind not in _UNCHANGED and kind not in ends:
            return PathChange(suffix, problem=f"{OF_TYPE} {kind} (`backend.ai.routes`) to provider {self.kind}")
        path, prefix = self.value.get("path"), str(self.value.get("pathPrefix") or "").rstrip("/")
        given = next((each.get("path") for each in self._formats if each.get("type") == kind), None)
        if not all(is_sendable(each or "") for each in (path, prefix, given)):
            return PathChange(suffix, problem=UNSENDABLE_PATH)
        passes = kind in _UNCHANGED
        if isinstance(path, str):
            problem = "`path` with a query string" if "?" in path else ""
            return PathChange(suffix, path, problem=problem, passes=passes)
        if passes:
            return PathChange(suffix, prefix=prefix, passes=True)
        if "host" in self.value and not prefix and self.kind != "custom":
            return PathChange(suffix)
        return PathChange(suffix, str(given) if given else f"{prefix or _BASE}{ends[kind]}")

    @property
    def model(self) -> str:
        """The model that it uses, whatever requests ask for; empty if they choose it."""
        return str(nested_map(self.value, self.kind).get("model") or "")

    @property
    def _formats(self) -> Iterator[Mapping[str, Any]]:
        yield from list_of_maps(nested_map(self.value, "custom").get("formats"))

    @property
    def _paths(self) -> Mapping[str, str]:
        if self.kind == "custom":
            every, known = {**_OPENAI, **_ANTHROPIC}, {str(each.get("type")) for each in self._formats}
            return {name: path for name, path in every.items() if name in known}
        return _ANTHROPIC if self.kind == ANTHROPIC else _OPENAI


def model_provider(backend: Resource) -> ModelBackend | str:
    """Return the provider of a backend, or the part of it that Envoy does not serve."""
    ai = nested_map(backend.spec, "ai")
    section, provider = "backend", nested_map(ai, "provider")
    if "groups" in ai:
        providers = [each for group in list_of_maps(ai["groups"]) for each in list_of_maps(group.get("providers"))]
        if len(providers) != 1:
            return f"`spec.ai.groups` with {len(providers)} providers"
        section, provider = str(providers[0].get("name")), providers[0]
    kind = next((name for name in ("openai", ANTHROPIC, "custom") if name in provider), "")
    if not kind:
        others = sorted(key for key in provider if isinstance(provider[key], dict) and key != "policies")
        return f"provider {others[0] if others else 'unknown'}"
    settings = nested_map(provider, kind)
    if "moderation" in settings:
        return f"`{kind}.moderation`"
    return "`custom.backendRef`" if "backendRef" in settings else ModelBackend(section, kind, provider)


def provider_of(backend: Resource) -> ModelBackend | None:
    """Return the provider of a backend that Envoy serves; None for other backends."""
    provider = model_provider(backend) if "ai" in backend.spec else None
    return provider if isinstance(provider, ModelBackend) else None


def unread_path(rule: Mapping[str, Any], changes: Sequence[PathChange]) -> str:
    """Return why a rule cannot be served: Envoy knows the path that a client asks for, not one that a filter makes."""
    rewrites = any("path" in nested_map(each, "urlRewrite") for each in list_of_maps(rule.get("filters")))
    reads = any(change.suffix or change.prefix for change in changes)
    return "a path that is rewritten before a provider of models reads it" if rewrites and reads else ""


def unusable_routes(changes: Sequence[PathChange], max_program_size: int) -> str:
    """Return the first suffix that is too long for Envoy, or an empty string."""
    too_long = (change.suffix for change in changes if pattern_problem(change.pattern, max_program_size))
    return next((f"suffix `{suffix}`, which is too long for Envoy," for suffix in too_long), "")


def field_changes(provider: ModelBackend, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `model.lua` changes in requests to a provider; `values` are the fields of `backend.ai` in force."""
    return dict(_field_changes(provider, values))


def _field_changes(provider: ModelBackend, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if provider.model:
        yield "model", json.dumps(provider.model)
    for name, field in (("set", "overrides"), ("defaults", "defaults")):
        if entries := {entry["field"]: json.dumps(entry["value"]) for entry in list_of_maps(values.get(field))}:
            yield name, entries
    aliases: Mapping[str, str] = values.get("modelAliases") or {}
    if exact := {alias: json.dumps(model) for alias, model in aliases.items() if "*" not in alias}:
        yield "aliases", exact
    patterns = sorted((alias for alias in aliases if "*" in alias), key=lambda alias: (-len(alias), alias))
    if patterns:
        yield "patterns", [{"parts": alias.split("*"), "model": json.dumps(aliases[alias])} for alias in patterns]
