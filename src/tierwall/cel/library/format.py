"""Named formats (apiserver pkg/cel/library/format.go; the rules and words of apimachinery's validation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.library.url import request_uri_problem
from tierwall.cel.types import STRING, Type, list_of, optional_of
from tierwall.cel.values import NONE, OpaqueValue, OptionalValue
from tierwall.values import formats, names


class NamedFormat(OpaqueValue, msgspec.Struct, frozen=True):
    """A named format; `validate` gives the problems of a string."""

    cel_type: ClassVar[str] = "kubernetes.NamedFormat"
    name: str
    validate: Callable[[str], list[str]]
    regex_size: int

    def notation(self) -> str:
        """Return the name."""
        return self.name


FORMAT = Type(NamedFormat.cel_type)


def uri(text: str) -> list[str]:
    """Return the problems of an absolute URI or path."""
    problem = request_uri_problem(text)
    return [] if problem is None else [f'parse "{text[:200]}": {problem}']


def _in_bytes(reasons: Callable[[str, str], list[str]]) -> names.Reasons:
    """Return a rule for names, in the words of an expression: a limit counts bytes."""
    return lambda text: reasons(text, "bytes")


def _says(message: str, name: str) -> names.Reasons:
    is_valid = formats.FORMATS[name]
    return lambda text: [] if is_valid(text) else [message]


_LABEL = _in_bytes(names.dns_label)
_SUBDOMAIN = _in_bytes(names.dns_subdomain)
_LABEL_1035 = _in_bytes(names.dns_label_1035)

FORMATS: dict[str, NamedFormat] = {
    "dns1123Label": NamedFormat("DNS1123Label", _LABEL, 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _SUBDOMAIN, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _LABEL_1035, 30),
    "qualifiedName": NamedFormat("QualifiedName", names.label_key, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", names.prefix_of(_LABEL), 30),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", names.prefix_of(_SUBDOMAIN), 60),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", names.prefix_of(_LABEL_1035), 30),
    "labelValue": NamedFormat("LabelValue", names.label_value, 40),
    "uri": NamedFormat("URI", uri, 1103),
    "uuid": NamedFormat("uuid", _says("does not match the UUID format", "uuid"), 83),
    "byte": NamedFormat("byte", _says("invalid base64", "byte"), 84),
    "date": NamedFormat("date", _says("invalid date", "date"), 77),
    "datetime": NamedFormat("datetime", _says("invalid datetime", "datetime"), 77),
}


def named(name: str) -> OptionalValue:
    """`format.named(name)`."""
    format = FORMATS.get(name)
    return NONE if format is None else OptionalValue(format)


def validate(format: NamedFormat, text: str) -> OptionalValue:
    """Return the problems of the string, or none."""
    problems = format.validate(text)
    return OptionalValue(problems) if problems else NONE


def _validate_cost(format: NamedFormat, text: object) -> int:
    return cost.regex(text, format.regex_size)


def _constant(format: NamedFormat) -> Callable[[], NamedFormat]:
    return lambda: format


_of_format = member_overloads(FORMAT, since=31)

OVERLOADS: tuple[Overload, ...] = (
    Overload("format.named", (STRING,), optional_of(FORMAT), named, since=31),
    _of_format("validate", (STRING,), optional_of(list_of(STRING)), validate, cost=_validate_cost),
    *(Overload(f"format.{name}", (), FORMAT, _constant(format), since=31) for name, format in FORMATS.items()),
)
