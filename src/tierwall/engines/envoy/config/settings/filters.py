"""The HTTP filters of gateway settings, in the order in which agentgateway applies the settings.

They are off unless a route turns them on. Their settings are on the routes, except where Envoy takes them only in the
filter: those come by ECDS, and routes name them. A route that names something that the filter does not hold is refused
by the filter, so that nothing is open while the two arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from envoy.config.core.v3 import config_source_pb2, extension_pb2
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.common.matcher.action.v3 import skip_action_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.basic_auth.v3 import basic_auth_pb2
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.composite.v3 import composite_pb2
from envoy.extensions.filters.http.csrf.v3 import csrf_pb2
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from envoy.extensions.filters.http.fault.v3 import fault_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from xds.type.matcher.v3 import matcher_pb2

from tierwall.engines.envoy.config.checkpoints import on
from tierwall.engines.envoy.config.external_auth import NOBODY, TIMEOUT_S, protect_headers
from tierwall.engines.envoy.config.matchers import OnMatch, extension_config, matcher, packed
from tierwall.engines.envoy.config.mcp import script_filter
from tierwall.engines.envoy.config.names import HEADER_PREFIX, USER
from tierwall.gateway.model.fields import PHASES, Phase

MCP_TOKENS: Final = "tierwall.mcp.jwt"
# What a filter chooses an entry for.
ASK, TRANSFORM, ANSWER, PROCESS, LIMIT, COUNT = "ask", "transform", "answer", "process", "limit", "count"
# Refuses requests that repeat a header, for what looks at it behind both phases.
REPEATS: Final = "tierwall.repeats"
_HEADERS = "headers"
LIMITS, BUFFER, CSRF, DELAY = "tierwall.limits", "tierwall.buffer", "tierwall.csrf", "tierwall.delay"
# Limits bodies before filters that wait for a service: what has come meanwhile is not measured behind them.
BUFFER_FIRST: Final = "tierwall.buffer-first"
# Drop the length that a message says of itself, behind what a service may have made of it.
REQUEST_LENGTH, RESPONSE_LENGTH = "tierwall.request-length", "tierwall.response-length"
# Around the filter that has a service count requests: headers that the service may not change are as before.
KEPT: Final = ("tierwall.uncounted", "tierwall.counted")
_BUFFER_BYTES = 1 << 20
# Headers that no service may change: Tierwall's own, the caller's certificate, and those of the connection. What it
# makes of others is judged behind it.
_KEPT = f"({HEADER_PREFIX}|transfer-|x-forwarded-client-).*|connection|upgrade|te|trailer"


def jwt_filter(phase: Phase) -> str:
    """Return the name of the filter that checks JSON Web Tokens in a phase."""
    return f"tierwall.{phase}.jwt"


def basic_filter(phase: Phase) -> str:
    """Return the name of the filter that checks names and passwords in a phase."""
    return f"tierwall.{phase}.basic"


def key_filter(phase: Phase) -> str:
    """Return the name of the filter that checks API keys in a phase."""
    return f"tierwall.{phase}.key"


def ask_filter(phase: Phase) -> str:
    """Return the name of the filter that asks an authorization service in a phase."""
    return f"tierwall.{phase}.ask"


def repeats_filter(phase: Phase) -> str:
    """Return the name of the filter that refuses requests that repeat a header, for what judges them in a phase."""
    return f"tierwall.{phase}.repeats"


def authorization_filter(phase: Phase) -> str:
    """Return the name of the filter that authorizes requests in a phase."""
    return f"tierwall.{phase}.authorization"


# Changes fields of requests to language models.
MODEL: Final = "tierwall.model"
# Asks an authorization service about the requests to one backend.
ASK_FOR_BACKEND: Final = "tierwall.backend.ask"
BUFFER_FOR_BACKEND: Final = "tierwall.backend.buffer-first"
CHOOSE_FOR_BACKEND: Final = "tierwall.backend.choose-ask"


def process_filter(phase: Phase) -> str:
    """Return the name of the filter that has a service process messages in a phase."""
    return f"tierwall.{phase}.process"


def transformation_filter(phase: Phase) -> str:
    """Return the name of the filter that changes headers by expressions in a phase."""
    return f"tierwall.{phase}.transformation"


def choosing_filter(phase: Phase, use: str) -> str:
    """Return the name of the filter that chooses an entry of a conditional list in a phase, for one use."""
    return f"tierwall.{phase}.choose-{use}"


def no_choice() -> Any:
    """Return the filter that chooses an entry; routes have the choices."""
    out = extension_matcher_pb2.ExtensionWithMatcher()
    out.extension_config.name = "composite"
    out.extension_config.typed_config.CopyFrom(packed(composite_pb2.Composite()))
    out.xds_matcher.CopyFrom(matcher(skipped()))
    return out


def skipped() -> OnMatch:
    """Return the decision to run no filter."""
    return matcher_pb2.Matcher.OnMatch(action=extension_config("skip", skip_action_pb2.SkipFilter()))


def settings_filters(static: bool, configured: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the filters; `configured` has the configuration of those that come by ECDS."""
    phases: tuple[Phase, ...] = ("PreRouting", "PostRouting")
    for name in (BUFFER_FIRST, BUFFER_FOR_BACKEND):
        yield _off(name, buffer_pb2.Buffer(max_request_bytes={"value": _BUFFER_BYTES}))
    # Responses pass the filters backwards.
    yield _off(RESPONSE_LENGTH, header_mutation_pb2.HeaderMutation())
    for phase in phases:
        yield _discovered(jwt_filter(phase), jwt_pb2.JwtAuthentication(), static, configured)
        yield _off(basic_filter(phase), basic_auth_pb2.BasicAuth(forward_username_header=USER, users=_nobody()))
        yield _off(key_filter(phase), _keys())
        yield _off(ask_filter(phase), asking(f"settings_{phase}"))
        yield _off(choosing_filter(phase, ASK), no_choice())
        yield hcm_pb2.HttpFilter(name=repeats_filter(phase), typed_config=script_filter("repeats.lua"), disabled=True)
        yield _off(authorization_filter(phase), rbac_pb2.RBAC())
        if phase == "PostRouting":
            yield _off(choosing_filter(phase, LIMIT), no_choice())
            yield _discovered(LIMITS, no_limits(), static, configured)
            kept = script_filter("kept.lua")
            yield hcm_pb2.HttpFilter(name=KEPT[0], typed_config=kept, disabled=True)
            yield _off(choosing_filter(phase, COUNT), no_choice())
            yield hcm_pb2.HttpFilter(name=KEPT[1], typed_config=kept, disabled=True)
        yield _off(process_filter(phase), processing(f"settings_{phase}"))
        yield _off(choosing_filter(phase, PROCESS), no_choice())
        yield _off(transformation_filter(phase), header_mutation_pb2.HeaderMutation())
        yield _off(choosing_filter(phase, TRANSFORM), no_choice())
    yield _off(REQUEST_LENGTH, header_mutation_pb2.HeaderMutation())
    yield _off(BUFFER, buffer_pb2.Buffer(max_request_bytes={"value": _BUFFER_BYTES}))
    yield _off(CSRF, csrf_pb2.CsrfPolicy(filter_enabled={"default_value": {}}))
    yield _off(DELAY, fault_pb2.HTTPFault())
    # Services and transformations may have added headers.
    yield hcm_pb2.HttpFilter(name=REPEATS, typed_config=script_filter("repeats.lua"), disabled=True)
    yield _off(choosing_filter("PostRouting", ANSWER), no_choice())
    yield _off(ASK_FOR_BACKEND, asking("settings_backend"))
    yield _off(CHOOSE_FOR_BACKEND, no_choice())
    yield _discovered(MCP_TOKENS, jwt_pb2.JwtAuthentication(), static, configured)
    yield hcm_pb2.HttpFilter(name=MODEL, typed_config=script_filter("model.lua"), disabled=True)


def no_limits() -> Any:
    """Return the filter of local rate limits without any limit."""
    out = local_rate_limit_pb2.LocalRateLimit(stat_prefix="limits")
    for share in (out.filter_enabled, out.filter_enforced):
        share.default_value.numerator = 100
    # Limits are descriptors; the bucket for everything else never empties.
    bucket = out.token_bucket
    bucket.max_tokens = bucket.tokens_per_fill.value = (1 << 32) - 1
    bucket.fill_interval.seconds = 1
    return out


def processing(prefix: str) -> Any:
    """Return a filter that has a service process messages, which routes name."""
    out = ext_proc_pb2.ExternalProcessor(stat_prefix=prefix)
    out.grpc_service.envoy_grpc.cluster_name = NOBODY
    out.grpc_service.timeout.seconds = TIMEOUT_S
    out.mutation_rules.disallow_expression.regex = _KEPT
    # A request has the filters of its first route: those of another one would be missing.
    out.route_cache_action = ext_proc_pb2.ExternalProcessor.RETAIN
    out.message_timeout.seconds = TIMEOUT_S
    return out


def _nobody() -> Any:
    # Envoy requires a user. Nobody knows a password whose SHA-1 digest is all zeros.
    return {"inline_string": "nobody:{SHA}" + "A" * 27 + "="}


def _keys() -> Any:
    out = api_key_auth_pb2.ApiKeyAuth()
    out.key_sources.add(header="authorization")
    return out


def asking(prefix: str) -> Any:
    """Return a filter that asks an authorization service, which routes name."""
    out = ext_authz_pb2.ExtAuthz(transport_api_version="V3", stat_prefix=prefix)
    out.grpc_service.envoy_grpc.cluster_name = NOBODY
    out.grpc_service.timeout.seconds = TIMEOUT_S
    out.status_on_error.code = 403
    out.include_peer_certificate = True
    out.disallowed_headers.patterns.add().prefix = HEADER_PREFIX
    protect_headers(out)
    return out


def _off(name: str, message: Any) -> Any:
    return hcm_pb2.HttpFilter(name=name, typed_config=packed(message), disabled=True)


def _discovered(name: str, default: Any, static: bool, configured: Mapping[str, Any]) -> Any:
    if static:
        known = configured.get(name)
        config = known.typed_config if known is not None else packed(default)
        return hcm_pb2.HttpFilter(name=name, typed_config=config, disabled=True)
    out = hcm_pb2.HttpFilter(name=name, disabled=True)
    out.config_discovery.config_source.CopyFrom(aggregated())
    out.config_discovery.default_config.CopyFrom(packed(default))
    out.config_discovery.type_urls.append(packed(default).type_url)
    return out


def aggregated() -> Any:
    """Return the source of what listeners need from the control plane: they wait for it, however long that takes.

    Otherwise they would open after fifteen seconds without it, and deny every request.
    """
    out = config_source_pb2.ConfigSource(resource_api_version="V3")
    out.ads.SetInParent()
    out.initial_fetch_timeout.SetInParent()
    return out


def discovered_config(name: str, message: Any) -> Any:
    """Return the configuration of a filter as ECDS sends it."""
    out = extension_pb2.TypedExtensionConfig(name=name)
    out.typed_config.CopyFrom(packed(message))
    return out


def refuse_repeats(route: Any, names: Iterable[str]) -> None:
    """Refuse requests of a route that have several of a header that some rule looks at."""
    for filter_name in (*map(repeats_filter, PHASES), REPEATS) if (names := sorted(names)) else ():
        metadata = route.metadata.filter_metadata[filter_name]
        known = list(metadata[_HEADERS]) if _HEADERS in metadata else []
        metadata.update({_HEADERS: sorted({*known, *names})})
        route.typed_per_filter_config[filter_name].CopyFrom(on())
