"""Check names, label keys and values, and port names, with the API server's error messages.

The rules are those of apimachinery (`pkg/api/validate/content`, `pkg/util/validation`). Each function returns every
reason why a string is invalid. Lengths count bytes as in Go, even where the message says `characters`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tierwall.values.pattern import pattern

Reasons: TypeAlias = Callable[[str], list[str]]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_KEY})?"
# The keys and values of labels as regular expressions, without their limits of length.
LABEL_KEY, LABEL_VALUE = rf"({_SUBDOMAIN}/)?{_KEY}", _VALUE
_IS_LABEL = pattern(_LABEL)
_IS_SUBDOMAIN = pattern(_SUBDOMAIN)
_IS_LABEL_1035 = pattern(_LABEL_1035)
_IS_KEY = pattern(_KEY)
_IS_VALUE = pattern(_VALUE)
_IS_PORT_NAME = pattern("[-a-z0-9]+")
_HAS_LETTER = pattern("[a-z]")

_ENDS = "and must start and end with an alphanumeric character"


def _explained(words: str, pattern: str, *examples: str) -> str:
    quoted = " or ".join(f"'{example}', " for example in examples)
    return f"{words} (e.g. {quoted}regex used for validation is '{pattern}')"


_LABEL_REASON = _explained(
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS}",
    _LABEL, "my-name", "123-abc",
)  # fmt: skip
_SUBDOMAIN_REASON = _explained(
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ENDS}",
    _SUBDOMAIN, "example.com",
)  # fmt: skip
_LABEL_1035_REASON = _explained(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character",
    _LABEL_1035, "my-name", "abc-123",
)  # fmt: skip
_KEY_REASON = _explained(
    f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}", _KEY, "MyName", "my.name", "123-abc"
)
_VALUE_REASON = _explained(
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ENDS}",
    _VALUE, "MyValue", "my_value", "12345",
)  # fmt: skip


def _too_long(text: str, limit: int, unit: str) -> list[str]:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return [f"must be no more than {limit} {unit}"] if size > limit else []


def dns_subdomain(text: str, unit: str = "characters") -> list[str]:
    """Check an RFC 1123 subdomain, the name of most objects."""
    return _too_long(text, 253, unit) + ([] if _IS_SUBDOMAIN.fullmatch(text) else [_SUBDOMAIN_REASON])


def dns_label(text: str, unit: str = "characters") -> list[str]:
    """Check an RFC 1123 label, the name of a namespace."""
    if _IS_LABEL.fullmatch(text):
        return _too_long(text, 63, unit)
    return [*_too_long(text, 63, unit), "must not contain dots" if _IS_SUBDOMAIN.fullmatch(text) else _LABEL_REASON]


def dns_label_1035(text: str, unit: str = "characters") -> list[str]:
    """Check an RFC 1035 label, the name of a Service."""
    return _too_long(text, 63, unit) + ([] if _IS_LABEL_1035.fullmatch(text) else [_LABEL_1035_REASON])


def path_segment(text: str) -> list[str]:
    """Check a name that may be part of a URL path, the name of an RBAC object."""
    return [f"may not be '{text}'"] if text in (".", "..") else path_segment_prefix(text)


def path_segment_prefix(text: str) -> list[str]:
    """Check the beginning of a name that may be part of a URL path."""
    return [f"may not contain '{part}'" for part in ("/", "%") if part in text]


def label_key(text: str) -> list[str]:
    """Check the key of a label, a "qualified name": an optional DNS prefix and a name."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_KEY_REASON} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    reasons: list[str] = []
    if slash:
        wrong = dns_subdomain(prefix, "bytes") if prefix else ["must be non-empty"]
        reasons += [f"prefix part {reason}" for reason in wrong]
    if not name:
        reasons.append("name part must be non-empty")
    reasons += [f"name part {reason}" for reason in _too_long(name, 63, "bytes")]
    if not _IS_KEY.fullmatch(name):
        reasons.append(f"name part {_KEY_REASON}")
    return reasons


def annotation_key(text: str) -> list[str]:
    """Check the key of an annotation: like that of a label, but its prefix may have capitals."""
    return label_key(text.lower())


def label_value(text: str) -> list[str]:
    """Check the value of a label."""
    return _too_long(text, 63, "bytes") + ([] if _IS_VALUE.fullmatch(text) else [_VALUE_REASON])


def port_name(text: str) -> list[str]:
    """Check an IANA service name, the name of a port."""
    reasons = _too_long(text, 15, "characters")
    if not _IS_PORT_NAME.fullmatch(text):
        reasons.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _HAS_LETTER.search(text):
        reasons.append("must contain at least one letter (a-z)")
    if "--" in text:
        reasons.append("must not contain consecutive hyphens")
    if text[:1] == "-" or text[-1:] == "-":
        reasons.append("must not begin or end with a hyphen")
    return reasons


def prefix_of(reasons: Reasons) -> Reasons:
    """Return the check for a prefix to which something is appended: it may end in a dash.

    As upstream does, the dash is dropped together with the byte before it, whatever that is (`maskTrailingDash`).
    """

    def of(text: str) -> list[str]:
        if len(text) > 1 and text.endswith("-"):
            text = text.encode("utf-8", "replace")[:-2].decode("utf-8", "replace") + "a"
        return reasons(text)

    return of
