"""A real Envoy refuses requests that repeat a header that rules look at (docs/gateway.md#headers-of-one-name)."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from tests.engines.test_envoy_agentgateway_backends import server
from tests.engines.test_envoy_agentgateway_backends import to as of_group
from tests.engines.test_envoy_settings import rules
from tests.engines.test_envoy_settings_addresses import is_true
from tests.engines.test_envoy_settings_choices import listed
from tests.labs.envoy_attacks import behind
from tests.labs.envoy_attacks import policy as access_policy
from tests.labs.envoy_routes import Routed
from tests.labs.settings_lab import EchoBackend, SettingsLab, settings_lab
from tests.worlds.gateway_settings import Object, gateway, policy, route, service, to

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
Header = tuple[str, str]
_NAMES = ("x-a", "x-b", "user-agent")
_VALUES = ("yes", "no", "", "yes,no", "no,yes", ",")
# Envoy joins those of `user-agent` by itself, before it looks at anything, and forwards what it judges.
_JOINED = "user-agent"
_PLACES = 24


def drawn_rules(draw: random.Random) -> list[tuple[str, str]]:
    """Actions with an expression each, which look at some of the headers."""

    def leaf() -> str:
        header = f"request.headers['{draw.choice(_NAMES)}']"
        forms = ("{} == '{}'", "{} != '{}'", "!({} == '{}')", "{}.contains('{}')", "{} in ['{}', 'more']")
        return draw.choice(forms).format(header, draw.choice(_VALUES))

    actions = ("Allow", "Deny", "Deny", "Require")
    return [
        (draw.choice(actions), f" {draw.choice(('&&', '||'))} ".join(leaf() for _ in range(draw.randint(1, 2))))
        for _ in range(draw.randint(1, 3))
    ]


DRAWN = [drawn_rules(random.Random(number)) for number in range(_PLACES)]


def forwarded(sent: Sequence[Header]) -> dict[str, str]:
    """The headers that a backend gets; of one that Envoy joins, all values that are not empty."""
    return {
        name: ",".join(other for known, other in sent if known == name and other) if name == _JOINED else value
        for name, value in sent
    }


def verdict(written: Sequence[tuple[str, str]], sent: Sequence[Header]) -> int:
    """The reference: a repeated header that a rule reads is refused; otherwise one Deny, Require or Allow decides."""
    names = [name for name, _ in sent]
    looked_at = {name for name in _NAMES for _, text in written if f"'{name}'" in text}
    if any(names.count(name) > 1 for name in looked_at - {_JOINED}):
        return 400
    true = [action for action, text in written if is_true(text, "127.0.0.1", forwarded(sent))]
    if "Deny" in true or true.count("Require") < [action for action, _ in written].count("Require"):
        return 403
    return 200 if "Allow" in true or not any(action == "Allow" for action, _ in written) else 403


def ask(lab: SettingsLab, path: str, *headers: Header, body: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*lab.address, timeout=20)
    try:
        connection.putrequest("POST" if body else "GET", path)
        for name, value in (*headers, *([("content-length", str(len(body)))] if body else [])):
            connection.putheader(name, value)
        connection.endheaders(body.encode() if body else None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    objects = [gateway(), service("one")]
    for number, written in enumerate(DRAWN):
        rule = {"matches": [{"path": {"value": f"/{number}"}}], "backendRefs": to("one")}
        objects.append(route(f"r{number}", [rule]))
        for index, (action, text) in enumerate(written):
            setting = {"authorization": rules(text, action=action)}
            objects.append(policy(f"p{number}-{index}", f"HTTPRoute/r{number}", traffic=setting))
    with settings_lab(objects) as running:
        yield running


def test_envoy_judges_what_it_forwards(lab: SettingsLab) -> None:
    draw = random.Random(11)
    seen = set()
    for _ in range(400):
        number = draw.randrange(_PLACES)
        sent = [(draw.choice(_NAMES), draw.choice(_VALUES)) for _ in range(draw.randint(0, 3))]
        expected = verdict(DRAWN[number], sent)
        status, body = ask(lab, f"/{number}", *sent)
        assert status == expected, (DRAWN[number], sent, body)
        seen.add(status)
        if status == 200:
            reached = json.loads(body)
            assert {name: reached[name] for name in _NAMES if name in reached} == forwarded(sent)
    assert seen == {200, 400, 403}


_TWICE = (("x-a", "no"), ("x-a", "yes"))


def plain_world(*policies: Object) -> list[Object]:
    return [gateway(), service("one"), route("r", [{"backendRefs": to("one")}]), *policies]


def test_only_headers_that_rules_look_at_count() -> None:
    deny = rules("'x-seen' in request.headers", "request.headers['x-b'] == '1'", action="Deny")
    changed = {"authorization": deny, "transformation": {"request": {"set": [{"name": "x-c", "value": "'1'"}]}}}
    with settings_lab(plain_world(policy("p", "HTTPRoute/r", traffic=changed))) as running:
        assert ask(running, "/", *_TWICE)[0] == 200
        assert ask(running, "/", ("x-c", "2"), ("x-c", "3"))[0] == 200
        # It is there or not, however often.
        assert ask(running, "/", ("x-seen", "1"), ("x-seen", "2"))[0] == 403


def test_a_condition_of_a_list_cannot_be_evaded() -> None:
    with closing(EchoBackend()) as guard:
        asks = listed(
            ("request.headers['x-a'] == 'yes'", {"url": f"http://127.0.0.1:{guard.address.port}/check", "http": {}})
        )
        guard.refused.add("/check")
        with settings_lab(plain_world(policy("p", "HTTPRoute/r", traffic={"extAuth": asks}))) as running:
            assert ask(running, "/", ("x-a", "no"))[0] == 200
            assert ask(running, "/", ("x-a", "yes"))[0] == 403
            assert ask(running, "/", *_TWICE)[0] == 400


def test_what_the_gateway_adds_counts_as_well() -> None:
    denied = rules("request.headers['x-a'] == 'yes'", action="Deny")
    deny = policy("p", "HTTPRoute/r", traffic={"authorization": denied})
    added = {"request": {"add": [{"name": "x-a", "value": "'more'"}]}}
    early = policy("early", "Gateway/edge", traffic={"phase": "PreRouting", "transformation": added})
    with settings_lab(plain_world(deny, early)) as running:
        assert ask(running, "/")[0] == 200
        assert ask(running, "/", ("x-a", "yes"))[0] == 400


def test_an_answer_is_chosen_by_what_was_said_once() -> None:
    answers = listed(("request.headers['x-said'] == 'a'", {"status": 403}))
    added = {"request": {"add": [{"name": "x-said", "value": "'more'"}]}}
    setting = {"directResponse": answers, "transformation": added}
    with settings_lab(plain_world(policy("p", "HTTPRoute/r", traffic=setting))) as running:
        assert ask(running, "/")[0] == 200
        assert ask(running, "/", ("x-said", "a"))[0] == 400


def test_rules_about_messages_are_not_evaded_by_either_backend() -> None:
    judged = rules("request.headers['x-a'] == 'yes'", action="Deny")
    backends = [server("one"), server("two", policies={"mcp": {"authorization": judged}})]
    ways = [*of_group("one"), *of_group("two")]
    message = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "add"}})
    mcp = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
    references = tuple(f"AgentgatewayBackend/shop/{name}" for name in ("one", "two"))
    with settings_lab([gateway(), *backends, route("r", [{"backendRefs": ways}])], references) as running:
        assert {ask(running, "/", *mcp, *_TWICE, body=message)[0] for _ in range(8)} == {400}
        answers = [ask(running, "/", *mcp, ("x-a", "yes"), body=message)[1] for _ in range(16)]
        assert {b"denied" in answer for answer in answers} == {True, False}


@pytest.fixture(scope="module")
def tools() -> Iterator[Routed]:
    expression = {"expression": "request.headers['x-env'] != 'prod'"}
    matched = {"name": "X-Env", "value": "dev.*", "type": "RegularExpression"}
    inline = {"type": "Inline", "mcp": {"methods": [{"name": "tools/call"}]}}
    rules_by_backend: dict[str, Object] = {
        "cel": {"authorization": {"type": "CEL", "cel": expression}},
        "matched": {"authorization": {**inline, "headers": [matched]}},
        "free": {"authorization": inline},
    }
    running = Routed(
        [
            each
            for name, rule in rules_by_backend.items()
            for each in (*behind(name), access_policy(f"p-{name}", name, [rule]))
        ]
    )
    yield running
    running.close()


@pytest.mark.parametrize(("backend", "looks"), [("cel", True), ("matched", True), ("free", False)])
def test_rules_of_access_policies_are_not_evaded(tools: Routed, backend: str, looks: bool) -> None:
    message = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "add"}}).encode()
    mcp = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]

    def call(*headers: Header) -> tuple[int, bool]:
        got = tools.get("gate.test", f"/{backend}", [*mcp, *headers], "POST", body=message)
        return got.status, got.request is not None

    assert call(("x-env", "dev")) == (200, True)
    assert call(("x-env", "dev"), ("x-other", "1"), ("x-other", "2")) == (200, True)
    assert call(("x-env", "prod")) == (200, not looks)
    assert call(("x-env", "dev"), ("x-env", "prod")) == ((400, False) if looks else (200, True))
    assert call(("x-env", "dev"), ("X-ENV", "dev")) == ((400, False) if looks else (200, True))
