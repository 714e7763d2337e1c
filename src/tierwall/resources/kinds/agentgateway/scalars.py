"""Scalars of the agentgateway API: CEL expressions, bounded texts, durations, byte sizes, header names, URLs."""

from msgspec import UNSET, UnsetType

from tierwall.resources.kinds.gateway_types.names import DURATION, HEADER_TOKEN
from tierwall.resources.schema import Rule, Schema, enum, int_or_string, rule, string

_QUANTITY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|[eE](\+?0*([0-9]|1[0-8])|-0*[0-9]))?$"

cel_expression = string(min_length=1, max_length=16384)
tiny_string = string(min_length=1, max_length=64)
short_string = string(min_length=1, max_length=256)
long_string = string(min_length=1, max_length=1024)
url = string(min_length=1, max_length=1024, pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")
failure_mode = enum("FailClosed", "FailOpen")
any_header_name = string(
    rule(
        "!self.startsWith(':') || self in [':authority', ':method', ':path', ':scheme', ':status']",
        "pseudo-headers must be one of :authority, :method, :path, :scheme, or :status",
    ),
    min_length=1,
    max_length=256,
    pattern=HEADER_TOKEN.replace("^", "^:?", 1),
)


def duration(at_least: str, message: str, *, default: str | UnsetType = UNSET, description: str = "") -> Schema:
    """A Go duration such as `1m30s` with a lower bound; `message` is what the server says below it."""
    return string(
        rule(f"duration(self) >= duration('{at_least}')", message),
        pattern=DURATION,
        default=default,
        description=description,
    )


def byte_size(*rules: Rule) -> Schema:
    """A quantity of bytes, as a number or a text such as `64Ki`.

    The rule bounds numbers only. Texts are bounded by the pattern, as in the CRD: comparing quantities there would
    exceed the server's cost limit.
    """
    return int_or_string(
        *rules,
        rule(
            "(self >= 1 && self <= 4294967295) || self.size() > 0",
            "value must be at least 1 byte and fit within uint32",
        ),
        min_length=1,
        max_length=32,
        pattern=_QUANTITY,
    )
