"""Named text formats: what a name, a label, a CIDR or a port must look like, in the API server's words.

Formats that begin with `k8s-` are apimachinery's own checks (`pkg/api/validate/content`, `pkg/util/validation`); each
gives every reason at once. The others are OpenAPI formats (go-openapi/strfmt), which have no reasons beyond their name.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Any

Reasons = Callable[[Any], list[str]]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_key = re.compile(_KEY).fullmatch
_is_label_value = re.compile(f"({_KEY})?").fullmatch
_is_label_1035 = re.compile(_LABEL_1035).fullmatch
_is_port_name = re.compile("[-a-z0-9]+").fullmatch
_has_letter = re.compile("[a-z]").search
_is_date_time = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:?[0-9]{2})"
).fullmatch
_is_go_duration = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)").match

_KEY_WORDS = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def _regex(words: str, pattern: str, *examples: str) -> str:
    quoted = " or ".join(f"'{example}', " for example in examples)
    return f"{words} (e.g. {quoted}regex used for validation is '{pattern}')"


def _size(text: str) -> int:
    """Length in bytes, as Go counts."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _longer(text: str, limit: int, unit: str = "characters") -> list[str]:
    """Go counts bytes, whatever its message says: `characters` for names, `bytes` for labels."""
    return [f"must be no more than {limit} {unit}"] if _size(text) > limit else []


def dns_subdomain(text: str, unit: str = "characters") -> list[str]:
    """RFC 1123 subdomain: most object names."""
    if _is_subdomain(text):
        return _longer(text, 253, unit)
    words = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
        "and must start and end with an alphanumeric character"
    )
    return [*_longer(text, 253, unit), _regex(words, _SUBDOMAIN, "example.com")]


def dns_label(text: str) -> list[str]:
    """RFC 1123 label: names of namespaces."""
    if _is_label(text):
        return _longer(text, 63)
    words = (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character"
    )
    reason = "must not contain dots" if _is_subdomain(text) else _regex(words, _LABEL, "my-name", "123-abc")
    return [*_longer(text, 63), reason]


def dns_label_1035(text: str) -> list[str]:
    """RFC 1035 label: names of Services."""
    if _is_label_1035(text):
        return _longer(text, 63)
    words = (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
        "start with an alphabetic character, and end with an alphanumeric character"
    )
    return [*_longer(text, 63), _regex(words, _LABEL_1035, "my-name", "abc-123")]


def path_segment(text: str) -> list[str]:
    """A name that may stand in a URL: RBAC objects."""
    return [f"may not be '{text}'"] if text in (".", "..") else path_segment_prefix(text)


def path_segment_prefix(text: str) -> list[str]:
    """What such a name may begin with."""
    return [f"may not contain '{part}'" for part in ("/", "%") if part in text]


def label_key(text: str) -> list[str]:
    """A label's key: an optional DNS prefix and a name."""
    parts = text.split("/")
    if len(parts) > 2:
        words = _regex(_KEY_WORDS, _KEY, "MyName", "my.name", "123-abc")
        return [f"a valid label key {words} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    reasons: list[str] = []
    if len(parts) == 2:
        wrong = dns_subdomain(parts[0], "bytes") if parts[0] else ["must be non-empty"]
        reasons += [f"prefix part {reason}" for reason in wrong]
    name = parts[-1]
    if not name:
        reasons.append("name part must be non-empty")
    reasons += [f"name part {reason}" for reason in _longer(name, 63, "bytes")]
    if not _is_key(name):
        reasons.append("name part " + _regex(_KEY_WORDS, _KEY, "MyName", "my.name", "123-abc"))
    return reasons


def annotation_key(text: str) -> list[str]:
    """As a label's key, but capitals are free in the prefix too."""
    return label_key(text.lower())


def label_value(text: str) -> list[str]:
    """A label's value."""
    if _is_label_value(text):
        return _longer(text, 63, "bytes")
    words = (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
        "and must start and end with an alphanumeric character"
    )
    return [*_longer(text, 63, "bytes"), _regex(words, f"({_KEY})?", "MyValue", "my_value", "12345")]


def port_name(text: str) -> list[str]:
    """An IANA service name: named ports."""
    reasons = _longer(text, 15)
    if not _is_port_name(text):
        reasons.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _has_letter(text):
        reasons.append("must contain at least one letter (a-z)")
    if "--" in text:
        reasons.append("must not contain consecutive hyphens")
    if text[:1] == "-" or text[-1:] == "-":
        reasons.append("must not begin or end with a hyphen")
    return reasons


def port(value: int | str) -> list[str]:
    """A port number, or a port's name."""
    if isinstance(value, str):
        return port_name(value)
    return [] if 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]


def cidr(text: str) -> list[str]:
    """A CIDR as fields older than strict validation take it: host bits and leading zeros are let through."""
    if parse_cidr(text) is None:
        return ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
    return []


def parse_cidr(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """A CIDR as Go's sloppy parser reads it, masked; None if it is none."""
    address, slash, bits = text.partition("/")
    if not slash or not bits.isascii() or not bits.isdigit() or len(bits) > 4 or "%" in address:
        return None
    if ":" not in address:
        # Go's old parser ignored leading zeros; Python refuses them.
        address = ".".join(
            part.lstrip("0") or "0" if part.isascii() and part.isdigit() else "x" for part in address.split(".")
        )
    try:
        return ipaddress.ip_network(f"{address}/{int(bits)}", strict=False)
    except ValueError:
        return None


def _is_ip(text: str, version: int) -> bool:
    try:
        return "%" not in text and ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _named(reasons: Callable[[str], list[str]]) -> Reasons:
    """An empty name is a missing one; that is for a rule to say."""
    return lambda text: reasons(text) if text else []


def _prefix(reasons: Callable[[str], list[str]]) -> Reasons:
    """A text that something is appended to: it may end in a dash.

    As upstream does it, the dash goes with the byte before it, whatever that is (`maskTrailingDash`).
    """

    def of(text: str) -> list[str]:
        octets = text.encode("utf-8", "replace")
        if len(octets) > 1 and text.endswith("-"):
            text = octets[:-2].decode("utf-8", "replace") + "a"
        return reasons(text) if text else []

    return of


KUBERNETES: dict[str, Reasons] = {
    "k8s-long-name": _named(dns_subdomain),
    "k8s-short-name": _named(dns_label),
    "k8s-service-name": _named(dns_label_1035),
    "k8s-path-segment-name": path_segment,
    "k8s-long-name-prefix": _prefix(dns_subdomain),
    "k8s-short-name-prefix": _prefix(dns_label),
    "k8s-service-name-prefix": _prefix(dns_label_1035),
    "k8s-path-segment-name-prefix": path_segment_prefix,
    "k8s-label-key": label_key,
    "k8s-annotation-key": annotation_key,
    "k8s-label-value": label_value,
    "k8s-port-name": port_name,
    "k8s-port": port,
    "k8s-cidr": cidr,
}

OPENAPI: dict[str, Callable[[str], bool]] = {
    "date-time": lambda text: _is_date_time(text) is not None,
    "duration": lambda text: _is_go_duration(text) is not None,
    "byte": _is_base64,
    "ipv4": lambda text: _is_ip(text, 4),
    "ipv6": lambda text: _is_ip(text, 6),
    "cidr": lambda text: parse_cidr(text) is not None,
}

NUMBER_RANGES: dict[str, tuple[int, int]] = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
