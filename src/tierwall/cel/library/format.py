"""Named formats (apiserver pkg/cel/library/format.go; the rules and words of apimachinery's validation)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from tierwall.cel.library.table import Overload
from tierwall.cel.library.url import request_uri_problem
from tierwall.cel.types import STRING, Type, list_of, optional_of
from tierwall.cel.values import NONE, Format, OptionalValue, size_of

FORMAT = Type(Format.cel_type)

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_KEY})?"
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})", re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))", re.ASCII)

_ALPHANUMERIC = "and must start and end with an alphanumeric character"
_LABEL_MESSAGE = (
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ALPHANUMERIC}"
)
_SUBDOMAIN_MESSAGE = (
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ALPHANUMERIC}"
)
_LABEL_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character"
)
_KEY_MESSAGE = f"must consist of alphanumeric characters, '-', '_' or '.', {_ALPHANUMERIC}"
_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', " + _ALPHANUMERIC
)


def _regex_message(message: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{pattern}')"


def _matches(pattern: str, text: str) -> bool:
    # The patterns backtrack, so a text beyond every length limit is not given to them.
    return len(text) <= 1000 and re.fullmatch(pattern, text, re.ASCII) is not None


def _bounded(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(text.encode("utf-8", "surrogatepass")) > limit else []


def dns_label(text: str) -> list[str]:
    """RFC 1123 label."""
    problems = _bounded(text, 63)
    if not _matches(_LABEL, text):
        dotted = _matches(_SUBDOMAIN, text)
        problems.append(
            "must not contain dots" if dotted else _regex_message(_LABEL_MESSAGE, _LABEL, "my-name", "123-abc")
        )
    return problems


def dns_subdomain(text: str) -> list[str]:
    """RFC 1123 subdomain."""
    problems = _bounded(text, 253)
    if not _matches(_SUBDOMAIN, text):
        problems.append(_regex_message(_SUBDOMAIN_MESSAGE, _SUBDOMAIN, "example.com"))
    return problems


def dns_1035_label(text: str) -> list[str]:
    """RFC 1035 label."""
    problems = _bounded(text, 63)
    if not _matches(_LABEL_1035, text):
        problems.append(_regex_message(_LABEL_1035_MESSAGE, _LABEL_1035, "my-name", "abc-123"))
    return problems


def _prefix_of(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """A name that something is still to be added to: a trailing dash is allowed."""

    def validate(text: str) -> list[str]:
        return check(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)

    return validate


def qualified_name(text: str) -> list[str]:
    """A label key: a name with an optional DNS subdomain before a slash."""
    example = _regex_message(_KEY_MESSAGE, _KEY, "MyName", "my.name", "123-abc")
    parts = text.split("/")
    problems: list[str] = []
    if len(parts) > 2:
        return [
            f"a valid label key {example} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in dns_subdomain(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    problems += [f"name part {problem}" for problem in _bounded(name, 63)]
    if not _matches(_KEY, name):
        problems.append(f"name part {example}")
    return problems


def label_value(text: str) -> list[str]:
    """A label value."""
    problems = _bounded(text, 63)
    if not _matches(_VALUE, text):
        problems.append(_regex_message(_VALUE_MESSAGE, _VALUE, "MyValue", "my_value", "12345"))
    return problems


def uri(text: str) -> list[str]:
    """An absolute URI or path."""
    problem = request_uri_problem(text)
    return [] if problem is None else [f'parse "{text[:200]}": {problem}']


def is_date(text: str) -> bool:
    """RFC 3339 full-date."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    try:
        # The year 0 is one to Go; it is a leap year, as 4 is.
        date(int(match[1]) or 4, int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True


def is_datetime(text: str) -> bool:
    """RFC 3339 date-time; hours, minutes and seconds in range."""
    parts = text.lower().split("t")
    if len(text) < 4 or len(parts) < 2 or not is_date(parts[0]):
        return False
    match = _TIME.fullmatch(parts[1])
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _says(message: str, holds: Callable[[str], bool]) -> Callable[[str], list[str]]:
    return lambda text: [] if holds(text) else [message]


FORMATS: dict[str, Format] = {
    "dns1123Label": Format("DNS1123Label", dns_label, 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", dns_subdomain, 60),
    "dns1035Label": Format("DNS1035Label", dns_1035_label, 30),
    "qualifiedName": Format("QualifiedName", qualified_name, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", _prefix_of(dns_label), 30),
    "dns1123SubdomainPrefix": Format("DNS1123SubdomainPrefix", _prefix_of(dns_subdomain), 60),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", _prefix_of(dns_1035_label), 30),
    "labelValue": Format("LabelValue", label_value, 40),
    "uri": Format("URI", uri, 1103),
    "uuid": Format("uuid", _says("does not match the UUID format", lambda s: _UUID.fullmatch(s) is not None), 83),
    "byte": Format("byte", _says("invalid base64", lambda s: _BASE64.fullmatch(s) is not None), 84),
    "date": Format("date", _says("invalid date", is_date), 77),
    "datetime": Format("datetime", _says("invalid datetime", is_datetime), 77),
}


def named(name: str) -> OptionalValue:
    """`format.named(name)`."""
    found = FORMATS.get(name)
    return NONE if found is None else OptionalValue(found)


def validate(format: Format, text: str) -> OptionalValue:
    """The problems of the text, or none."""
    problems = format.validate(text)
    return OptionalValue(problems) if problems else NONE


def _validate_cost(format: Format, text: object) -> int:
    return -(-(1 + size_of(text)) // 10) * -(-format.regex_size // 4)


def _constant(format: Format) -> Callable[[], Format]:
    return lambda: format


OVERLOADS: tuple[Overload, ...] = (
    Overload("format.named", "format-named", (STRING,), optional_of(FORMAT), named, since=31),
    Overload(
        "validate",
        "format-validate",
        (FORMAT, STRING),
        optional_of(list_of(STRING)),
        validate,
        member=True,
        cost=_validate_cost,
        since=31,
    ),
    *(
        Overload(f"format.{name}", f"format.{name}", (), FORMAT, _constant(format), since=31)
        for name, format in FORMATS.items()
    ),
)
