"""How far Envoy obeys each setting of a policy where Tierwall serves a Gateway (docs/gateway.md#obeyed-by-run).

One table has every field, and the parts of fields that differ from the whole. `check`, `status`, `effective`, the
documentation and the compiler for Envoy all read it. A setting that restricts is never left out in silence: if Envoy
cannot enforce it, the requests that it applies to are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.settings.values import entry_problems, too_many_rules, value_problems
from tierwall.gateway.model.fields import PHASES, SECTIONS, WrittenField, fields_written_by
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource


class EnforcementState(StrEnum):
    """How far a setting is obeyed."""

    ENFORCED = "enforced"
    LIMITED = "enforced, with a limit"
    NOT_ENFORCED = "not enforced"


class FieldRule(NamedTuple):
    """A row of the table: the state, the limit or the reason, and whether the setting restricts requests."""

    state: EnforcementState
    words: str = ""
    restricts: bool = False


def _limited(words: str, *, restricts: bool = False) -> FieldRule:
    return FieldRule(EnforcementState.LIMITED, words, restricts)


def _not(words: str, *, restricts: bool = False) -> FieldRule:
    return FieldRule(EnforcementState.NOT_ENFORCED, words, restricts)


_NO_METADATA = "Envoy serves no metadata for MCP clients"
_NO_CLOUD = "Tierwall has no credentials of a cloud; the client's own header is removed"
_NO_EXCHANGE = "Envoy does not exchange tokens here; the client's own header is removed"
_NO_PLACE = "Envoy puts credentials only into headers, and a client could put its own there"
_KEPT_HEADERS = "some headers [stay as they are](#headers-that-stay-as-they-are)"
_NO_AI = "Envoy does not read the messages of language models"
_PLAIN_BODIES = "requests whose bodies are not plain JSON get 400; those that pass unread stay as they are"
_ENFORCED = FieldRule(EnforcementState.ENFORCED)
_NO_EXPRESSION = "Envoy does not evaluate expressions here"

# A request is judged when it begins (docs/semantics.md#streams-end-with-their-permission).
_OPEN = "a stream that is open goes on when this changes"
_ASKING = (
    "the service is a Service or a URL; `http.path` is a constant text; bodies over `forwardBody.maxSize` get 413;"
    f" {_OPEN}"
)


def _ext_auth_parts(field: str) -> Mapping[str, FieldRule]:
    return {
        f"{field}.cache": _not("the service is asked about every request"),
        f"{field}.grpc.requestMetadata": _not(_NO_EXPRESSION, restricts=True),
        f"{field}.http.addRequestHeaders": _not(_NO_EXPRESSION, restricts=True),
        f"{field}.http.allowedRequestHeaders": _not("Envoy may send more headers", restricts=True),
        f"{field}.http.body": _not(_NO_EXPRESSION, restricts=True),
        f"{field}.http.redirect": _not("the client gets the answer of the service"),
        f"{field}.http.responseMetadata": _not(_NO_EXPRESSION),
    }


# By field, by a part of a field (`traffic.retry.condition`), or by a value of a part (`….mode=Optional`).
ENFORCEMENT: Mapping[str, FieldRule] = {
    "frontend.tcp": _ENFORCED,
    "frontend.networkAuthorization": _limited(
        "expressions may use `source.address` and `source.rawAddress`, as in `traffic.authorization`", restricts=True
    ),
    "frontend.tls": _limited("among the cipher suites of TLS 1.3, Envoy chooses by itself", restricts=True),
    "frontend.http": _limited(
        "the number and size of headers and the idle time are limited for HTTP/1 and HTTP/2 alike", restricts=True
    ),
    "frontend.http.http1HeaderCase=Preserve": _not("Envoy sends header names in lower case"),
    "frontend.http.http2FrameSize": _not("Envoy chooses the size of frames"),
    "frontend.http.maxBufferSize": _not("Envoy has its own limits, of 1 MiB"),
    "frontend.proxyProtocol": _ENFORCED._replace(restricts=True),
    "frontend.connect": _ENFORCED,
    "frontend.connect.mode=Route": _not("Envoy refuses CONNECT here"),
    "frontend.connect.mode=Tunnel": _not("Envoy refuses CONNECT here"),
    "frontend.accessLog": _limited(
        "records go to a collector (`otlp`) over gRPC, without one to the standard output of Envoy (of `run`) as JSON;"
        " listeners that share a port and have no TLS log as the first of them does"
    ),
    "frontend.tracing": _limited(
        "spans go to a collector over gRPC, instead of where `run --otlp` says; `randomSampling` is a constant; of"
        " listeners as `frontend.accessLog`"
    ),
    "frontend.tracing.attributes.remove": _not("Envoy sends its own attributes"),
    "frontend.tracing.clientSampling": _not("Envoy follows the client's choice"),
    "frontend.tracing.filter": _not(_NO_EXPRESSION),
    "frontend.tracing.resources": _not(_NO_EXPRESSION),
    "frontend.metrics": _not("the metrics are those of Tierwall and Envoy"),
    "traffic.transformation": _limited(
        "headers, except those that [stay as they are](#headers-that-stay-as-they-are); expressions may use what those"
        " of `traffic.authorization` may, join texts, and for responses use `response.code` and `response.headers`; a"
        " part of a text that fails is empty"
    ),
    "traffic.transformation.request.body": _not("Envoy does not change bodies"),
    "traffic.transformation.request.metadata": _not("nothing after it reads metadata"),
    "traffic.transformation.response.body": _not("Envoy does not change bodies"),
    "traffic.transformation.response.metadata": _not("nothing after it reads metadata"),
    "traffic.extProc": _limited(
        "the service is a Service or a URL, leads no request to another route, and changes neither headers of the"
        " connection nor who the caller is; messages go on without `Content-Length`; a body that it gets as a whole"
        " must have the `Content-Length` that the service says; bodies that are streamed are sent together with"
        " trailers",
        restricts=True,
    ),
    "traffic.extProc.metadataContext": _not(_NO_EXPRESSION, restricts=True),
    "traffic.extProc.requestAttributes": _not(_NO_EXPRESSION, restricts=True),
    "traffic.extProc.responseAttributes": _not(_NO_EXPRESSION, restricts=True),
    "traffic.extAuth": _limited(_ASKING, restricts=True),
    **_ext_auth_parts("traffic.extAuth"),
    "traffic.rateLimit.local": _limited(
        "each Envoy and each listener counts for itself, and begins again when a limit changes", restricts=True
    ),
    "traffic.rateLimit.local.tokens": _not(_NO_AI, restricts=True),
    "traffic.rateLimit.global": _limited(
        "the service is a Service or a URL; expressions as in `traffic.authorization`; a request gets 500 if "
        "the service changes its path, its host, headers of the connection or who the caller is",
        restricts=True,
    ),
    "traffic.rateLimit.global.descriptors.cost": _not(_NO_EXPRESSION, restricts=True),
    "traffic.rateLimit.global.descriptors.limitOverride": _not(_NO_EXPRESSION, restricts=True),
    "traffic.rateLimit.global.descriptors.unit=Tokens": _not(_NO_AI, restricts=True),
    "traffic.cors": _limited("`exposeHeaders: ['*']` together with credentials is left out"),
    "traffic.csrf": _limited(
        "Envoy compares the hosts and ports of origins; requests that change something need `Origin` or `Referer`",
        restricts=True,
    ),
    "traffic.headerModifiers.request": _limited(_KEPT_HEADERS),
    "traffic.headerModifiers.response": _limited(_KEPT_HEADERS),
    "traffic.hostRewrite": _limited("a Service gets the client's host, also with `Auto`"),
    "traffic.timeouts": _ENFORCED,
    "traffic.retry": _limited("the time between attempts varies by chance"),
    "traffic.retry.condition": _not(_NO_EXPRESSION),
    "traffic.retry.precondition": _not(_NO_EXPRESSION),
    "traffic.delay": _limited("only durations such as `2s`, no expressions"),
    "traffic.authorization": _limited(
        "expressions may use `request.method`, `path`, `pathAndQuery`, `host`, `scheme`, `headers`, `jwt` and"
        " `basicAuth.username`, and what [Envoy evaluates](tool.md#expressions); `source.address` only in"
        " `cidr('10.0.0.0/8').containsIP(source.address)`, compared with an address, in a list, or by `startsWith`;"
        " `request.host` is as the client wrote it, with its port; requests that [repeat a"
        f" header](#headers-of-one-name) that is read are refused; {_OPEN}",
        restricts=True,
    ),
    "traffic.jwtAuthentication": _limited(_OPEN, restricts=True),
    "traffic.jwtAuthentication.location.expression": _not(_NO_EXPRESSION, restricts=True),
    "traffic.jwtAuthentication.mcp": _not(_NO_METADATA),
    "traffic.basicAuthentication": _limited(f"passwords in the form {{SHA}} (`htpasswd -s`); {_OPEN}", restricts=True),
    "traffic.basicAuthentication.mode=Optional": _not("Envoy always requires a password", restricts=True),
    "traffic.basicAuthentication.location": _not("Envoy reads only the header `Authorization`", restricts=True),
    "traffic.basicAuthentication.realm": _not("Envoy names another realm"),
    "traffic.apiKeyAuthentication": _limited(
        f"keys that are given by their hash are not accepted; a header may have the prefix `Bearer `; {_OPEN}",
        restricts=True,
    ),
    "traffic.apiKeyAuthentication.mode=Optional": _not("Envoy always requires a key", restricts=True),
    "traffic.apiKeyAuthentication.secretSelector": _not("Tierwall reads only Secrets that are named", restricts=True),
    "traffic.apiKeyAuthentication.configMapSelector": _not("Envoy does not check keys by their hash", restricts=True),
    "traffic.apiKeyAuthentication.location.expression": _not(_NO_EXPRESSION, restricts=True),
    "traffic.directResponse": _limited("at most 4,096 bytes; expressions must be constant texts", restricts=True),
    "traffic.buffer": _limited("a request body has at most 1 MiB unless `maxBytes` is given", restricts=True),
    "traffic.buffer.request.failureMode=FailOpen": _not("Envoy always refuses larger bodies", restricts=True),
    "traffic.buffer.response": _not("Envoy does not hold responses back", restricts=True),
    "backend.tcp": _ENFORCED,
    "backend.tls": _ENFORCED._replace(restricts=True),
    "backend.tls.certificateSource=SPIFFE": _not("Envoy has no SPIFFE certificate here", restricts=True),
    "backend.http": _limited("`requestTimeout` limits each attempt, to the end of its response"),
    "backend.tunnel": _not("Envoy reaches backends without a tunnel", restricts=True),
    "backend.auth": _limited(
        "keys and Secrets, in headers; the client's own header of that name is replaced, and removed if the Secret is"
        " missing"
    ),
    "backend.auth.location.queryParameter": _not(_NO_PLACE, restricts=True),
    "backend.auth.location.cookie": _not(_NO_PLACE, restricts=True),
    "backend.auth.credentials.location.queryParameter": _not(_NO_PLACE, restricts=True),
    "backend.auth.credentials.location.cookie": _not(_NO_PLACE, restricts=True),
    "backend.auth.passthrough": _not("a token that Envoy checks does not go on to the backend"),
    "backend.auth.aws": _not(_NO_CLOUD),
    "backend.auth.azure": _not(_NO_CLOUD),
    "backend.auth.gcp": _not(_NO_CLOUD),
    "backend.auth.oauthTokenExchange": _not(_NO_EXCHANGE),
    "backend.auth.crossAppAccess": _not(_NO_EXCHANGE),
    "backend.auth.jwtSign": _not("Envoy does not sign tokens; the client's own header is removed"),
    "backend.ai.prompt": _not(_NO_AI, restricts=True),
    "backend.ai.promptGuard": _not(_NO_AI, restricts=True),
    "backend.ai.defaults": _limited(_PLAIN_BODIES),
    "backend.ai.overrides": _limited(_PLAIN_BODIES, restricts=True),
    "backend.ai.transformations": _not(_NO_AI, restricts=True),
    "backend.ai.finalTransformations": _not(_NO_AI, restricts=True),
    "backend.ai.modelAliases": _limited(_PLAIN_BODIES, restricts=True),
    "backend.ai.promptCaching": _not(_NO_AI),
    "backend.ai.routes": _limited(
        "Envoy translates nothing: what the provider does not understand itself is answered with 500"
    ),
    "backend.mcp.authentication": _limited(
        f"a token that `traffic.jwtAuthentication` has checked does not reach it; {_OPEN}", restricts=True
    ),
    "backend.mcp.authentication.clientId": _not(_NO_METADATA),
    "backend.mcp.authentication.clientSecretRef": _not(_NO_METADATA),
    "backend.mcp.authentication.provider": _not(_NO_METADATA),
    "backend.mcp.authentication.resourceMetadata": _not(_NO_METADATA),
    "backend.mcp.authorization": _limited(
        "it judges calls, prompts and resources; only `run` cuts lists; expressions as in `traffic.authorization`, with"
        " `mcp.tool`, `mcp.prompt` and `mcp.resource` (`name`, `target`), `mcp.methodName` and `mcp.sessionId`",
        restricts=True,
    ),
    "backend.mcp.guardrails": _not("Envoy does not ask guardrails", restricts=True),
    "backend.transformation": _limited(
        "as `traffic.transformation`; `response.code` only by itself; each retry makes it again, of the headers "
        "that it has made"
    ),
    "backend.transformation.request.body": _not("Envoy does not change bodies"),
    "backend.transformation.request.metadata": _not("nothing after it reads metadata"),
    "backend.transformation.response.body": _not("Envoy does not change bodies"),
    "backend.transformation.response.metadata": _not("nothing after it reads metadata"),
    "backend.health": _not("Envoy sends requests to a backend whatever it answered before"),
    "backend.extAuth": _limited(_ASKING, restricts=True),
    **_ext_auth_parts("backend.extAuth"),
}
# Lists whose entries depend on the request, of which one has Override.
COMPETING = "Envoy does not choose among conditional lists of several levels if one of them has Override"


class UnenforcedSetting(NamedTuple):
    """A part of a setting that Envoy does not enforce: its name, its place in the value, the reason and the effect."""

    name: str
    path: tuple[str | int, ...]
    words: str
    restricts: bool
    # Whether nothing of the setting is enforced for it.
    whole: bool = False

    @property
    def effect(self) -> str:
        """The consequence for requests that the setting applies to."""
        return "requests that it applies to are answered with 500" if self.restricts else "requests pass without it"

    def __str__(self) -> str:
        return f"Envoy does not enforce `{self.name}`: {self.words}; {self.effect}"


def restricts(field: str) -> bool:
    """Whether a field restricts requests, so that it must not be left out."""
    return ENFORCEMENT[field].restricts


def unenforced(field: str, value: Any) -> Iterator[UnenforcedSetting]:
    """Yield what Envoy does not enforce of a field's value: the whole field, parts of it, or values that it lacks."""
    missing = list(_unenforced(field, value, ()))
    yield from missing
    if not any(part.whole for part in missing):
        for problem in value_problems(field, value):
            yield UnenforcedSetting(field, problem.path, str(problem), restricts(field), whole=True)


def _unenforced(name: str, value: Any, path: tuple[str | int, ...]) -> Iterator[UnenforcedSetting]:
    keys = (name, f"{name}={value}") if isinstance(value, str | bool) else (name,)
    for key in keys:
        rule = ENFORCEMENT.get(key)
        if rule is not None and rule.state is EnforcementState.NOT_ENFORCED:
            yield UnenforcedSetting(key, path, rule.words, rule.restricts, whole=not path)
            return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _unenforced(f"{name}.{key}", inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unenforced(name, inner, (*path, number))


def overfull(field: str, values: Iterable[Mapping[str, Any]]) -> Iterator[UnenforcedSetting]:
    """Yield what Envoy does not enforce of a union: nothing is enforced if it has too many rules."""
    if words := too_many_rules(values):
        yield UnenforcedSetting(field, (), words, restricts(field), whole=True)


def competing(field: str) -> UnenforcedSetting:
    """Return what Envoy does not enforce of conditional lists that compete."""
    return UnenforcedSetting(f"{field}, conditional", (), COMPETING, restricts(field), whole=True)


def list_parts(written: WrittenField) -> Iterator[UnenforcedSetting]:
    """Yield what Envoy does not enforce of a conditional list whose entry it chooses; paths lead from the list."""
    field = written.field.path
    keys = (written.field.part,) if written.field.part else ()
    for number, entry in enumerate(written.entries or ()):
        for problem in entry_problems(field, entry):
            yield UnenforcedSetting(field, (number, *problem.path), str(problem), restricts(field), whole=True)
        value = written.entry_value(entry.get("policy"))
        for part in unenforced(field, value) if value is not None else ():
            yield part._replace(path=(number, "policy", *keys, *part.path))


def unenforced_parts(written: WrittenField) -> Iterator[UnenforcedSetting]:
    """Yield what Envoy does not enforce of a setting as an object writes it; paths lead from the section."""
    field = written.field.path
    if written.entries is None:
        for part in unenforced(field, written.value):
            yield part._replace(path=(*written.path, *part.path))
    elif all(written.entry_value(entry.get("policy")) is None for entry in written.entries):
        # No entry has this part of the property.
        return
    elif ENFORCEMENT[field].state is EnforcementState.NOT_ENFORCED:
        rule = ENFORCEMENT[field]
        yield UnenforcedSetting(field, written.path, rule.words, rule.restricts, whole=True)
    elif any(isinstance(entry.get("condition"), str) for entry in written.entries):
        yield from (part._replace(path=(*written.path, *part.path)) for part in list_parts(written))
    else:
        # Without conditions, the first entry counts.
        policy = written.entries[0].get("policy") if written.entries else None
        keys = (written.field.part,) if written.field.part else ()
        value = written.entry_value(policy)
        for part in unenforced(field, value) if value is not None else ():
            yield part._replace(path=(*written.path, 0, "policy", *keys, *part.path))


@per_resource
def unenforced_settings(policy: Resource) -> tuple[UnenforcedSetting, ...]:
    """Return what Envoy does not enforce of a policy; paths lead from the policy."""
    return tuple(
        part._replace(path=("spec", written.field.section, *part.path))
        for written in _written(policy)
        for part in unenforced_parts(written)
    )


def settings_of(policy: Resource) -> set[str]:
    """Return the fields that a policy sets."""
    return {written.field.path for written in _written(policy)}


def _written(policy: Resource) -> Iterator[WrittenField]:
    for section in SECTIONS:
        for phase in PHASES if section == "traffic" else PHASES[:1]:
            yield from fields_written_by(policy, section, phase)
