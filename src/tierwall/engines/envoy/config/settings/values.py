"""Values of settings that Envoy cannot enforce although it enforces the field; nothing is compiled to find them.

`check`, `status` and `effective` name them, and the compiler leaves the field out or closes its place. Envoy's own
packages are not needed. What hangs on other objects (Secrets, Services that are missing) is the compiler's to find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tierwall.attach.backend import referenced_place
from tierwall.attach.place import SERVICE
from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cors import cors_problem
from tierwall.engines.envoy.config.header_changes import BODY_HEADERS, CONTROL, header_problems, is_protected, retypes
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE
from tierwall.engines.envoy.config.settings.conditions import (
    entry_condition,
    item_condition,
    network_condition,
    setting_condition,
)
from tierwall.engines.envoy.config.settings.expressions import (
    ItemKind,
    constant,
    is_valid,
    parsed,
    translated_setting,
)
from tierwall.engines.envoy.config.settings.header_values import check_name, formatted
from tierwall.engines.envoy.config.settings.key_sets import check_key_set
from tierwall.engines.envoy.config.settings.measures import byte_count, check_path
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import list_of_maps, nested_map
from tierwall.values.time import parse_duration

# All rules of a place are in one message, which Envoy tries in order for each request.
MAX_RULES = 1000
# Envoy counts with 32 bits.
MOST_REQUESTS = (1 << 32) - 1
# Envoy refuses larger bodies of direct responses.
MAX_BODY_BYTES = 4096
_USER = re.compile(r"([^:\s]{1,255}):(\{SHA\}[A-Za-z0-9+/]{27}=)", re.ASCII)
_SMALLEST_WINDOW, _LARGEST_WINDOW = 65_535, (1 << 31) - 1
_MOST_KILOBYTES = 8192
_TLS13 = "TLS13_"
_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+", re.ASCII)


def value_problems(field: str, value: Any) -> Iterator[Unenforceable]:
    """Yield what Envoy cannot enforce of a value; each has its place in the value."""
    find = _PROBLEMS.get(field)
    if find is not None:
        try:
            yield from find(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Only inline settings of a refused object can have such a value.
            yield Unenforceable("admission refuses the value")


def _tried(check: Callable[..., Any], *args: Any) -> Iterator[Unenforceable]:
    try:
        check(*args)
    except Unenforceable as error:
        yield error


def entry_problems(field: str, entry: Mapping[str, Any]) -> Iterator[Unenforceable]:
    """Yield what Envoy cannot enforce of an entry of a conditional list, besides its value."""
    condition = entry.get("condition")
    if condition is not None and is_valid(condition):
        yield from _tried(entry_condition, condition, "condition")
    if field == "traffic.extAuth" and "contextExtensions" in nested_map(entry, "policy", "grpc"):
        words = "Envoy does not send `contextExtensions` of a conditional list"
        yield Unenforceable(words, "policy", "grpc", "contextExtensions")


def _authorization(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, text in enumerate(nested_map(value, "policy").get("matchExpressions") or ()):
        # An expression that does not parse is never true, for Envoy as for agentgateway.
        if is_valid(text):
            yield from _tried(setting_condition, text, "policy", "matchExpressions", number)


def _network_authorization(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, text in enumerate(nested_map(value, "policy").get("matchExpressions") or ()):
        if is_valid(text):
            yield from _tried(network_condition, text, "policy", "matchExpressions", number)


def _mcp_authorization(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, text in enumerate(nested_map(value, "policy").get("matchExpressions") or ()):
        if is_valid(text):
            path = "policy", "matchExpressions", number
            # An expression has words for every item, or for none.
            yield from _tried(item_condition, text, ItemKind.TOOL, "", "", *path)


def _mcp_authentication(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _service(nested_map(value, "jwks"), "jwks")
    if "issuer" not in value:
        yield Unenforceable("Envoy needs the issuer of tokens")


def _tracing(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _collector(value)
    if "randomSampling" in value:
        yield from _tried(sampled_percent, value["randomSampling"], "randomSampling")
    yield from _attributes(value)


def _access_log(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for part, path in ((value, ()), (nested_map(value, "otlp"), ("otlp",))):
        if "filter" in part:
            yield from _tried(partial(translated_setting, of_response=True), part["filter"], *path, "filter")
        yield from _attributes(part, *path)
    if "otlp" in value:
        yield from _collector(nested_map(value, "otlp"), "otlp")


def _collector(value: Mapping[str, Any], *path: str | int) -> Iterator[Unenforceable]:
    yield from _service(value, *path)
    if value.get("protocol", "GRPC") != "GRPC":
        yield Unenforceable("Envoy speaks OTLP only over gRPC here", *path, "protocol")


def _attributes(value: Mapping[str, Any], *path: str | int) -> Iterator[Unenforceable]:
    for number, entry in enumerate(list_of_maps(nested_map(value, "attributes").get("add"))):
        yield from _tried(formatted, entry["expression"], True, *path, "attributes", "add", number, "expression")


def sampled_percent(text: object, *path: str | int) -> float:
    """Return the share of requests that an expression samples, in percent; it must be a constant."""
    tree = parsed(text, *path)
    share = tree.value if isinstance(tree, ast.Literal) else None
    if isinstance(share, bool):
        return 100.0 if share else 0.0
    if isinstance(share, int | float) and 0 <= share <= 1:
        return float(share) * 100
    raise Unenforceable("Envoy needs a constant from 0.0 to 1.0, `true` or `false`", *path)


def _transformation(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for side in ("request", "response"):
        change = nested_map(value, side)
        for field in ("set", "add"):
            for number, header in enumerate(list_of_maps(change.get(field))):
                yield from _tried(check_name, header["name"], side, field, number, "name")
                yield from _tried(formatted, header["value"], side == "response", side, field, number, "value")
        for number, name in enumerate(change.get("remove") or ()):
            yield from _tried(partial(check_name, removes=True), name, side, "remove", number)


def _backend_transformation(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _transformation(value)
    change = nested_map(value, "request")
    for field in ("set", "add"):
        for number, header in enumerate(list_of_maps(change.get(field))):
            if str(header["name"]).lower() in BODY_HEADERS:
                yield from _tried(_check_body_header, header, "request", field, number, "value")


def _check_body_header(header: Mapping[str, Any], *path: str | int) -> None:
    """Raise Unenforceable if a header may say that a body is another one than policies have read."""
    if retypes(str(header["name"]), constant(header["value"], *path)):
        raise Unenforceable(f"Envoy does not change header `{header['name']}` here", *path)


def _headers(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for problem in header_problems(value):
        yield Unenforceable(f"{problem.message} is not supported", *problem.path)


def _direct_response(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    if "bodyExpression" in value:
        yield from _tried(constant, value["bodyExpression"], "bodyExpression")
    if len(str(value.get("body", "")).encode()) > MAX_BODY_BYTES:
        yield Unenforceable(f"Envoy takes at most {MAX_BODY_BYTES} bytes", "body")
    for number, header in enumerate(list_of_maps(value.get("headers"))):
        if is_protected(header["name"]):
            yield Unenforceable(f"a change of header `{header['name']}` is not supported", "headers", number, "name")
        yield from _tried(constant, header["value"], "headers", number, "value")


def _csrf(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, origin in enumerate(value.get("additionalOrigins") or ()):
        scheme, separator, host = str(origin).partition("://")
        if not separator or not host or "/" in host or scheme not in ("http", "https"):
            yield Unenforceable(f"`{origin}` is not an origin", "additionalOrigins", number)


def _buffer(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    size = nested_map(value, "request").get("maxBytes")
    if size is not None:
        yield from _tried(byte_count, size, "request", "maxBytes")


def _delay(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    duration = parse_duration(value.get("duration"))
    if duration is None or duration < 0:
        yield Unenforceable("Envoy does not evaluate expressions here, only a duration such as `2s`", "duration")


def _local_limits(value: Any) -> Iterator[Unenforceable]:
    for number, entry in enumerate(list_of_maps(value)):
        if int(entry.get("requests", 0)) + int(entry.get("burst", 0)) > MOST_REQUESTS:
            yield Unenforceable(f"Envoy counts at most {MOST_REQUESTS} requests", number)


def _global_limits(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _service(value)
    for number, descriptor in enumerate(list_of_maps(value.get("descriptors"))):
        for index, entry in enumerate(list_of_maps(descriptor.get("entries"))):
            path = "descriptors", number, "entries", index, "expression"
            yield from _tried(translated_setting, entry["expression"], *path)


def _service(value: Mapping[str, Any], *path: str | int) -> Iterator[Unenforceable]:
    ref = value.get("backendRef")
    if isinstance(ref, dict):
        place = referenced_place(ref, "")
        if place is None or place.key != SERVICE or type(ref.get("port")) is not int:
            yield Unenforceable("Envoy asks only Services, by a port", *path, "backendRef")


def _ext_auth(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _service(value)
    if "grpc" not in value and "http" not in value:
        yield Unenforceable("it does not say how the service is asked; add `grpc` or `http`")
    if value.get("failureMode") == "FailOpen" and "contextExtensions" in nested_map(value, "grpc"):
        words = "Envoy does not send `contextExtensions` together with `failureMode: FailOpen`"
        yield Unenforceable(words, "grpc", "contextExtensions")
    if "forwardBody" in value:
        yield from _tried(byte_count, nested_map(value, "forwardBody").get("maxSize"), "forwardBody", "maxSize")
    if "path" in nested_map(value, "http"):
        where = "http", "path"
        yield from _tried(lambda: check_path(constant(nested_map(value, "http")["path"], *where), *where))


def _ext_proc(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _service(value)
    options = nested_map(value, "processingOptions")
    for side in ("request", "response"):
        streams = options.get(f"{side}BodyMode", "FullDuplexStreamed") == "FullDuplexStreamed"
        if streams and options.get(f"{side}TrailerMode", "Send") == "Skip":
            words = "Envoy streams bodies only together with trailers"
            yield Unenforceable(words, "processingOptions", f"{side}TrailerMode")


def _tokens(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, provider in enumerate(list_of_maps(value.get("providers"))):
        path = "providers", number, "jwks"
        jwks = nested_map(provider, "jwks")
        if "inline" in jwks:
            yield from _tried(check_key_set, jwks["inline"], *path, "inline")
        else:
            remote = nested_map(jwks, "remote")
            yield from _service(remote, *path, "remote")
            yield from _tried(check_path, remote.get("jwksPath") or "", *path, "remote", "jwksPath")
    if CONTROL.search(nested_map(value, "location", "header").get("prefix", "")):
        yield Unenforceable("no header has a control character", "location", "header", "prefix")


def users(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and the digests of users; raise Unenforceable if Envoy cannot check one."""
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            user = _USER.fullmatch(line)
            if user is None:
                raise Unenforceable("Envoy checks only passwords in the form {SHA} (`htpasswd -s`)")
            yield user[1], user[2]


def _passwords(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    yield from _tried(lambda: dict(users([str(line) for line in value.get("users") or ()])))


def _api_keys(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    prefix = nested_map(value, "location", "header").get("prefix", "")
    if prefix not in ("", "Bearer "):
        yield Unenforceable("Envoy knows no other prefix than `Bearer `", "location", "header", "prefix")


def _credentials(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for number, holder in enumerate((value, *list_of_maps(value.get("credentials")))):
        path = ("credentials", number - 1, "location") if number else ("location",)
        header = nested_map(holder, "location", "header")
        if header and (is_protected(header["name"]) or header["name"].lower() in BODY_HEADERS):
            yield Unenforceable(f"a change of header `{header['name']}` is not supported", *path)


def _tls(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    if value.get("maxProtocolVersion") == "1.2" and least_tls_version(value) == "1.3":
        yield Unenforceable("no version of TLS is left", "maxProtocolVersion")


def least_tls_version(value: Mapping[str, Any]) -> str | None:
    """Return the oldest version of TLS; Envoy chooses among the cipher suites of TLS 1.3 by itself."""
    suites = value.get("cipherSuites")
    if suites and not older_suites(value):
        # Without another suite, nothing older is left.
        return "1.3"
    return value.get("minProtocolVersion")


def older_suites(value: Mapping[str, Any]) -> list[str]:
    """Return the cipher suites of versions before TLS 1.3."""
    return [suite for suite in value.get("cipherSuites") or () if not suite.startswith(_TLS13)]


def _http(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    for field in ("http2WindowSize", "http2ConnectionWindowSize"):
        if field in value:
            yield from _tried(window, value[field], field)
    if "http2MaxHeaderSize" in value:
        yield from _tried(kilobytes, value["http2MaxHeaderSize"])


def window(value: object, field: str) -> int:
    """Return the size of a window of HTTP/2."""
    size = byte_count(value, field)
    if not _SMALLEST_WINDOW <= size <= _LARGEST_WINDOW:
        raise Unenforceable(f"Envoy takes {_SMALLEST_WINDOW} to {_LARGEST_WINDOW} bytes", field)
    return size


def kilobytes(value: object) -> int:
    """Return the largest size of headers in KiB."""
    size = -(-byte_count(value, "http2MaxHeaderSize") // 1024)
    if size > _MOST_KILOBYTES:
        raise Unenforceable(f"Envoy takes at most {_MOST_KILOBYTES} KiB", "http2MaxHeaderSize")
    return size


def _cors(value: Mapping[str, Any]) -> Iterator[Unenforceable]:
    if problem := cors_problem(value, MAX_PROGRAM_SIZE):
        yield Unenforceable(f"{problem} is not supported")


def too_many_rules(values: Iterable[Mapping[str, Any]]) -> str:
    """Return why Envoy does not enforce the rules of all levels together, or an empty string.

    A rule that does not parse is never true, so that only a Require remains of it.
    """
    count = sum(
        is_valid(text) or value.get("action") == "Require"
        for value in values
        for text in nested_map(value, "policy").get("matchExpressions") or ()
    )
    return f"there are {count} rules, expected at most {MAX_RULES}" if count > MAX_RULES else ""


def _model_fields(value: Any) -> Iterator[Unenforceable]:
    for number, entry in enumerate(list_of_maps(value)):
        if not _PLAIN_KEY.fullmatch(entry["field"]):
            yield Unenforceable("Envoy sets only fields of printable ASCII without escapes", number, "field")


_PROBLEMS: Mapping[str, Callable[[Any], Iterator[Unenforceable]]] = {
    "frontend.accessLog": _access_log,
    "frontend.tls": _tls,
    "frontend.http": _http,
    "frontend.networkAuthorization": _network_authorization,
    "frontend.tracing": _tracing,
    "traffic.apiKeyAuthentication": _api_keys,
    "traffic.authorization": _authorization,
    "traffic.basicAuthentication": _passwords,
    "traffic.buffer": _buffer,
    "traffic.cors": _cors,
    "traffic.csrf": _csrf,
    "traffic.delay": _delay,
    "traffic.directResponse": _direct_response,
    "traffic.extAuth": _ext_auth,
    "traffic.extProc": _ext_proc,
    "traffic.headerModifiers.request": _headers,
    "traffic.headerModifiers.response": _headers,
    "traffic.jwtAuthentication": _tokens,
    "traffic.rateLimit.global": _global_limits,
    "traffic.rateLimit.local": _local_limits,
    "traffic.transformation": _transformation,
    "backend.ai.defaults": _model_fields,
    "backend.ai.overrides": _model_fields,
    "backend.auth": _credentials,
    "backend.extAuth": _ext_auth,
    "backend.mcp.authentication": _mcp_authentication,
    "backend.mcp.authorization": _mcp_authorization,
    "backend.transformation": _backend_transformation,
}
