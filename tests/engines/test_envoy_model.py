"""A running Envoy decides as the model does: verdict, level, order of evaluation and who decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.randomness import FUZZ, seeds
from tests.worlds import tool_objects as objects
from tests.worlds import tool_worlds
from tierwall.policytest.run import ask_engine, run
from tierwall.policytest.suite import PolicyCase, PolicySuite, suites
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.envoy import Envoy
from tierwall.tool.question import ToolQuestion, ask

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
Object = dict[str, Any]
COMPARED = ("plane", "verdict", "level", "evaluated", "request")


def suite_of(snapshot: Snapshot, questions: list[Object]) -> PolicySuite:
    cases = tuple(PolicyCase(str(number), "tool", question, {}, ()) for number, question in enumerate(questions))
    return PolicySuite("", "", Resource("", "v1", "PolicyTest", "", "t", {}), snapshot, {}, cases)


def differences(snapshot: Snapshot, questions: list[Object]) -> tuple[list[Any], int, list[str]]:
    """Return where Envoy and the model differ, the number of compared cases, and why others were skipped."""
    wrong: list[Any] = []
    compared, skipped = 0, []
    for question, answer in zip(questions, ask_engine(suite_of(snapshot, questions), Envoy()), strict=True):
        if answer.skipped:
            skipped.append(answer.skipped)
            continue
        compared += 1
        model = ask(snapshot, ToolQuestion.from_dict(question)).to_dict()
        got = answer.answer.to_dict() if answer.answer is not None else {}
        deciders = [[entry["policy"] for entry in answer.get("decidedBy", ())] for answer in (model, got)]
        rules = [model["decidedBy"], got.get("decidedBy")] if model["verdict"] == "Allow" else [None, None]
        reasons = [[step["reason"] for step in answer.get("trace", ())] for answer in (model, got)]
        same = all(got.get(key) == model[key] for key in COMPARED) and reasons[0] == reasons[1]
        if answer.error or not same or deciders[0] != deciders[1] or rules[0] != rules[1]:
            wrong.append((question, answer, {key: model[key] for key in (*COMPARED, "decidedBy")}))
    return wrong, compared, skipped


@pytest.mark.parametrize("part", range(4))
def test_envoy_decides_random_clusters_as_the_model_does(part: int) -> None:
    total = 0
    # The world 33 has a policy that asks an authorizer about what no other rule of it grants.
    for seed in (*(part * 8 * FUZZ + seed for seed in seeds(8)), *([33] if part == 3 else [])):
        world = tool_worlds.World(seed)
        wrong, compared, _ = differences(tool_worlds.snapshot(world.objects), [world.question() for _ in range(60)])
        assert wrong == []
        total += compared
    assert total > 150


def test_envoy_passes_the_policy_tests_of_the_examples() -> None:
    folders = [str(path) for path in sorted(ROOT.glob("examples/*/tests"))]
    with_tools = [suite for suite in suites(folders) if any(case.plane == "tool" for case in suite.cases)]
    results = list(run(with_tools, Envoy()))
    assert [result for result in results if result.ok is False] == []
    assert sum(result.ok is True for result in results) > 5


def test_envoy_passes_the_conformance_cases() -> None:
    results = list(run(suites([str(ROOT / "tests" / "conformance" / "tool")]), Envoy()))
    assert [result for result in results if result.ok is False] == []
    assert len([result for result in results if result.ok]) > 130


EXPRESSIONS = (
    "request.mcp.tool_name == 'add'",
    "request.mcp.tool_name in ['add', 'get']",
    "request.mcp.tool_name.startsWith('a') && !request.mcp.tool_name.endsWith('x')",
    "size(request.mcp.tool_name) == 3",
    "request.mcp.tool_name.matches('^a.*$')",
    "has(request.mcp.tool_name)",
    "request.headers['x-env'] == 'prod'",
    "request.headers['X-Env'] == 'prod'",
    "'x-env' in request.headers",
    "!('x-env' in request.headers)",
    "!has(request.headers.other) && request.headers['x-env'].contains('ro')",
    "request.headers['nope'] == 'x' || request.mcp.tool_name == 'add'",
    "!(request.headers['nope'] == 'x')",
    "request.mcp.arguments.n < 5",
    "request.mcp.arguments.n == 3 || request.mcp.arguments.n == 3.5",
    "request.mcp.arguments.n in [1, 3, -2]",
    "request.mcp.arguments.n != 3",
    "request.mcp.arguments.path.startsWith('/data/')",
    "has(request.mcp.arguments.path) && request.mcp.arguments.path == '/data/x'",
    "has(request.mcp.arguments.path) || request.mcp.tool_name == 'get'",
    "request.mcp.arguments.deep.er == 'yes'",
    "request.mcp.arguments.flag",
    "request.mcp.arguments.nothing == null",
    "request.mcp.arguments['path'] > '/a'",
    "request.path == '/mcp?x=1' || request.url_path == '/mcp'",
    "request.method == 'POST' ? request.mcp.tool_name == 'add' : false",
    "request.host == 'example.com'",
)
ARGUMENTS: tuple[Object | None, ...] = (
    None,
    {},
    {"n": 3},
    {"n": 3.5, "path": "/data/x"},
    {"n": -2, "path": "/etc/x", "flag": True},
    {"n": "3", "path": 7, "flag": False, "nothing": None},
    {"deep": {"er": "yes"}, "nothing": 1, "flag": "true"},
)


def test_envoy_evaluates_expressions_as_the_model_does() -> None:
    policies, backends = [], []
    for number, text in enumerate(EXPRESSIONS):
        rule = {"authorization": objects.cel(text)}
        policies.append(objects.v1(f"p{number}", objects.on_backend(f"b{number}"), rule))
        backends.append(objects.backend(f"b{number}"))
    snapshot = tool_worlds.snapshot([objects.gateway(), *backends, *policies])
    questions = [
        {
            "gateway": "prod/prod-gateway",
            "backend": f"prod/b{number}",
            "method": "tools/call",
            "tool": tool,
            "http": {"host": "example.com", "headers": headers},
            **({"arguments": arguments} if arguments is not None else {}),
        }
        for number in range(len(EXPRESSIONS))
        for tool in ("add", "get")
        for headers in ({}, {"X-Env": "prod"})
        for arguments in ARGUMENTS
    ]
    wrong, compared, skipped = differences(snapshot, questions)
    assert wrong == []
    assert compared > 600, sorted(set(skipped))


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "2027-01-01"])
def test_envoy_is_asked_as_clients_of_the_version_ask(version: str) -> None:
    methods = [{"name": "tools"}, {"name": "resources/read", "params": ["file:///größe"]}]
    rule = {"authorization": {"type": "Inline", "mcp": {"methods": methods, **objects.BASE}}}
    snapshot = tool_worlds.snapshot(
        [objects.gateway(), objects.backend("b"), objects.v1("p", objects.on_backend("b"), rule)]
    )
    asked: list[Object] = [
        {"method": "tools/call", "tool": "größe"},
        {"method": "tools/call", "tool": "=?base64?YWRk?="},
        {"method": "resources/read", "uri": "file:///größe"},
        {"method": "server/discover"},
        {"method": "subscriptions/listen"},
        {"method": "tasks/get"},
    ]
    denied = [{"method": "subscriptions/listen", "uri": "file:///x"}, {"method": "completion/complete", "tool": "x"}]
    refused: list[Object] = [
        {"method": "tools/call", "tool": "add", "http": {"headers": {"Mcp-Name": "rm"}}},
        {"method": "ping", "http": {"headers": {"Mcp-Method": "tools/list"}}},
    ]
    place = {"gateway": "prod/prod-gateway", "backend": "prod/b"}
    questions = [{**place, **question} for question in (*asked, *denied, *refused)]
    for question in questions:
        question["http"] = {"headers": {"MCP-Protocol-Version": version, **question.get("http", {}).get("headers", {})}}
    assert differences(snapshot, questions) == ([], len(questions), [])
    answers = [ask(snapshot, ToolQuestion.from_dict(question)).to_dict() for question in questions]
    assert [answer["verdict"] for answer in answers] == ["Allow"] * len(asked) + ["Deny"] * 4
    # A refusal by the protocol is told apart from a denial by policy.
    reasons = [answer["trace"][-1]["reason"] for answer in answers[-4:]]
    assert reasons == ["NoRuleMatched", "NoRuleMatched", "NotReadAsMcp", "NotReadAsMcp"]


def test_expressions_that_envoy_cannot_evaluate_are_skipped_and_denied() -> None:
    inexpressible = (
        "request.mcp.arguments.list.exists(x, x == 1)",
        "!has(request.mcp.arguments.path)",
        "request.mcp.tool_name + 'x' == 'addx'",
        "request.mcp.arguments.n + 1 == 2",
        "request.mcp.tool_name.lowerAscii() == 'add'",
    )
    backends = [objects.backend(f"b{number}") for number in range(len(inexpressible))]
    policies = [
        objects.v1(f"p{number}", objects.on_backend(f"b{number}"), {"authorization": objects.cel(text)})
        for number, text in enumerate(inexpressible)
    ]
    snapshot = tool_worlds.snapshot([objects.gateway(), *backends, *policies])
    for number in range(len(inexpressible)):
        question = {"gateway": "prod/prod-gateway", "backend": f"prod/b{number}", "method": "tools/call", "tool": "add"}
        _, compared, skipped = differences(snapshot, [question])
        assert compared == 0
        assert "Envoy cannot evaluate rules[0]" in skipped[0]


def test_other_planes_are_skipped_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: t}\nspec:\n  cases:\n"
        "  - {name: one, network: {from: a/b, to: a/c, port: 1}, expect: {verdict: Allow}}\n"
    )
    (result,) = run(suites([str(file)]), Envoy())
    assert result.ok is None
    assert "network" in result.skipped
