"""HTTPRoute of the Gateway API (v1, and v1beta1 with the same shape), standard and experimental channel."""

from msgspec.structs import replace

from tierwall.resources.kinds.gateway_api.routes import named_matches, route_kind, route_rule, route_rules
from tierwall.resources.kinds.gateway_types.filters import http_filters
from tierwall.resources.kinds.gateway_types.names import PATH_CHARACTERS, duration, header_value, http_method
from tierwall.resources.schema import Rule, array, enum, integer, obj, optional, rule, string

_LITERAL = "(self.type in ['Exact','PathPrefix'])"
_TYPES = "['Exact', 'PathPrefix']"


def _literal_paths(test: str, message: str) -> Rule:
    """A rule that holds for literal paths, not for regular expressions."""
    return rule(f"{_LITERAL} ? {test} : true", message)


_path_match = obj(
    optional("type", enum("Exact", "PathPrefix", "RegularExpression", default="PathPrefix")),
    optional("value", string(max_length=1024, default="/")),
    _literal_paths(
        "self.value.startsWith('/')", f"value must be an absolute path and start with '/' when type one of {_TYPES}"
    ),
    *(
        _literal_paths(f"!self.value.contains('{text}')", f"must not contain '{text}' when type one of {_TYPES}")
        for text in ("//", "/./", "/../", "%2f", "%2F", "#")
    ),
    *(
        _literal_paths(f"!self.value.endsWith('{text}')", f"must not end with '{text}' when type one of {_TYPES}")
        for text in ("/..", "/.")
    ),
    rule(
        "self.type in ['Exact','PathPrefix'] || self.type == 'RegularExpression'",
        "type must be one of ['Exact', 'PathPrefix', 'RegularExpression']",
    ),
    _literal_paths(
        f'self.value.matches(r"""{PATH_CHARACTERS}""")',
        f"must only contain valid characters (matching {PATH_CHARACTERS}) for types {_TYPES}",
    ),
    default={"type": "PathPrefix", "value": "/"},
    title="HTTPPathMatch",
)

_match = obj(
    optional("path", _path_match),
    optional("headers", named_matches(header_value)),
    optional("queryParams", named_matches(string(min_length=1, max_length=1024))),
    optional("method", http_method),
    title="HTTPRouteMatch",
)

_timeouts = obj(
    optional("request", duration),
    optional("backendRequest", duration),
    rule(
        "!(has(self.request) && has(self.backendRequest) && duration(self.request) != duration('0s') && "
        "duration(self.backendRequest) > duration(self.request))",
        "backendRequest timeout cannot be longer than request timeout",
    ),
    title="HTTPRouteTimeouts",
)

retry = obj(
    optional("codes", array(integer(minimum=400, maximum=599), list_type="atomic")),
    optional("attempts", integer()),
    optional("backoff", duration),
    title="HTTPRouteRetry",
)

_NOT_ONE_PREFIX = (
    "((size(self.matches) != 1 || !has(self.matches[0].path) || self.matches[0].path.type != 'PathPrefix')"
    " ? false : true)"
)


def _replaces_prefix(filters: str, member: str) -> str:
    """CEL: exactly one of the filters replaces the matched prefix."""
    return (
        f"{filters}.exists_one(f, has(f.{member}) && has(f.{member}.path) && "
        f"f.{member}.path.type == 'ReplacePrefixMatch' && has(f.{member}.path.replacePrefixMatch))"
    )


def _prefix_rules(name: str, member: str, within: str) -> tuple[Rule, Rule]:
    """A filter that replaces the matched prefix needs exactly one PathPrefix match to know which."""
    tail = f"using {name} filter with path.replacePrefixMatch, exactly one PathPrefix match must be specified"
    return (
        rule(
            f"(has(self.filters) && {_replaces_prefix('self.filters', member)}) ? {_NOT_ONE_PREFIX} : true",
            f"When {tail}",
        ),
        rule(
            "(has(self.backendRefs) && self.backendRefs.exists_one(b, (has(b.filters) && "
            f"{_replaces_prefix('b.filters', member)}))) ? {_NOT_ONE_PREFIX} : true",
            f"{within} {tail}",
        ),
    )


_EVERYTHING = [{"path": {"type": "PathPrefix", "value": "/"}}]

_rule = route_rule(
    array(_match, max_items=64, list_type="atomic", default=_EVERYTHING),
    http_filters,
    optional("timeouts", _timeouts),
    optional("retry", retry),
    rule(
        "(has(self.backendRefs) && size(self.backendRefs) > 0) ? "
        "(!has(self.filters) || self.filters.all(f, !has(f.requestRedirect))) : true",
        "RequestRedirect filter must not be used together with backendRefs",
    ),
    *_prefix_rules("RequestRedirect", "requestRedirect", "Within backendRefs, when"),
    *_prefix_rules("URLRewrite", "urlRewrite", "Within backendRefs, When"),
    title="HTTPRouteRule",
)

http_route = route_kind(
    "HTTPRoute",
    "HTTP",
    route_rules(_rule, "self[{0}].matches.size()", min_items=1, default=[{"matches": _EVERYTHING}]),
)

KINDS = (http_route, replace(http_route, version="v1beta1", storage=False))
