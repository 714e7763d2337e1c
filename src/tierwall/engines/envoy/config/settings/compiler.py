"""Compiles the settings at each place of a route plan: what a route gets of them, and whether it is closed.

Each field has a function in one of the modules beside this one. A value that Envoy cannot enforce raises
`Unenforceable`; if the field restricts requests, the place is then closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tierwall.attach.listener import Listener
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.fence import failure
from tierwall.engines.envoy.config.joined_limits import judges_requests
from tierwall.engines.envoy.config.model_backends import ANTHROPIC, OF_MODELS, provider_of
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings import (
    authentication,
    external,
    frontend,
    limits,
    observability,
    processing,
    quotas,
    traffic,
    upstream,
)
from tierwall.engines.envoy.config.settings.authorization import authorization
from tierwall.engines.envoy.config.settings.body_limits import backend_limit, body_limits
from tierwall.engines.envoy.config.settings.choices import MakeFilter, always, answer, choice
from tierwall.engines.envoy.config.settings.credentials import credentials
from tierwall.engines.envoy.config.settings.filters import (
    ANSWER,
    ASK,
    COUNT,
    LIMIT,
    PROCESS,
    TRANSFORM,
    choosing_filter,
)
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters, mcp_rules
from tierwall.engines.envoy.config.settings.places import (
    EffectiveField,
    PlaceSettings,
    SettingsReader,
    counting,
    field_not_enforced,
    is_filtered_at,
    overruling,
    place_of,
)
from tierwall.engines.envoy.config.settings.repeated_headers import judging_headers
from tierwall.engines.envoy.config.settings.route_settings import RouteSettings
from tierwall.engines.envoy.config.settings.services import ServiceCluster, endpoint
from tierwall.engines.envoy.config.settings.shared import SharedFilters
from tierwall.engines.envoy.config.settings.traffic import RouteChange
from tierwall.engines.envoy.config.settings.transformation import backend_transformation, transformation, whole_filter
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.gateway.decide import Candidate
from tierwall.gateway.model.enforcement import restricts
from tierwall.gateway.model.fields import Phase
from tierwall.gateway.model.places import RequestPlace
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot

# The settings of connections, by their names in `FrontendSettings`.
_FRONTEND = {"tls": "tls", "http": "http", "tcp": "tcp", "proxyProtocol": "proxy_protocol"}
_CLOSED = "requests that it applies to are answered with 500"


class SettingsCompiler:
    """Compiles the settings of one snapshot; `diagnostics` collects what Envoy does not enforce."""

    def __init__(self, snapshot: Snapshot, options: EnvoyOptions, refused: Mapping[Identity, str]) -> None:
        self._snapshot = snapshot
        self._options = options
        self.reader = SettingsReader(snapshot, options.profile, refused)
        self._diagnostics: dict[Diagnostic, None] = {}
        self._tokens: dict[str, authentication.TokenRequirement] = {}
        self._limits: dict[str, limits.LocalLimit] = {}
        # The clusters of services that settings refer to, and the policies that need each.
        self.clusters: dict[str, Any] = {}
        self.users: dict[str, set[Identity]] = {}

    @property
    def shared(self) -> SharedFilters:
        """The requirements and limits that filters hold for all routes."""
        return SharedFilters(self._tokens, self._limits)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems of settings that are not enforced, each once."""
        return tuple(self._diagnostics)

    def frontend(self, gateway: Resource, listener: Listener) -> tuple[frontend.FrontendSettings, frozenset[Identity]]:
        """Return the settings of connections to the port of a listener, and the policies that set them.

        What Envoy cannot enforce of them closes the routes of the listener.
        """
        place = place_of(gateway, listener)
        read = self.reader.at(place, "frontend")
        values: dict[str, Any] = {
            attribute: field.value
            for name, attribute in _FRONTEND.items()
            if (field := read.fields.get(f"frontend.{name}")) is not None
            and self._change(place, field, "PostRouting") is not None
        }
        for name, (attribute, make) in _LISTENER_PARTS.items():
            made = read.fields.get(f"frontend.{name}")
            if made is not None and self._change(place, made, "PostRouting") is not None:
                values[attribute] = make(self, made)
        return frontend.FrontendSettings(**values), read.policies

    def route(self, place: RequestPlace) -> RouteSettings:
        """Compile the settings of a rule on a listener, without those of its backends."""
        read = self.reader.of_rule(place)
        fields = tuple(field for phase, settings in read for field in counting(phase, settings, place))
        return self._compiled(place, read)._replace(fields=fields)

    def backend(self, place: RequestPlace, backend: Resource, port: int, target: str = "") -> RouteSettings:
        """Compile the settings of a backend of a rule, or of one of the MCP targets that it joins."""
        place, read = self.reader.of_backend(place, backend, port, target)
        compiled = self._compiled(place, [("PostRouting", read)])
        return compiled._replace(model_fields=read.of_models, judges_requests=judges_requests(read, backend))

    def _compiled(self, place: RequestPlace, read: list[tuple[Phase, PlaceSettings]]) -> RouteSettings:
        closed: list[str] = []
        changes: list[RouteChange] = []
        messages = MessageFilters()
        is_filtered = is_filtered_at(place, read)
        for phase, settings in read:
            self._diagnostics.update(dict.fromkeys(settings.diagnostics))
            closed += [settings.closed] if settings.closed else []
            for field in counting(phase, settings, place):
                path = field.path
                if path == "traffic.directResponse" and is_filtered and not field.is_chosen:
                    # A filter behind the others answers.
                    changes.insert(0, traffic.forward_nowhere)
                    field = field._replace(is_chosen=True)
                change = self._change(place, field, phase)
                messages |= MessageFilters(judging=judging_headers(field))
                if isinstance(change, MessageFilters):
                    messages |= change
                elif change is not None:
                    changes.append(change)
                elif restricts(path):
                    closed.append(f"{path} of {field.source.source}")
        changes += body_limits(read)
        policies = frozenset[Identity]().union(*(settings.policies for _, settings in read))
        why = ", ".join(dict.fromkeys(closed))
        return RouteSettings(why, policies, tuple(changes), messages, overruling(read, place), is_filtered=is_filtered)

    def _change(self, place: RequestPlace, field: EffectiveField, phase: Phase) -> RouteChange | MessageFilters | None:
        """Return what a field does to a route; None if Envoy cannot enforce it."""
        try:
            if field.is_chosen:
                return self._choice(field, phase)
            if field.path in BACKEND_FIELDS and place.backend is not None:
                return BACKEND_FIELDS[field.path](self, field, place.backend, place.section)
            return FIELDS[field.path](self, field, phase)
        except Unenforceable as error:
            problem = field_not_enforced(field, error, place)
        except Exception as error:
            problem = failure(field.source.resource, _CLOSED, error)
        self._diagnostics[problem] = None
        return None

    def _uses(self, cluster: ServiceCluster, policy: Resource) -> None:
        """Add the cluster of a service; the settings of the backend section on the Service hold for it, too."""
        users = self.users.setdefault(cluster.name, set())
        users.add(policy.identity)
        if cluster.name in self.clusters:
            return
        message = cluster.message(self._options)
        if cluster.service is not None:
            place = RequestPlace(backend=cluster.service, section=str(cluster.address.port))
            settings = self._compiled(place, [("PostRouting", self.reader.at(place, "backend"))])
            if settings.closed:
                raise Unenforceable(f"Envoy does not enforce {settings.closed}, which {place} needs")
            for change in settings.changes:
                change(message)
            users |= settings.policies
        self.clusters[cluster.name] = message

    def _jwt(self, field: EffectiveField, phase: Phase) -> RouteChange:
        required = authentication.token_requirement(self._snapshot, field.source.resource, field.value)
        self._tokens[required.name] = required
        for cluster in required.clusters:
            self._uses(cluster, field.source.resource)
        return authentication.token_change(phase, required)

    def _mcp_tokens(self, field: EffectiveField, backend: Resource, section: str) -> MessageFilters:
        value = {**field.value, "jwks": {"remote": field.value["jwks"]}}
        required = authentication.token_requirement(
            self._snapshot, field.source.resource, {"providers": [value], "mode": value.get("mode", "Strict")}
        )
        self._tokens[required.name] = required
        for cluster in required.clusters:
            self._uses(cluster, field.source.resource)
        return authentication.mcp_token_filters(required)

    def _mcp_rules(self, field: EffectiveField, backend: Resource, section: str) -> MessageFilters:
        return mcp_rules(field.value, field.sources, backend, section or backend.name)

    def _network_rules(self, field: EffectiveField) -> Any:
        return frontend.network_rules(field.value, field.sources)

    def _tracing(self, field: EffectiveField) -> Any:
        return observability.tracing(field.value, self._collector(field, field.value))

    def _access_log(self, field: EffectiveField) -> Any:
        collector = self._collector(field, field.value["otlp"]) if "otlp" in field.value else None
        return observability.access_log(field.value, collector)

    def _collector(self, field: EffectiveField, value: Mapping[str, Any]) -> str:
        cluster, _ = endpoint(self._snapshot, field.source.resource, value, "collector", grpc=True)
        self._uses(cluster, field.source.resource)
        return cluster.name

    def _api_keys(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return authentication.api_keys(self._snapshot, field.source.resource, field.value, phase)

    def _basic(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return authentication.basic_users(self._snapshot, field.source.resource, field.value, phase)

    def _ext_auth(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return external.asking_change(self._asking(field.source, field.value), field.value, phase)

    def _asking(self, source: Candidate, value: Mapping[str, Any]) -> Any:
        settings, cluster = external.external_authorization(self._snapshot, source.resource, value)
        self._uses(cluster, source.resource)
        return settings

    def _choice(self, field: EffectiveField, phase: Phase) -> RouteChange:
        """Return the change of a route where Envoy chooses an entry of a conditional list."""
        if field.path == "traffic.rateLimit.local":
            return self._chosen_limits(field, phase)
        makes: Mapping[str, tuple[str, MakeFilter]] = {
            "traffic.directResponse": (ANSWER, lambda source, value, _: answer(value, str(source.source))),
            "traffic.extAuth": (
                ASK,
                lambda source, value, _: external.asking_filter(self._asking(source, value), value),
            ),
            "traffic.extProc": (
                PROCESS,
                lambda source, value, _: processing.processing_filter(self._processing(source, value), value),
            ),
            "traffic.rateLimit.global": (COUNT, lambda source, value, _: self._counting(source, value)),
            "traffic.transformation": (TRANSFORM, lambda source, value, _: whole_filter(value)),
        }
        use, make = makes[field.path]
        chosen = choice(field.candidates, self._options.profile, make, choosing_filter(phase, use))
        last: dict[str, Callable[..., RouteChange]] = {COUNT: quotas.counted, PROCESS: processing.measured_again}
        return last[use](chosen) if use in last else chosen

    def _chosen_limits(self, field: EffectiveField, phase: Phase) -> RouteChange:
        changes: list[RouteChange] = []

        def make(source: Candidate, value: Any, entry: int | None) -> Any:
            owner = f"{field.owner(source)}\0{entry}"
            changes.append(limits.limit_change(self._buckets(value, owner), name := limits.entry_name(owner)))
            return limits.entry_filter(name)

        changes.append(choice(field.candidates, self._options.profile, make, choosing_filter(phase, LIMIT)))
        return limits.of_forwarded(*changes)

    def _ext_auth_of_backend(self, field: EffectiveField, backend: Resource, section: str) -> MessageFilters:
        settings = external.asking_for_backend(self._asking(field.source, field.value), field.value)
        settings |= backend_limit(field.value)
        return MessageFilters(settings, settings)

    def _ext_proc(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return processing.processing_change(self._processing(field.source, field.value), field.value, phase)

    def _processing(self, source: Candidate, value: Mapping[str, Any]) -> Any:
        settings, cluster = processing.external_processing(self._snapshot, source.resource, value)
        self._uses(cluster, source.resource)
        return settings

    def _quotas(self, field: EffectiveField, phase: Phase) -> RouteChange:
        counting = self._counting(field.source, field.value)
        return quotas.counted(always(counting, choosing_filter(phase, COUNT)))

    def _counting(self, source: Candidate, value: Mapping[str, Any]) -> Any:
        cluster, _ = endpoint(self._snapshot, source.resource, value, "quota", grpc=True)
        self._uses(cluster, source.resource)
        return quotas.quota_filter(value, cluster.name)

    def _local_limits(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return limits.limit_change(self._buckets(field.value, field.owner(field.source)))

    def _buckets(self, value: Any, owner: str) -> tuple[limits.LocalLimit, ...]:
        buckets = limits.local_limits(value, owner)
        self._limits |= {bucket.name: bucket for bucket in buckets}
        return buckets

    def _backend_tls(self, field: EffectiveField, phase: Phase) -> upstream.ClusterChange:
        return upstream.tls(self._snapshot, field.source.resource, field.value)

    def _credentials(self, field: EffectiveField, backend: Resource, section: str) -> upstream.ClusterChange:
        provider = provider_of(backend)
        is_anthropic = provider is not None and provider.kind == ANTHROPIC
        change, problems = credentials(self._snapshot, field.source.resource, field.value, is_anthropic)
        self._diagnostics.update(dict.fromkeys(field_not_enforced(field, error) for error in problems))
        return change

    def _cors(self, field: EffectiveField, phase: Phase) -> RouteChange:
        return traffic.cors(field.value, self._options)


CompileField = Callable[[SettingsCompiler, EffectiveField, Phase], RouteChange]


def _plain(make: Callable[[Any], RouteChange]) -> CompileField:
    """Return the function of a field that needs nothing but its value."""
    return lambda compiler, field, phase: make(field.value)


def _of_others(compiler: SettingsCompiler, field: EffectiveField, phase: Phase) -> RouteChange:
    """Change nothing: the field changes listeners, or what routes are made of."""
    return lambda route: None


# The messages that fields of listeners become, by their names in `FrontendSettings`.
_LISTENER_PARTS: Mapping[str, tuple[str, Callable[[SettingsCompiler, EffectiveField], Any]]] = {
    "networkAuthorization": ("network", SettingsCompiler._network_rules),
    "tracing": ("tracing", SettingsCompiler._tracing),
    "accessLog": ("access_log", SettingsCompiler._access_log),
}


def _of_listener(make: Callable[[SettingsCompiler, EffectiveField], Any]) -> CompileField:
    """Return the function of a field that a message for listeners is made of."""

    def compile_field(compiler: SettingsCompiler, field: EffectiveField, phase: Phase) -> RouteChange:
        make(compiler, field)
        return lambda route: None

    return compile_field


# Fields that concern the requests to a backend, and need to know it.
CompileBackendField = Callable[[SettingsCompiler, EffectiveField, Resource, str], MessageFilters | RouteChange]
BACKEND_FIELDS: Mapping[str, CompileBackendField] = {
    "backend.auth": SettingsCompiler._credentials,
    "backend.extAuth": SettingsCompiler._ext_auth_of_backend,
    "backend.mcp.authentication": SettingsCompiler._mcp_tokens,
    "backend.mcp.authorization": SettingsCompiler._mcp_rules,
}
FIELDS: Mapping[str, CompileField] = {
    **{f"frontend.{name}": _of_listener(make) for name, (_, make) in _LISTENER_PARTS.items()},
    "frontend.tcp": _of_others,
    "frontend.tls": _of_others,
    "frontend.http": _of_others,
    # Its schema permits nothing that Envoy cannot do.
    "frontend.proxyProtocol": _of_others,
    # Envoy refuses CONNECT anyway.
    "frontend.connect": _of_others,
    "backend.tcp": _plain(upstream.tcp),
    "backend.tls": SettingsCompiler._backend_tls,
    "backend.http": _plain(upstream.http),
    # Routes and destinations have them (`model_fields`).
    **dict.fromkeys(OF_MODELS, _of_others),
    "backend.transformation": _plain(backend_transformation),
    "traffic.extAuth": SettingsCompiler._ext_auth,
    "traffic.extProc": SettingsCompiler._ext_proc,
    "traffic.transformation": lambda compiler, field, phase: transformation(field.value, phase),
    "traffic.rateLimit.local": SettingsCompiler._local_limits,
    "traffic.rateLimit.global": SettingsCompiler._quotas,
    "traffic.cors": SettingsCompiler._cors,
    "traffic.csrf": _plain(traffic.csrf),
    "traffic.headerModifiers.request": _plain(traffic.request_headers),
    "traffic.headerModifiers.response": _plain(traffic.response_headers),
    # Destinations outside the cluster get their own host unless it is None (`keeps_host`).
    "traffic.hostRewrite": _of_others,
    "traffic.timeouts": _plain(traffic.timeouts),
    "traffic.retry": _plain(traffic.retry),
    "traffic.delay": _plain(traffic.delay),
    "traffic.authorization": lambda compiler, field, phase: authorization(field.value, field.sources, phase),
    "traffic.jwtAuthentication": SettingsCompiler._jwt,
    "traffic.basicAuthentication": SettingsCompiler._basic,
    "traffic.apiKeyAuthentication": SettingsCompiler._api_keys,
    "traffic.directResponse": _plain(traffic.direct_response),
    "traffic.buffer": _plain(traffic.buffer),
}
