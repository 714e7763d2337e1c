"""OpenAPI formats of strings, as CRDs and CEL's `format` library check them (kube-openapi, `pkg/validation/strfmt`).

The error for a value only names its format. An API server ignores a format that is not in its table. `uri` is not here,
because it needs the URL parser of CEL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from tierwall.values.addresses import read_cidr, read_ip, read_ip_sloppily
from tierwall.values.names import dns_label, dns_subdomain
from tierwall.values.pattern import pattern
from tierwall.values.time import parse_duration


def _matches(pattern: str, flags: int = 0) -> Callable[[str], bool]:
    """Return a check that a whole string matches; the pattern is compiled on first use."""
    return lambda text: re.fullmatch(pattern, text, flags | re.ASCII) is not None


_HEX = r"[0-9a-f]"
# (.[0-9]+)? is upstream's: any character may take the place of the point.
_TIME = pattern(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))", re.ASCII)
_DATE = pattern(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_AMOUNT = pattern(r"(?<![0-9])([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)")
_UNIT = pattern(r"ns|nano.*|us|µs|micro.*|ms|milli.*|s|sec.*|m|min.*|h|hr|hour.*|d|day.*|w|wk|week.*")
_CARD = (
    r"(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}"
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})"
)
_CHANNEL = r"\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*"
_MAX_INT = 2**63 - 1


def is_date(text: str) -> bool:
    """Whether the text is an RFC 3339 full-date."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    try:
        # Go accepts the year 0, a leap year like the year 4.
        date(int(match[1]) or 4, int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True


def is_datetime(text: str) -> bool:
    """Whether the text is an RFC 3339 date-time in either case, with hours, minutes and seconds in range."""
    parts = text.lower().split("t")
    if len(text) < 4 or len(parts) < 2 or not is_date(parts[0]):
        return False
    match = _TIME.fullmatch(parts[1])
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def is_duration(text: str) -> bool:
    """Whether the text is a Go duration, or has a number with a unit of time as in Scala: `2 days`."""
    if parse_duration(text) is not None:
        return True
    amounts = _AMOUNT.findall(text)
    if any(len(number) > 30 or int(number) > _MAX_INT for number, _ in amounts):
        return False
    return any(_UNIT.fullmatch(unit.lower()) for _, unit in amounts)


def is_hostname(text: str) -> bool:
    """Whether the text is a host name of letters and symbols of any script; a top-level domain has only letters."""
    if len(text.encode("utf-8", "replace")) > 255:
        return False
    *labels, last = text.split(".")
    if any(len(label.encode("utf-8", "replace")) > 63 for label in (*labels, last)):
        return False
    if not labels:
        # Upstream's pattern for a single label accepts one dash, as the second character.
        rest = last[1:].removeprefix("-")
        return _is_host_character(last[:1]) and all(map(_is_host_character, rest)) and len(rest) <= 62
    if not 2 <= len(last) <= 63 or not all(map(_is_letter, last)):
        return False
    return all(
        _is_host_character(label[:1])
        and _is_host_character(label[-1])
        and all(char == "-" or _is_host_character(char) for char in label)
        for label in labels
    )


def _is_letter(char: str) -> bool:
    from unicodedata import category

    return category(char)[0] == "L"


def _is_host_character(char: str) -> bool:
    from unicodedata import category

    return bool(char) and (char in "0123456789" or category(char)[0] in "LS")


_ATOM_CHARACTER = r"A-Za-z0-9!#$%&'*+\-/=?^_`{|}~\x80-\U0010ffff"
_QUOTED = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\x20-\x7e\t\x80-\U0010ffff])+"'
_DOT_ATOM = rf"[{_ATOM_CHARACTER}]+(?:\.[{_ATOM_CHARACTER}]+)*"
# Adjacent parts of a repetition must not match the same text: a hostile address would take exponential time.
_DISPLAY_NAME = rf"(?:[{_ATOM_CHARACTER}. \t]|{_QUOTED})*"
_ADDRESS = rf"[ \t]*(?:{_DOT_ATOM}|{_QUOTED})@[ \t]*(?:{_DOT_ATOM}|\[([^\]]*)\])[ \t]*"


def is_email(text: str) -> bool:
    """Whether `net/mail.ParseAddress` accepts the text as one address (comments and folded lines are not supported)."""
    text = text.strip(" \t")
    if text.endswith(">"):
        display, angle, text = text[:-1].rpartition("<")
        if not angle or display.lstrip(" \t")[:1] == "." or not re.fullmatch(_DISPLAY_NAME, display):
            return False
    match = re.fullmatch(_ADDRESS, text)
    return match is not None and (match[1] is None or read_ip(match[1]) is not None)


def is_mac(text: str) -> bool:
    """Whether the text is a MAC address of 6, 8 or 20 bytes: `01:23:…`, `01-23-…`, `0123.4567.…` or `01234567…`."""
    separator = next((char for char in text if char in ":-."), "")
    width = 4 if separator == "." else 2 if separator else len(text)
    groups = text.split(separator) if separator else [text]
    if len(groups) * width not in (12, 16, 40):
        return False
    return all(len(group) == width and re.fullmatch("[0-9a-fA-F]+", group) for group in groups)


def is_credit_card(text: str) -> bool:
    """Whether the digits of the text are a card number of a known brand with a valid check digit (Luhn)."""
    digits = [int(char) for char in text if char in "0123456789"]
    if not re.fullmatch(_CARD, "".join(map(str, digits))):
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def is_isbn10(text: str) -> bool:
    """Whether the text is ten digits, the last of which may be X, with a valid check digit."""
    text = re.sub(r"[\s-]+", "", text, flags=re.ASCII)
    if not re.fullmatch(r"[0-9]{9}[0-9X]", text):
        return False
    return sum(place * (10 if char == "X" else int(char)) for place, char in enumerate(text, 1)) % 11 == 0


def is_isbn13(text: str) -> bool:
    """Whether the text is thirteen digits with a valid check digit."""
    text = re.sub(r"[\s-]+", "", text, flags=re.ASCII)
    if not re.fullmatch(r"[0-9]{13}", text):
        return False
    return sum(int(char) * (3 if place % 2 else 1) for place, char in enumerate(text)) % 10 == 0


def _uuid(third: str, fourth: str) -> Callable[[str], bool]:
    return _matches(rf"{_HEX}{{8}}-?{_HEX}{{4}}-?{third}-?{fourth}-?{_HEX}{{12}}", re.IGNORECASE)


FORMATS: dict[str, Callable[[str], bool]] = {
    "bsonobjectid": _matches(r"[0-9a-fA-F]{24}"),
    "byte": _matches(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"),
    "cidr": lambda text: read_cidr(text) is not None,
    "creditcard": is_credit_card,
    "date": is_date,
    "datetime": is_datetime,
    "duration": is_duration,
    "email": is_email,
    "hexcolor": _matches(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": is_hostname,
    "ipv4": lambda text: "." in text and read_ip_sloppily(text) is not None,
    "ipv6": lambda text: ":" in text and read_ip(text) is not None,
    "isbn": lambda text: is_isbn10(text) or is_isbn13(text),
    "isbn10": is_isbn10,
    "isbn13": is_isbn13,
    "k8slongname": lambda text: not dns_subdomain(text),
    "k8sshortname": lambda text: not dns_label(text),
    "mac": is_mac,
    "password": lambda text: True,
    "rgbcolor": _matches(rf"rgb\({_CHANNEL},{_CHANNEL},{_CHANNEL}\)"),
    "ssn": lambda text: len(text) == 11 and re.fullmatch(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}", text) is not None,
    "uuid": _uuid(rf"{_HEX}{{4}}", rf"{_HEX}{{4}}"),
    "uuid3": _uuid(rf"3{_HEX}{{3}}", rf"{_HEX}{{4}}"),
    "uuid4": _uuid(rf"4{_HEX}{{3}}", rf"[89ab]{_HEX}{{3}}"),
    "uuid5": _uuid(rf"5{_HEX}{{3}}", rf"[89ab]{_HEX}{{3}}"),
}
