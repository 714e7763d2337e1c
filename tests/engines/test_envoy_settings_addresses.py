"""A real Envoy authorizes by the client's address (docs/gateway.md#obeyed-by-run), as CEL itself decides."""

from __future__ import annotations

import http.client
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.test_envoy_settings import rules
from tests.labs.settings_lab import SettingsLab, settings_lab
from tests.worlds.gateway_settings import gateway, policy, route, service, to
from tierwall.cel import Environment, Failure
from tierwall.cel.evaluate.program import compile
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.printer import to_text
from tierwall.engines.envoy.config.settings.conditions import (
    AddressCondition,
    Condition,
    ConditionList,
    setting_condition,
)
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.values.addresses import read_ip

ADDRESSES = ("10.1.2.3", "10.200.0.1", "192.168.7.9", "2001:db8::5")
_LEAVES = (
    'source.address == "10.1.2.3"',
    '"10.200.0.1" != source.address',
    'source.address in ["10.1.2.3", "192.168.7.9"]',
    "source.address in []",
    'source.address == "010.1.2.3"',
    'cidr("10.1.0.0/16").containsIP(source.address)',
    'cidr("10.9.9.9/8").containsIP(ip(source.address))',
    'cidr("2001:db8::/32").containsIP(source.address)',
    'source.address.startsWith("10.")',
    'source.address.startsWith("192.168.7.")',
    'request.headers["x-a"] == "1"',
    'request.headers["x-b"] == "1"',
    "true",
    "false",
    '"x-b" in request.headers',
)
EXPRESSIONS = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.one_of(
        inner.map(lambda text: f"!({text})"),
        st.tuples(inner, st.sampled_from(("&&", "||")), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=6,
)
_CEL = Environment(extensions=True)


def is_true(expression: str, address: str, headers: dict[str, str]) -> bool:
    """Whether an expression is true, as CEL says; one that fails is not."""
    request = {"headers": headers, "method": "GET"}
    try:
        return compile(expression, _CEL).evaluate({"source": {"address": address}, "request": request}) is True
    except Failure:
        return False


def holds(condition: Condition, address: str, headers: dict[str, str]) -> bool:
    """Whether a condition holds; its expressions are those of the test again, in Envoy's words."""
    match condition:
        case ConditionList(parts=parts, all_hold=all_hold):
            return (all if all_hold else any)(holds(part, address, headers) for part in parts)
        case AddressCondition(blocks=blocks, negated=negated):
            client = read_ip(address)
            assert client is not None
            within = False
            for text, length in blocks:
                block = read_ip(text)
                assert block is not None
                shift = block.max_prefixlen - length
                within = within or (block.version == client.version and int(block) >> shift == int(client) >> shift)
            return within is not negated
        case ast.Literal(value=value):
            return value is True
    return is_true(to_text(condition), address, headers)


@given(EXPRESSIONS, st.sampled_from(ADDRESSES), st.dictionaries(st.sampled_from(("x-a", "x-b")), st.sampled_from("12")))
def test_a_condition_is_true_where_its_expression_is(expression: str, address: str, headers: dict[str, str]) -> None:
    assert holds(setting_condition(expression), address, headers) == is_true(expression, address, headers)


@pytest.mark.parametrize(
    "expression",
    [
        "source.address + '' == '10.1.2.3'",
        "source.address.size() == 8",
        "source.address.startsWith('10.1')",
        "source.address.startsWith('300.')",
        "source.address == request.headers['x-a']",
        "source.address == '10.1.2.3' ? true : false",
        "source.address in [request.headers['x-a']]",
        "cidr(request.headers['x-a']).containsIP(source.address)",
        "cidr('10.0.0.0').containsIP(source.address)",
        "has(source.address)",
        "!(" * 40 + "source.address == '10.1.2.3'" + ")" * 40,
    ],
)
def test_other_uses_of_the_address_are_refused(expression: str) -> None:
    with pytest.raises(Unenforceable):
        setting_condition(expression)


def _random_expressions() -> list[str]:
    draw = random.Random(7)

    def expression(depth: int) -> str:
        if depth == 0 or draw.random() < 0.3:
            return draw.choice(_LEAVES)
        if draw.random() < 0.3:
            return f"!({expression(depth - 1)})"
        return f"({expression(depth - 1)} {draw.choice(('&&', '||'))} {expression(depth - 1)})"

    return [expression(3) for _ in range(48)]


DRAWN = _random_expressions()


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    ways = [{"name": f"w{n}", "matches": [{"path": {"value": f"/{n}"}}], "backendRefs": to("one")} for n in range(48)]
    objects = [gateway(), service("one")]
    objects += [route(f"r{start}", ways[start : start + 16]) for start in range(0, len(ways), 16)]
    for number, text in enumerate(DRAWN):
        target = f"HTTPRoute/r{number // 16 * 16}"
        objects.append(policy(f"p{number}", target, section=f"w{number}", traffic={"authorization": rules(text)}))
    objects.append(policy("proxy", "Gateway/edge", frontend={"proxyProtocol": {"version": "V1"}}))
    with settings_lab(objects) as running:
        yield running


def ask(lab: SettingsLab, address: str, *requests: tuple[str, dict[str, str]]) -> list[int]:
    """Send requests behind a proxy that names the client; the status of each, or nothing if there is no answer."""
    family = "TCP6 {} ::1" if ":" in address else "TCP4 {} 127.0.0.1"
    connection = http.client.HTTPConnection(*lab.address, timeout=20)
    connection.connect()
    statuses = []
    try:
        connection.sock.sendall(f"PROXY {family.format(address)} 5 80\r\n".encode())
        for path, headers in requests:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
    except (ConnectionError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return statuses


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
@pytest.mark.parametrize("address", ADDRESSES)
def test_envoy_decides_as_cel(lab: SettingsLab, address: str) -> None:
    every: tuple[dict[str, str], ...] = ({}, {"x-a": "1"}, {"x-b": "1"})
    cases = [(number, text, headers) for number, text in enumerate(DRAWN) for headers in every]
    asked = ask(lab, address, *((f"/{number}", headers) for number, _, headers in cases))
    assert asked == [200 if is_true(text, address, headers) else 403 for _, text, headers in cases]


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_connections_are_authorized() -> None:
    def network(name: str, action: str, *expressions: str) -> dict[str, Any]:
        return policy(name, "Gateway/edge", frontend={"networkAuthorization": rules(*expressions, action=action)})

    objects = [
        gateway(),
        service("one"),
        route("web", [{"backendRefs": to("one")}]),
        policy("proxy", "Gateway/edge", frontend={"proxyProtocol": {"version": "V1"}}),
        network("inside", "Allow", 'cidr("10.0.0.0/8").containsIP(source.address)'),
        network("not-that", "Deny", 'source.address == "10.200.0.1"'),
        network("by-proxy", "Require", 'source.rawAddress == "127.0.0.1"'),
    ]
    with settings_lab(objects) as running:
        assert [ask(running, address, ("/", {})) for address in ADDRESSES] == [[200], [], [], []]
    with settings_lab([*objects, network("never", "Require", "false")]) as running:
        assert ask(running, "10.1.2.3", ("/", {})) == []


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_what_envoy_does_not_know_of_a_connection_closes_its_routes() -> None:
    objects = [gateway(), service("one"), route("web", [{"backendRefs": to("one")}])]
    objects.append(policy("p", "Gateway/edge", frontend={"networkAuthorization": rules("source.port == 1")}))
    with settings_lab(objects) as running:
        assert running.send("/").status == 500
