"""`tierwall explain tool`, `tierwall tools`, `tierwall check` and `tierwall test` on tool policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import ROOT
from tests.worlds.tool_objects import (
    BASE,
    Object,
    backend,
    calls,
    cel,
    gateway,
    mcp,
    on_backend,
    on_gateway,
    route,
    sa,
    v1,
)
from tierwall.cli.main import root

GATEWAY = v1("gateway-policy", on_gateway(), {"source": sa(), "authorization": mcp(calls("pay", "refund"), **BASE)})
BACKEND = v1(
    "backend-policy",
    on_backend(),
    {"source": sa(), "authorization": mcp(calls("pay"), **BASE)},
    {"source": sa(), "authorization": cel("request.mcp.tool_name == 'refund' && request.headers['x-env'] == 'test'")},
)
ASK = ("--gateway", "prod/prod-gateway", "--backend", "prod/payment-service", "--caller", "prod/agent")


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    return write(
        tmp_path / "all.yaml", gateway(), backend(), route("r", "prod-gateway", "payment-service"), GATEWAY, BACKEND
    )


def write(path: Path, *objects: Object) -> str:
    path.write_text("\n---\n".join(json.dumps(manifest, indent=1) for manifest in objects))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, arguments)


def test_explain_tool_answers_in_a_sentence_and_shows_every_policy_with_its_line(manifests: str) -> None:
    done = run("explain", "tool", *ASK, "--tool", "pay", "-f", manifests)
    assert done.exit_code == 0
    first, _, *rest = done.stdout.splitlines()
    assert first == (
        "spiffe://cluster.local/ns/prod/sa/agent may call tool pay at XBackend/prod/payment-service through "
        "Gateway/prod/prod-gateway: XAccessPolicy/prod/gateway-policy rules[0] (r0) and "
        "XAccessPolicy/prod/backend-policy rules[0] (r0) allow it (Gateway and Backend)"
    )
    assert rest[0] == "Gateway: XAccessPolicy/prod/gateway-policy rules[0] (r0) allowed"
    assert f"{manifests}:" in rest[1]


def test_explain_tool_says_why_a_call_is_denied(manifests: str) -> None:
    done = run("explain", "tool", *ASK, "--tool", "refund", "-f", manifests)
    assert done.exit_code == 3
    assert "no rule of XAccessPolicy/prod/backend-policy on the Backend grants it" in done.stdout
    assert "Backend: XAccessPolicy/prod/backend-policy spec denied\n" in done.stdout
    why = "rules[0] (r0): `refund` is not among pay; rules[1] (r1): the expression fails: no such key: x-env"
    assert why in done.stdout
    assert run("explain", "tool", *ASK, "--tool", "refund", "--header", "X-Env: test", "-f", manifests).exit_code == 0


def test_explain_tool_notes_that_no_route_leads_to_the_backend(tmp_path: Path) -> None:
    objects = [gateway(), gateway("other"), backend(), route("r", "prod-gateway", "payment-service")]
    path = write(tmp_path / "a.yaml", *objects)
    assert run("explain", "tool", *ASK, "--tool", "x", "-f", path).stderr == ""
    done = run("explain", "tool", "--gateway", "prod/other", *ASK[2:], "--tool", "x", "-f", path)
    assert "no route among the objects leads from Gateway/prod/other to XBackend/prod/payment-service" in done.stderr


def test_explain_tool_prints_the_document_of_a_decision(manifests: str) -> None:
    done = run("explain", "tool", *ASK, "--method", "tools/list", "-o", "json", "-f", manifests)
    document = json.loads(done.stdout)
    assert (document["verdict"], document["level"]) == ("Allow", "Backend")
    assert document["evaluated"] == ["XAccessPolicy/prod/gateway-policy", "XAccessPolicy/prod/backend-policy"]
    assert document["request"] == {
        "gateway": "prod/prod-gateway",
        "listener": "web",
        "backend": "XBackend/prod/payment-service",
        "caller": "spiffe://cluster.local/ns/prod/sa/agent",
        "method": "tools/list",
        "http": "POST /mcp",
    }
    assert (document["plane"], document["notConsidered"]) == ("tool", [])
    first = document["trace"][0]
    assert first["source"]["file"] == manifests
    assert {key: value for key, value in first.items() if key != "source"} == {
        "tier": "Gateway",
        "verdict": "Allow",
        "reason": "RuleMatched",
        "policy": "XAccessPolicy/prod/gateway-policy",
        "rule": "rules[0]",
        "name": "r0",
    }


def test_explain_tool_takes_the_whole_request(tmp_path: Path) -> None:
    text = "request.mcp.arguments.amount < 5 && request.host == 'h' && request.path == '/p' && request.method == 'PUT'"
    timed = f"{text} && request.time < timestamp('2030-01-01T00:00:00Z')"
    asking = v1("q", on_gateway(), rules=None, action="ExternalAuth")
    path = write(
        tmp_path / "a.yaml", gateway(), backend(), v1("p", on_gateway(), {"authorization": cel(timed)}), asking
    )
    options = ("--arguments", '{"amount": 3}', "--host", "h", "--path", "/p", "--http-method", "PUT")
    more = ("--time", "2026-01-01T00:00:00Z", "--listener", "web", "--external-auth", "XAccessPolicy/prod/q=Allow")
    assert run("explain", "tool", *ASK, "--tool", "x", *options, *more, "-f", path).exit_code == 0
    assert run("explain", "tool", *ASK, "--tool", "x", *options, *more[2:], "-f", path).exit_code == 3
    assert run("explain", "tool", *ASK, "--tool", "x", *options, *more[:4], "-f", path).exit_code == 3


@pytest.mark.parametrize(
    "options", [("--arguments", "3"), ("--arguments", "{"), ("--header", "x"), ("--external-auth", "p")]
)
def test_a_malformed_option_is_a_usage_error(manifests: str, options: tuple[str, ...]) -> None:
    assert run("explain", "tool", *ASK, "--tool", "x", *options, "-f", manifests).exit_code == 2


def test_explain_tool_lists_what_does_not_exist_with_hints(manifests: str) -> None:
    done = run(
        "explain", "tool", "--gateway", "prod/prod-gatewy", "--backend", "prod/payment", "--tool", "x", "-f", manifests
    )
    assert done.exit_code == 1
    assert "there is no Gateway `prod/prod-gatewy` (did you mean `prod/prod-gateway`?)" in done.stderr
    assert "there is no XBackend `prod/payment` (did you mean `prod/payment-service`?)" in done.stderr
    assert done.stdout == ""


def test_tools_lists_what_a_caller_may_use_with_the_rules_that_grant_it(manifests: str) -> None:
    done = run("tools", "--caller", "prod/agent", "-f", manifests)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "XBackend/prod/payment-service through Gateway/prod/prod-gateway#web",
        "  pay     Allow        XAccessPolicy/prod/gateway-policy rules[0] (r0), "
        "XAccessPolicy/prod/backend-policy rules[0] (r0)",
        "  refund  Conditional  XAccessPolicy/prod/gateway-policy rules[0] (r0), "
        "XAccessPolicy/prod/backend-policy rules[1] (r1)",
        '                   if  request.headers["x-env"] == "test"',
    ]


def test_tools_lists_denied_ones_on_request(manifests: str) -> None:
    none = run("tools", "--caller", "prod/agnt", "-f", manifests)
    assert none.stdout == ""
    assert (
        "no tool may be used by spiffe://cluster.local/ns/prod/sa/agnt: no rule names it (did you mean" in none.stderr
    )
    done = run("tools", "--caller", "prod/other", "--all", "--tool", "look", "-f", manifests)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["(initialize)", "look", "pay", "refund", "*"]


def test_tools_as_a_document(manifests: str) -> None:
    document = json.loads(run("tools", "--caller", "prod/agent", "-o", "json", "-f", manifests).stdout)
    (way,) = document["ways"]
    assert way["initialize"]["verdict"] == "Allow"
    assert [row["tool"] for row in way["tools"]] == ["pay", "refund"]
    by = {"policy": "XAccessPolicy/prod/backend-policy", "rule": "rules[0]", "name": "r0"}
    assert way["tools"][0]["decidedBy"][-1] == by
    assert way["tools"][1]["conditions"] == ['request.headers["x-env"] == "test"']


def test_without_routes_tools_assumes_that_every_gateway_leads_to_every_backend(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", gateway(), backend(), GATEWAY)
    done = run("tools", "--caller", "prod/agent", "-f", path)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["pay", "refund"]
    assert "no route among the objects leads there" in done.stderr


def test_tools_through_one_gateway_at_one_backend(manifests: str) -> None:
    done = run(
        "tools",
        "--caller",
        "prod/agent",
        "--gateway",
        "prod/prod-gateway",
        "--backend",
        "prod/payment-service",
        "-f",
        manifests,
    )
    assert done.stdout.count("\n") == 4
    wrong = run("tools", "--gateway", "prod/x", "--backend", "prod/payment-srvice", "-f", manifests)
    assert wrong.exit_code == 1
    assert "there is no XBackend `prod/payment-srvice` (did you mean `prod/payment-service`?)" in wrong.stderr
    assert run("tools", "--caller", "spiffe://X/y", "-f", manifests).exit_code == 1


def test_check_reports_tool_findings_at_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", gateway(), backend(), v1("p", on_gateway(), {"authorization": cel("1 + 1")}))
    done = run("check", path)
    assert done.exit_code == 4
    assert "error[TW401]: expected an expression of type bool, found int" in done.stdout
    assert done.stdout.startswith(f"{path}:")


def test_a_policy_test_asks_tool_questions(tmp_path: Path, manifests: str) -> None:
    question: dict[str, Any] = {
        "gateway": "prod/prod-gateway",
        "backend": "prod/payment-service",
        "method": "tools/call",
    }
    question["caller"] = {"serviceAccount": "prod/agent"}
    good = {"verdict": "Allow", "decidedBy": "XAccessPolicy/prod/backend-policy", "level": "Backend"}
    good["evaluated"] = ["XAccessPolicy/prod/gateway-policy", "XAccessPolicy/prod/backend-policy"]  # type: ignore[assignment]
    cases = [
        {"name": "pay", "tool": {**question, "tool": "pay"}, "expect": good},
        {"name": "rm", "tool": {**question, "tool": "rm"}, "expect": {"verdict": "Deny", "level": "Gateway"}},
        {"name": "wrong", "tool": {**question, "tool": "rm"}, "expect": {"verdict": "Allow"}},
    ]
    spec = {"resources": [Path(manifests).name], "cases": cases}
    test = {"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "t"}, "spec": spec}
    done = run("test", write(tmp_path / "test.yaml", test), "-o", "json")
    assert done.exit_code == 4
    document = json.loads(done.stdout)
    assert [case["ok"] for case in document["cases"]] == [True, True, False]
    assert document["cases"][2]["mismatches"] == ["verdict: expected Allow, got Deny"]


def test_the_example_has_no_findings_and_its_tests_pass() -> None:
    folder = ROOT / "examples" / "tool"
    checked = run("check", str(folder / "manifests"))
    assert (checked.exit_code, checked.stdout) == (0, "")
    assert run("test", str(folder)).exit_code == 0
