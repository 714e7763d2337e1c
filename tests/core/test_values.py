"""Test that values are parsed as in Go; the expected results come from apimachinery and kube-openapi."""

from __future__ import annotations

import time

import pytest

from tierwall.values import names
from tierwall.values.addresses import parse_cidr, read_ip, read_ip_sloppily
from tierwall.values.formats import FORMATS
from tierwall.values.time import parse_duration, parse_seconds, parse_time, parse_timeout


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1h30m1.5s", 5_401_500_000_000), ("-3s", -3_000_000_000), (".5s", 500_000_000), ("+0", 0), ("3µs", 3_000),
        ("9223372036854775807ns", 2**63 - 1), ("-9223372036854775808ns", -(2**63)), ("9223372036854775808ns", None),
        ("", None), ("5", None), ("s", None), (".s", None), ("1 s", None), ("٣s", None), (5, None),
    ],
)  # fmt: skip
def test_durations_are_parsed_as_in_go(text: object, ns: int | None) -> None:
    assert parse_duration(text) == ns


def test_seconds_are_never_negative() -> None:
    assert (parse_seconds("1m30s"), parse_seconds("-1s"), parse_seconds(None)) == (90.0, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0), ("1m", 60.0), ("1h30m", 5400.0), (".5s", 0.5), ("5", 5.0), ("+5", 5.0), ("010", 10.0),
        ("0", 0.0), ("0s", 0.0), ("-1", None), ("-1s", None), ("", None), (" 5", None), ("5.0", None), ("1e3", None),
        ("0x10", None), ("1d", None), ("٣", None), ("9" * 20, None), ("9" * 9000, None),
    ],
)  # fmt: skip
def test_timeouts_are_parsed_as_by_kubectl(text: str, seconds: float | None) -> None:
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01.5Z", 1_500_000_000), ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T1:00:00,5+01:00", 5 * 10**8),
        ("1970-01-01t00:00:00Z", None), ("1970-01-01T00:00:60Z", None), ("1970-02-30T00:00:00Z", None),
        ("1970-01-01T00:00:00", None), ("1970-01-01T00:00:00+25:00", None),
    ],
)  # fmt: skip
def test_times_are_parsed_as_in_go(text: str, ns: int | None) -> None:
    moment = parse_time(text)
    assert (moment.ns if moment else None) == ns


def test_only_the_sloppy_parser_accepts_leading_zeros_in_addresses() -> None:
    assert read_ip("010.0.0.1") is None
    assert str(read_ip_sloppily("010.0.0.01")) == "10.0.0.1"
    assert str(parse_cidr("010.1.2.3/8")) == "10.0.0.0-10.255.255.255"
    assert str(read_ip_sloppily("::ffff:010.0.0.1")) == "::ffff:a00:1"
    for text in ("10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "fe80::1%eth0/64", f"10.0.0.0/{'9' * 5000}", "/8"):
        assert parse_cidr(text) is None, text


def test_a_prefix_of_a_name_may_end_in_a_dash() -> None:
    prefix = names.prefix_of(names.dns_label)
    assert prefix("web-") == []
    assert prefix("é-") != []
    assert prefix("-") != []


@pytest.mark.parametrize(
    ("text", "problems"), [("a/b/c", 1), ("/b", 1), ("A/b", 1), ("a/", 2), ("", 2), ("x" * 64, 1), ("a.b/C_d", 0)]
)
def test_every_problem_of_a_label_key_is_reported(text: str, problems: int) -> None:
    assert len(names.label_key(text)) == problems


_VALID = {
    "bsonobjectid": "507f1f77bcf86cd799439011",
    "byte": "TG9yZW0=",
    "cidr": "010.0.0.0/8",
    "creditcard": "4220 8554 2622 2389",
    "date": "0000-02-29",
    "datetime": "2024-02-29t01:02:03.5+01:00",
    "duration": "2 days",
    "email": "Joe Q. Public <joe@[1.2.3.4]>",
    "hexcolor": "#f00",
    "hostname": "münchen.example.com",
    "ipv4": "01.02.03.4",
    "ipv6": "::ffff:1.2.3.4",
    "isbn": "978-3-8362-2119-1",
    "isbn10": "3-401-01319-X",
    "isbn13": "9784873113685",
    "k8slongname": "a.b-c",
    "k8sshortname": "a-b",
    "mac": "0200.5e10.0000.0001",
    "password": "",
    "rgbcolor": "rgb( 1, 20 ,199)",
    "ssn": "191-60-2869",
    "uuid": "A987FBC94BED5078AF079141BA07C9F3",
    "uuid3": "a987fbc9-4bed-3078-cf07-9141ba07c9f3",
    "uuid4": "a987fbc9-4bed-4078-8f07-9141ba07c9f3",
    "uuid5": "a987fbc9-4bed-5078-af07-9141ba07c9f3",
}
_INVALID = {
    "bsonobjectid": "507f",
    "byte": "TG9yZW0",
    "cidr": "10.0.0.0",
    "creditcard": "4220 8554 2622 2388",
    "date": "2023-02-29",
    "datetime": "2024-02-29 01:02:03Z",
    "duration": "2 fortnights",
    "email": "joe@[1.2.3]",
    "hexcolor": "#f0",
    "hostname": "exa_mple.com",
    "ipv4": "::1",
    "ipv6": "fe80::1%eth0",
    "isbn": "978-3-8362-2119-2",
    "isbn10": "3-401-01319-1",
    "isbn13": "3-401-01319-X",
    "k8slongname": "A.b",
    "k8sshortname": "a.b",
    "mac": "3d-f2-c9-a6-b3:4f",
    "rgbcolor": "rgb(256,0,0)",
    "ssn": "191602869",
    "uuid": "a987fbc9",
    "uuid3": "a987fbc9-4bed-4078-8f07-9141ba07c9f3",
    "uuid4": "a987fbc9-4bed-4078-7f07-9141ba07c9f3",
    "uuid5": "a987fbc9-4bed-4078-8f07-9141ba07c9f3",
}


def test_every_format_accepts_and_refuses_what_an_api_server_does() -> None:
    assert {name for name, check in FORMATS.items() if not check(_VALID[name])} == set()
    assert {name for name, text in _INVALID.items() if FORMATS[name](text)} == set()
    assert FORMATS.keys() - _INVALID.keys() == {"password"}


@pytest.mark.parametrize("unit", ["a", "a ", "a.", '"', '\\"', "0", "00 ", "1s", "-", "<", "a@", "ns"])
def test_no_format_takes_long_for_a_hostile_string(unit: str) -> None:
    text = unit * 20_000 + "!"
    started = time.process_time()
    for check in FORMATS.values():
        check(text)
    for reasons in (names.label_key, names.label_value, names.dns_subdomain, names.dns_label, names.port_name):
        reasons(text)
    assert time.process_time() - started < 5
