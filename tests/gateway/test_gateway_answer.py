"""Answers in every form: the document, the sentence, the walk, and the output of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import tierwall
from tests.worlds.gateway_objects import FULL, TCP, TIMEOUT, answer, policy, route, snapshot, tools, tools_ref
from tierwall.cli.main import root
from tierwall.core.answer import Reason, Step
from tierwall.core.diagnostics import InputError
from tierwall.core.verdict import StepVerdict
from tierwall.gateway.question import GatewayQuestion, ask, ask_everywhere

CLOSED = "where Tierwall serves the Gateway, requests to its targets are answered with 500"


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    never = {"conditional": [{"condition": "false", "policy": {"status": 200}}]}
    policies = [
        policy("wide", "Gateway/gw", traffic=TIMEOUT, created="2024-01-01T00:00:00Z"),
        policy("also", "Gateway/gw", traffic=TIMEOUT, created="2024-01-02T00:00:00Z"),
        policy("narrow", "HTTPRoute/route", traffic={"timeouts": {"request": "9s"}, "directResponse": never}),
        policy("backend", "AgentgatewayBackend/tools", backend={"tls": {"sni": "b.example"}}),
        policy("route", "HTTPRoute/route", backend={"tls": {"sni": "r.example"}} | TCP),
        policy("wrong", "Gateway/gw", traffic={"timeouts": {"request": "soon"}}),
    ]
    file = tmp_path / "all.json"
    objects = [resource.value for resource in snapshot(*policies)]
    file.write_bytes(msgspec.json.format(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects})))
    return file


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(root, arguments)
    return result.exit_code, result.stdout, result.stderr


ARGUMENTS = (
    *("--gateway", "ns/gw", "--listener", "web", "--route", "HTTPRoute/ns/route", "--rule", "0"),
    *("--backend", "AgentgatewayBackend/ns/tools", "--backend-section", "target"),
)


def test_effective_shows_who_set_a_field_and_whom_it_beat_and_why(manifests: Path) -> None:
    code, out, _ = run("effective", *ARGUMENTS, "-f", str(manifests), "-o", "json")
    assert code == 0
    document = msgspec.json.decode(out)
    fields = {field["field"]: field for field in document["fields"]}
    timeouts = fields["traffic.timeouts"]
    assert timeouts["value"] == {"request": "9s"}
    assert timeouts["set"][0]["policy"] == "AgentgatewayPolicy/ns/narrow"
    line = timeouts["set"][0]["source"]["line"]
    assert '"timeouts"' in manifests.read_text().splitlines()[line - 1]
    assert [(beaten["policy"], beaten["why"]) for beaten in timeouts["over"]] == [
        ("AgentgatewayPolicy/ns/wide", "Route is more specific"),
        ("AgentgatewayPolicy/ns/also", "Route is more specific"),
    ]
    assert timeouts["conflict"] is True
    assert document["conflicts"] == ["traffic.timeouts"]
    assert fields["traffic.directResponse"]["over"][0]["why"] == "no entry of its conditional list is selected"
    assert [difference["field"] for difference in document["profilesDiffer"]] == ["backend.tls"]
    assert document["profilesDiffer"][0]["agentgateway"]["from"] == "AgentgatewayPolicy/ns/route"
    assert f"AgentgatewayPolicy/ns/wrong is refused by admission and takes no part; {CLOSED}" in document["notes"]


def test_a_note_names_a_refused_policy_whose_target_lacks_its_group() -> None:
    lost = policy("lost", "HTTPRoute/route", traffic=TIMEOUT)
    del lost["spec"]["targetRefs"][0]["group"]
    words = f"AgentgatewayPolicy/ns/lost is refused by admission and takes no part; {CLOSED}"
    assert answer(lost, **FULL)["notes"] == [words]


def test_provenance_names_the_lock_the_older_policy_and_the_quirk_of_the_code() -> None:
    buffer = {"buffer": {"request": {"maxBytes": 1}}}
    every = [
        policy("lock", "Gateway/gw", traffic=TIMEOUT | buffer, override=True, created="2024-01-01T00:00:00Z"),
        policy("young", "Gateway/gw", traffic=TIMEOUT, created="2024-01-02T00:00:00Z"),
        policy("above", "HTTPRoute/route", traffic=TIMEOUT | buffer),
    ]
    fields = answer(*every, **FULL)["fields"]
    (timeouts,) = [field["over"] for field in fields if field["field"] == "traffic.timeouts"]
    assert [beaten["why"] for beaten in timeouts] == [
        "AgentgatewayPolicy/ns/lock is older",
        "AgentgatewayPolicy/ns/lock (Gateway) has Override",
    ]
    fields = answer(*every, profile="agentgateway", **FULL)["fields"]
    (buffers,) = [field["over"] for field in fields if field["field"] == "traffic.buffer"]
    assert [beaten["why"] for beaten in buffers] == ["agentgateway keeps the least specific value of this field"]


def test_effective_starts_with_a_sentence(manifests: Path) -> None:
    code, out, _ = run("effective", *ARGUMENTS, "-f", str(manifests))
    assert code == 0
    place = "Gateway/ns/gw#web, HTTPRoute/ns/route rule rule, AgentgatewayBackend/ns/tools#target"
    assert out.startswith(f"At {place}: 3 settings are in force (profile docs, PostRouting).")
    assert "profile agentgateway differs: backend.tls" in out
    assert "CONFLICT at equal precedence" in out


def test_effective_everywhere_lists_each_place(manifests: Path) -> None:
    code, out, _ = run("effective", "--all", "-f", str(manifests), "-o", "json")
    assert code == 0
    document = msgspec.json.decode(out)
    assert document.keys() == {"items", "notConsidered"}
    assert [entry["examples"] for entry in document["notConsidered"]] == [["AgentgatewayPolicy/ns/wrong"]]
    places = [item["place"] for item in document["items"]]
    assert len(places) == len(set(places))
    assert "Gateway/ns/gw#web, HTTPRoute/ns/route rule rule, Service/ns/svc#80" in places
    assert any(place.startswith("Gateway/ns/gw#admin") for place in places)


def test_effective_takes_facts_of_the_request(manifests: Path) -> None:
    _, out, _ = run("effective", *ARGUMENTS, "--request", "request.path=/x", "-f", str(manifests), "-o", "json")
    assert msgspec.json.decode(out)["effective"]
    assert run("effective", *ARGUMENTS, "--request", "nonsense", "-f", str(manifests))[0] == 2


def test_effective_without_a_place_is_a_usage_error_and_a_wrong_place_fails(manifests: Path) -> None:
    assert run("effective", "-f", str(manifests))[0] == 2
    assert run("effective", "--all", "--gateway", "ns/gw", "-f", str(manifests))[0] == 2
    code, out, error = run("effective", "--gateway", "ns/gv", "-f", str(manifests))
    assert (code, out) == (1, "")
    assert "there is no Gateway `ns/gv` (did you mean `ns/gw`?)" in error


def test_the_command_the_library_and_policy_tests_give_the_same_document(manifests: Path, tmp_path: Path) -> None:
    _, explained, _ = run("explain", "gateway", *ARGUMENTS, "-f", str(manifests), "-o", "json")
    _, effective, _ = run("effective", *ARGUMENTS, "-f", str(manifests), "-o", "json")
    case = {"name": "case", "gateway": FULL | {"rule": 0}, "expect": {"conflicts": ["traffic.timeouts"]}}
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "test"},
        "spec": {"resources": [str(manifests)], "cases": [case]},
    }
    (tmp_path / "test.json").write_bytes(msgspec.json.encode(test))
    code, tested, _ = run("test", str(tmp_path / "test.json"), "-o", "json")
    assert code == 0
    document = msgspec.json.decode(explained)
    assert document == msgspec.json.decode(effective) == msgspec.json.decode(tested)["cases"][0]["got"]
    assert list(document) == [
        *("plane", "sentence", "decidedBy"),
        *("place", "profile", "phase", "effective", "conflicts", "fields", "profilesDiffer", "notes"),
        *("trace", "notConsidered"),
    ]


def test_the_walk_goes_field_by_field_from_the_least_specific_level(manifests: Path) -> None:
    _, out, _ = run("effective", *ARGUMENTS, "-f", str(manifests), "-o", "json")
    document = msgspec.json.decode(out)
    steps = [step for step in document["trace"] if step["rule"] == "traffic.timeouts"]
    assert [(step["tier"], step["policy"], step["verdict"], step["reason"], step.get("note")) for step in steps] == [
        ("Gateway", "AgentgatewayPolicy/ns/wide", "Pass", "LessSpecific", "Route is more specific"),
        ("Gateway", "AgentgatewayPolicy/ns/also", "Pass", "LessSpecific", "Route is more specific"),
        ("Route", "AgentgatewayPolicy/ns/narrow", "Allow", "SetsField", None),
    ]
    written = manifests.read_text().splitlines()
    assert all('"timeouts"' in written[step["source"]["line"] - 1] for step in steps)
    (abstains,) = [step for step in document["trace"] if step["rule"] == "traffic.directResponse"]
    assert (abstains["verdict"], abstains["reason"]) == ("NoMatch", "NoEntrySelected")
    assert [decider["policy"] for decider in document["decidedBy"]] == [
        "AgentgatewayPolicy/ns/narrow",
        "AgentgatewayPolicy/ns/route",
        "AgentgatewayPolicy/ns/backend",
    ]


def test_the_sentence_says_what_is_in_force_and_who_set_it() -> None:
    first = policy("one", "Gateway/gw", traffic=TIMEOUT | {"retry": {"attempts": 1}})
    second = policy("two", "Gateway/gw", traffic=TIMEOUT)
    assert answer(first, second, gateway="ns/gw")["sentence"] == (
        "At Gateway/ns/gw, 2 settings are in force (profile docs, PostRouting):"
        " AgentgatewayPolicy/ns/one sets traffic.timeouts and traffic.retry;"
        " two policies of equal precedence set traffic.timeouts"
    )
    nothing = answer(gateway="ns/gw")
    assert nothing["sentence"] == "At Gateway/ns/gw, no settings are in force (profile docs, PostRouting)"
    assert nothing["decidedBy"] == [{"policy": "Default"}]


def test_inline_settings_decide_too() -> None:
    document = answer(tools(policies=TCP), backend="AgentgatewayBackend/ns/tools")
    assert document["decidedBy"] == [{"policy": "AgentgatewayBackend/ns/tools"}]


def test_inline_settings_stand_where_their_keys_are_written(tmp_path: Path) -> None:
    timed = [TCP, {"tcp": {"connectTimeout": "2s"}}, {"tcp": {"connectTimeout": "3s"}}]
    rules = [{"name": "rule", "backendRefs": [tools_ref(policies=timed[2])]}]
    on_backend = policy("p", "AgentgatewayBackend/tools", backend=TCP | {"tls": {"sni": "b.example"}})
    objects = [resource.value for resource in snapshot(on_backend, tools(timed[0], timed[1]), route(rules=rules))]
    file = tmp_path / "all.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects})))
    _, out, _ = run("effective", *ARGUMENTS, "-f", str(file), "-o", "json")
    steps = [step for step in msgspec.json.decode(out)["trace"] if step["rule"] == "backend.tcp"]
    assert [step["tier"] for step in steps] == ["Backend", "Backend inline", "Sub-backend inline", "backendRef inline"]
    written = file.read_text().splitlines()
    after = ["".join(written[step["source"]["line"] - 1 :][:3]).replace(" ", "").rstrip(",") for step in steps]
    assert after == [f'"tcp":{{"connectTimeout":"{seconds}s"}}' for seconds in (1, 1, 2, 3)]


def test_steps_carry_notes_about_locks_and_unselected_entries() -> None:
    entries = [{"condition": "false", "policy": {"status": 200}}, {"policy": {"status": 404}}]
    lock = policy("lock", "Gateway/gw", traffic=TIMEOUT, override=True)
    chooses = policy("chooses", "Gateway/gw", traffic={"directResponse": {"conditional": entries}})
    document = answer(lock, chooses, policy("above", "HTTPRoute/route", traffic=TIMEOUT), **FULL)
    assert [(step["reason"], step.get("note")) for step in document["trace"]] == [
        ("SetsField", "has Override, so nothing more specific counts"),
        ("LockedByOverride", "AgentgatewayPolicy/ns/lock (Gateway) has Override"),
        ("SetsField", "entry 1 of its conditional list is selected"),
    ]
    only = policy("only", "Gateway/gw", traffic={"directResponse": {"conditional": entries[:1]}})
    (step,) = answer(only, gateway="ns/gw", profile="agentgateway")["trace"]
    assert (step["verdict"], step["reason"]) == ("NoMatch", "NoEntrySelected")
    assert step["note"] == "its conditional list wins and selects no entry: the field is not set"


NEEDS_PATH = 'request.path == "/x"'


def conditional_notes(field: str, entries: list[Any], **question: Any) -> list[str | None]:
    """Return the notes of the steps about a field of a policy with a conditional list."""
    name, part = field.split(".")[1], field.split(".")[2:]
    setting = [
        {"policy": {part[0]: value} if part and isinstance(value, list) else value, **rest} for value, rest in entries
    ]
    chooses = policy("chooses", "Gateway/gw", traffic={name: {"conditional": setting}})
    steps = answer(chooses, gateway="ns/gw", **question)["trace"]
    return [step.get("note") for step in steps if step["rule"] == field]


def test_a_conditional_list_without_facts_depends_on_the_request() -> None:
    response: Any = ({"status": 200}, {"condition": NEEDS_PATH})
    fallback: Any = ({"status": 404}, {})
    lacks = "the question does not give `request.path`"
    needs = f"depends on the request: no entry is certain; {lacks}"
    assert conditional_notes("traffic.directResponse", [response]) == [needs]
    other = {"request": {"request.method": "GET"}}
    assert conditional_notes("traffic.directResponse", [response], **other) == [needs]
    elsewhere = {"request": {"request.path": "/y"}}
    unselected = ["no entry of its conditional list is selected"]
    assert conditional_notes("traffic.directResponse", [response], **elsewhere) == unselected
    assert conditional_notes("traffic.directResponse", [({"status": 200}, {"condition": "((("})]) == unselected
    assert conditional_notes("traffic.directResponse", [response, fallback]) == [
        f"depends on the request: entry 1 of its conditional list counts unless a condition before it holds; {lacks}"
    ]
    assert conditional_notes("traffic.directResponse", [response, fallback], **elsewhere) == [
        "entry 1 of its conditional list is selected"
    ]
    assert conditional_notes("traffic.directResponse", [response], profile="agentgateway") == [
        f"depends on the request: its conditional list wins, and may select no entry; {lacks}"
    ]


@pytest.mark.parametrize(
    ("condition", "given", "missing"),
    [
        ("request.path == '/x' && jwt.sub == 'a'", {"request.path": "/x"}, "`jwt.sub`"),
        ("request.headers['x-a'] == 'b'", {"request.path": "/x"}, '`request.headers["x-a"]`'),
        ("has(jwt.sub) && request.method.startsWith('G')", {}, "`jwt.sub` and `request.method`"),
        ("jwt.groups.exists(g, g == request.path)", {}, "`jwt.groups` and `request.path`"),
        ("math.greatest(jwt.a, jwt.b) > 1", {}, "`jwt.a` and `jwt.b`"),
    ],
)
def test_the_facts_that_are_missing_are_named(condition: str, given: dict[str, str], missing: str) -> None:
    entries: list[Any] = [({"status": 200}, {"condition": condition})]
    (note,) = conditional_notes("traffic.directResponse", entries, request=given)
    assert note is not None
    assert note.endswith(f"the question does not give {missing}")


def test_a_condition_that_fails_with_all_facts_is_not_selected() -> None:
    entries: list[Any] = [({"status": 200}, {"condition": "int(request.path) == 1"})]
    notes = conditional_notes("traffic.directResponse", entries, request={"request.path": "x"})
    assert notes == ["no entry of its conditional list is selected"]


def test_a_selected_entry_that_lacks_a_part_is_named() -> None:
    local: Any = [{"requests": 1, "unit": "Seconds"}]
    descriptors = [{"entries": [{"name": "a", "expression": '"b"'}]}]
    lacking: Any = {"global": {"backendRef": {"name": "s", "port": 1}, "domain": "d", "descriptors": descriptors}}
    entries = [(lacking, {"condition": NEEDS_PATH}), (local, {})]
    here = {"request": {"request.path": "/x"}}
    field = "traffic.rateLimit.local"
    (note,) = conditional_notes(field, entries, **here)
    assert note == "entry 0 of its conditional list, which is selected, has no `local`"
    (note,) = conditional_notes(field, [(local, {"condition": NEEDS_PATH}), (lacking, {})])
    why = "has no `local`, and counts unless a condition before it holds; the question does not give `request.path`"
    assert note == f"depends on the request: entry 1 of its conditional list {why}"
    # The data plane has a list of its own for each part: the first entry does not count there.
    (note,) = conditional_notes(field, entries, profile="agentgateway")
    assert note == "entry 1 of its conditional list is selected"
    (note,) = conditional_notes(field, [(lacking, {})], profile="agentgateway")
    assert note == "no entry of its conditional list has `local`"


def test_the_text_says_that_a_setting_depends_on_the_request(tmp_path: Path) -> None:
    entries = [{"condition": NEEDS_PATH, "policy": {"status": 200}}]
    chooses = policy("chooses", "Gateway/gw", traffic={"directResponse": {"conditional": entries}})
    file = tmp_path / "all.json"
    items = [resource.value for resource in snapshot(chooses)]
    file.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))
    for more in ((), ("--profile", "agentgateway")):
        _, out, _ = run("effective", "--gateway", "ns/gw", "-f", str(file), *more)
        assert "traffic.directResponse\n  = depends on the request\n" in out
        assert "not set" not in out


def test_an_answer_is_a_value() -> None:
    gateway_answer = ask(snapshot(policy("p", "Gateway/gw", traffic=TIMEOUT)), GatewayQuestion(gateway="ns/gw"))
    assert (gateway_answer.plane, gateway_answer.verdict, gateway_answer.not_considered) == ("gateway", None, ())
    (step,) = gateway_answer.steps
    assert isinstance(step, Step)
    assert (step.verdict, step.reason, step.rule) == (StepVerdict.ALLOW, Reason.SETS_FIELD, "traffic.timeouts")
    with pytest.raises(TypeError):
        gateway_answer.detail.effective["traffic.retry"] = None


def test_a_question_about_all_places_must_not_name_one() -> None:
    with pytest.raises(InputError, match="`gateway` names a place in a question about all places"):
        ask_everywhere(snapshot(), GatewayQuestion(gateway="ns/gw"))
    assert len(list(ask_everywhere(snapshot(), GatewayQuestion(profile="agentgateway")))) > 1


def test_a_failing_case_shows_the_walk(tmp_path: Path, manifests: Path) -> None:
    case = {"name": "case", "gateway": {"gateway": "ns/gw"}, "expect": {"effective": {"traffic.timeouts": None}}}
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "test"},
        "spec": {"resources": [str(manifests)], "cases": [case]},
    }
    (tmp_path / "test.json").write_bytes(msgspec.json.encode(test))
    code, out, _ = run("test", str(tmp_path / "test.json"))
    assert code == 4
    assert "traffic.timeouts: expected not set, got {'request': '5s'} from AgentgatewayPolicy/ns/wide" in out
    assert "Gateway: AgentgatewayPolicy/ns/wide traffic.timeouts in force" in out
    assert "Gateway: AgentgatewayPolicy/ns/also traffic.timeouts beaten (AgentgatewayPolicy/ns/wide is older)" in out


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("ai", {"defaults": [{"field": "a", "value": 1}]}),
        ("mcp", {"authorization": {"policy": {"matchExpressions": ["true"]}}}),
    ],
)
def test_ai_and_mcp_settings_on_a_service_hint_at_a_backend(section: str, settings: Any) -> None:
    target = {"group": "", "kind": "Service", "name": "s"}
    value = {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"targetRefs": [target], "backend": {section: settings}},
    }
    hints = {problem.message: problem.hint for problem in tierwall.load(objects=[value]).diagnostics}
    wanted = f"spec: Invalid value: backend.{section} may not be used with a Service target"
    assert hints[wanted] == "target an AgentgatewayBackend, and let routes lead to it instead of the Service"
