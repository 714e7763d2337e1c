"""Named formats (apiserver pkg/cel/library/format.go; the rules and words of apimachinery's validation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, members
from tierwall.cel.library.url import request_uri_problem
from tierwall.cel.types import STRING, Type, list_of, optional_of
from tierwall.cel.values import NONE, Opaque, OptionalValue
from tierwall.values import formats, names


class Format(Opaque, msgspec.Struct, frozen=True):
    """A named format; `validate` gives the problems of a string."""

    cel_type: ClassVar[str] = "kubernetes.NamedFormat"
    name: str
    validate: Callable[[str], list[str]]
    regex_size: int

    def notation(self) -> str:
        """The name."""
        return self.name


FORMAT = Type(Format.cel_type)


def uri(text: str) -> list[str]:
    """An absolute URI or path."""
    problem = request_uri_problem(text)
    return [] if problem is None else [f'parse "{text[:200]}": {problem}']


def _in_bytes(reasons: Callable[[str, str], list[str]]) -> names.Reasons:
    """A rule for names, in the words of an expression: a limit counts bytes."""
    return lambda text: reasons(text, "bytes")


def _says(message: str, name: str) -> names.Reasons:
    is_valid = formats.FORMATS[name]
    return lambda text: [] if is_valid(text) else [message]


_LABEL = _in_bytes(names.dns_label)
_SUBDOMAIN = _in_bytes(names.dns_subdomain)
_LABEL_1035 = _in_bytes(names.dns_label_1035)

FORMATS: dict[str, Format] = {
    "dns1123Label": Format("DNS1123Label", _LABEL, 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", _SUBDOMAIN, 60),
    "dns1035Label": Format("DNS1035Label", _LABEL_1035, 30),
    "qualifiedName": Format("QualifiedName", names.label_key, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", names.prefix_of(_LABEL), 30),
    "dns1123SubdomainPrefix": Format("DNS1123SubdomainPrefix", names.prefix_of(_SUBDOMAIN), 60),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", names.prefix_of(_LABEL_1035), 30),
    "labelValue": Format("LabelValue", names.label_value, 40),
    "uri": Format("URI", uri, 1103),
    "uuid": Format("uuid", _says("does not match the UUID format", "uuid"), 83),
    "byte": Format("byte", _says("invalid base64", "byte"), 84),
    "date": Format("date", _says("invalid date", "date"), 77),
    "datetime": Format("datetime", _says("invalid datetime", "datetime"), 77),
}


def named(name: str) -> OptionalValue:
    """`format.named(name)`."""
    format = FORMATS.get(name)
    return NONE if format is None else OptionalValue(format)


def validate(format: Format, text: str) -> OptionalValue:
    """The problems of the string, or none."""
    problems = format.validate(text)
    return OptionalValue(problems) if problems else NONE


def _validate_cost(format: Format, text: object) -> int:
    return cost.regex(text, format.regex_size)


def _constant(format: Format) -> Callable[[], Format]:
    return lambda: format


_of_format = members(FORMAT, since=31)

OVERLOADS: tuple[Overload, ...] = (
    Overload("format.named", (STRING,), optional_of(FORMAT), named, since=31),
    _of_format("validate", (STRING,), optional_of(list_of(STRING)), validate, cost=_validate_cost),
    *(Overload(f"format.{name}", (), FORMAT, _constant(format), since=31) for name, format in FORMATS.items()),
)
