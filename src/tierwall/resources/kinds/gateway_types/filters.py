"""Route filters of the Gateway API: header modifiers, mirror, redirect, rewrite, CORS, external authorization.

A filter is a union: `type` names the one member that must be there. The rules for that are written once, in `_union`.
"""

from tierwall.resources.kinds.gateway_types.names import (
    PATH_CHARACTERS,
    header_name,
    header_value,
    http_method,
    port_number,
    precise_hostname,
)
from tierwall.resources.kinds.gateway_types.references import backend_object_reference, local_object_reference
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    array,
    boolean,
    enum,
    integer,
    obj,
    optional,
    refine,
    required,
    rule,
    string,
)


def header_modifier(value: Schema = header_value) -> Schema:
    """Headers to set, add and remove; Gateway API's HTTPHeaderFilter."""
    header = obj(required("name", header_name), required("value", value))
    return obj(
        optional("set", array(header, max_items=16, list_type="map", keys=("name",))),
        optional("add", array(header, max_items=16, list_type="map", keys=("name",))),
        optional("remove", array(string(), max_items=16, list_type="set")),
        title="HTTPHeaderFilter",
    )


def _no_wildcard_among(field: str, others: str) -> Rule:
    return rule("!('*' in self && self.size() > 1)", f"{field} cannot contain '*' alongside other {others}")


cors = obj(
    optional(
        "allowOrigins",
        array(
            string(
                min_length=1,
                max_length=253,
                pattern=r"(^\*$)|(^(http(s)?):\/\/(((\*\.)?([a-zA-Z0-9\-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)$)",
            ),
            _no_wildcard_among("AllowOrigins", "origins"),
            max_items=64,
            list_type="set",
        ),
    ),
    optional("allowCredentials", boolean()),
    optional(
        "allowMethods",
        array(
            refine(http_method, enum=(*http_method.enum, "*")),
            _no_wildcard_among("AllowMethods", "methods"),
            max_items=9,
            list_type="set",
        ),
    ),
    optional(
        "allowHeaders",
        array(header_name, _no_wildcard_among("AllowHeaders", "methods"), max_items=64, list_type="set"),
    ),
    optional("exposeHeaders", array(header_name, max_items=64, list_type="set")),
    optional("maxAge", integer(minimum=1, format="int32", default=5)),
    title="HTTPCORSFilter",
)

_header_names = array(string(), max_items=64, list_type="set")

external_auth = obj(
    required("protocol", enum("HTTP", "GRPC")),
    required("backendRef", backend_object_reference),
    optional("grpc", obj(optional("allowedHeaders", _header_names))),
    optional(
        "http",
        obj(
            optional("path", string(max_length=1024, pattern=PATH_CHARACTERS)),
            optional("allowedHeaders", _header_names),
            optional("allowedResponseHeaders", _header_names),
        ),
    ),
    optional("forwardBody", obj(optional("maxSize", integer()))),
    rule("self.protocol == 'GRPC' ? has(self.grpc) : true", "grpc must be specified when protocol is set to 'GRPC'"),
    rule("has(self.grpc) ? self.protocol == 'GRPC' : true", "protocol must be 'GRPC' when grpc is set"),
    rule("self.protocol == 'HTTP' ? has(self.http) : true", "http must be specified when protocol is set to 'HTTP'"),
    rule("has(self.http) ? self.protocol == 'HTTP' : true", "protocol must be 'HTTP' when http is set"),
    title="HTTPExternalAuthFilter",
)

_request_mirror = obj(
    required("backendRef", backend_object_reference),
    optional("percent", integer(minimum=0, maximum=100, format="int32")),
    optional(
        "fraction",
        obj(
            required("numerator", integer(minimum=0, format="int32")),
            optional("denominator", integer(minimum=1, format="int32", default=100)),
            rule("self.numerator <= self.denominator", "numerator must be less than or equal to denominator"),
        ),
    ),
    rule(
        "!(has(self.percent) && has(self.fraction))",
        "Only one of percent or fraction may be specified in HTTPRequestMirrorFilter",
    ),
    title="HTTPRequestMirrorFilter",
)


def _member_for(type_name: str, member: str) -> tuple[Rule, Rule]:
    """A path modifier's type and its member go together."""
    return (
        rule(
            f"self.type == '{type_name}' ? has(self.{member}) : true",
            f"{member} must be specified when type is set to '{type_name}'",
        ),
        rule(
            f"has(self.{member}) ? self.type == '{type_name}' : true",
            f"type must be '{type_name}' when {member} is set",
        ),
    )


_path_modifier = obj(
    required("type", enum("ReplaceFullPath", "ReplacePrefixMatch")),
    optional("replaceFullPath", string(max_length=1024)),
    optional("replacePrefixMatch", string(max_length=1024)),
    *_member_for("ReplaceFullPath", "replaceFullPath"),
    *_member_for("ReplacePrefixMatch", "replacePrefixMatch"),
    title="HTTPPathModifier",
)

_request_redirect = obj(
    optional("scheme", enum("http", "https")),
    optional("hostname", precise_hostname),
    optional("path", _path_modifier),
    optional("port", port_number),
    optional("statusCode", integer(enum=(301, 302, 303, 307, 308), default=302)),
    title="HTTPRequestRedirectFilter",
)

_url_rewrite = obj(
    optional("hostname", precise_hostname), optional("path", _path_modifier), title="HTTPURLRewriteFilter"
)


def _union(members: dict[str, tuple[str, Schema]]) -> Schema:
    """A filter: `type` is one of the keys of `members`, and exactly the member it stands for is there."""
    properties: list[Property] = [required("type", enum(*members))]
    rules: list[Rule] = []
    for type_name, (member, schema) in members.items():
        properties.append(optional(member, schema))
        rules.append(
            rule(
                f"!(has(self.{member}) && self.type != '{type_name}')",
                f"filter.{member} must be nil if the filter.type is not {type_name}",
            )
        )
        rules.append(
            rule(
                f"!(!has(self.{member}) && self.type == '{type_name}')",
                f"filter.{member} must be specified for {type_name} filter.type",
            )
        )
    return obj(*properties, *rules)


def _not_repeated(type_name: str) -> Rule:
    return rule(f"self.filter(f, f.type == '{type_name}').size() <= 1", f"{type_name} filter cannot be repeated")


http_filters = array(
    _union(
        {
            "RequestHeaderModifier": ("requestHeaderModifier", header_modifier()),
            "ResponseHeaderModifier": ("responseHeaderModifier", header_modifier()),
            "RequestMirror": ("requestMirror", _request_mirror),
            "RequestRedirect": ("requestRedirect", _request_redirect),
            "URLRewrite": ("urlRewrite", _url_rewrite),
            "ExtensionRef": ("extensionRef", local_object_reference),
            "CORS": ("cors", cors),
            "ExternalAuth": ("externalAuth", external_auth),
        }
    ),
    rule(
        "!(self.exists(f, f.type == 'RequestRedirect') && self.exists(f, f.type == 'URLRewrite'))",
        "May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite, but not both",
    ),
    _not_repeated("CORS"),
    _not_repeated("RequestHeaderModifier"),
    _not_repeated("ResponseHeaderModifier"),
    _not_repeated("RequestRedirect"),
    _not_repeated("URLRewrite"),
    max_items=16,
    list_type="atomic",
)

grpc_filters = array(
    _union(
        {
            "ResponseHeaderModifier": ("responseHeaderModifier", header_modifier()),
            "RequestHeaderModifier": ("requestHeaderModifier", header_modifier()),
            "RequestMirror": ("requestMirror", _request_mirror),
            "ExtensionRef": ("extensionRef", local_object_reference),
        }
    ),
    _not_repeated("RequestHeaderModifier"),
    _not_repeated("ResponseHeaderModifier"),
    max_items=16,
    list_type="atomic",
)
