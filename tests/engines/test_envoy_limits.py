"""A policy over a limit of Envoy, or one that cannot be compiled, closes its own targets and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from envoy.config.rbac.v3 import rbac_pb2
from xds.type.matcher.v3 import cel_pb2

from tests import ROOT
from tests.engines.test_envoy_compile import OPTIONS, Object, codes, contents, policies
from tests.labs.envoy_attacks import NETWORKING, calls, objects, policy
from tierwall import load
from tierwall.cli.main import root
from tierwall.core.catalogue import Severity
from tierwall.engines.envoy.config import clusters, external_auth, listeners, policy_compiler, route_plan, routes
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, compile
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

NAME = "request.mcp.tool_name"
DEEP = {
    "selects": "request.mcp.arguments" + ".a" * 60 + " == 'x'",
    "keys": "request.mcp.arguments" + "['a']" * 60 + " == 'x'",
    "ternary": "".join(f"{NAME} == 't{number}' ? true : " for number in range(240)) + "false",
    "parentheses": "".join(f"{NAME} == 'a' && ({NAME} == 'b' || (" for _ in range(60)) + "true" + "))" * 60,
    "not": "!" + "(!" * 60 + f"({NAME} == 'a')" + ")" * 60,
    "lists": "[" * 60 + "]" * 60 + " == []",
    "pattern": f"{NAME}.matches('{'|'.join(f'name{number}' for number in range(1000))}')",
    "pattern of a function": f"matches({NAME}, '{'x' * 97}')",
    "pattern of letters": rf"{NAME}.matches('\\pL')",
    "list": f"1 in [{','.join('1' for _ in range(15_000))}]",
}
FINE = {
    "and": " && ".join(f"{NAME} != 't{number}'" for number in range(400)),
    "or": " || ".join(f"({NAME} == 't{number}' && request.headers.x == 'y')" for number in range(400)),
    "nested": f"{NAME} != 'a' && (" * 200 + "true" + ")" * 200,
    "selects": "request.mcp.arguments" + ".a" * 37 + " == 'x'",
    "ternary": "".join(f"{NAME} == 't{number}' ? true : " for number in range(40)) + "false",
    "pattern": f"{NAME}.matches('{'x' * 96}')",
    "list": f"{NAME} in [{', '.join(repr(f't{number}') for number in range(5000))}]",
}


def by_expression(expression: str, backend: str = "open") -> Object:
    return policy("deep", backend, [{"authorization": {"type": "CEL", "cel": {"expression": expression}}}])


def compiled(*more: Object, state: CompileState | None = None) -> XdsResources:
    return compile(Snapshot.of(load_objects([*objects(), *more])), OPTIONS, state)[0]


def denies(resources: XdsResources, name: str = "deep", route: str = "open") -> bool:
    """Whether a policy denies every request of a route."""
    for kind in ("mcp", "rpc", "http"):
        decisions = [policy.decision for policy in policies(resources, f"prod/{route}/0/0/{kind}")]
        actions = [rbac_pb2.Action.FromString(decision.action.typed_config.value) for decision in decisions]
        if (f"XAccessPolicy/prod/{name}", rbac_pb2.RBAC.DENY) not in [
            (action.name, action.action) for action in actions
        ]:
            return False
    return True


@pytest.mark.parametrize("name", DEEP)
def test_a_policy_over_a_limit_denies_everything_on_its_targets(name: str) -> None:
    before = compiled()
    resources = compiled(by_expression(DEEP[name]))
    assert codes(resources) == ["TW660"]
    assert denies(resources)
    after = contents(resources)
    assert {name for name in after if after[name] != contents(before).get(name)} == {
        "* prod/open/0/0/mcp",
        "* prod/open/0/0/rpc",
        "* prod/open/0/0/http",
    }


@pytest.mark.parametrize("name", FINE)
def test_a_long_expression_within_the_limits_is_compiled(name: str) -> None:
    resources = compiled(by_expression(FINE[name]))
    assert codes(resources) == []
    assert not denies(resources)


@pytest.mark.parametrize("name", DEEP)
def test_check_finds_it_beforehand_where_it_is_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(yaml.safe_dump_all([*objects(), by_expression(DEEP[name])], width=10**6))
    line = max(number for number, text in enumerate(file.read_text().splitlines(), 1) if " expression:" in text)
    world = load(str(file))
    [finding] = [finding for finding in world.check() if finding.code.startswith("TW6")]
    assert finding.code == "TW660"
    assert str(finding.reference) == "XAccessPolicy/prod/deep"
    assert finding.at is not None
    assert (finding.at.file, finding.at.line) == (str(file), line)
    assert list(compile(world.snapshot, OPTIONS)[0].diagnostics) == [finding]


def test_check_names_rules_that_envoy_cannot_evaluate(tmp_path: Path) -> None:
    macro = by_expression("['a'].exists(name, name == request.mcp.tool_name)")
    paths = [{"type": "RegularExpression", "value": f"/{'a' * 1000}"}]
    pattern = policy("pattern", "mcp", [{"authorization": {"type": "Inline", "paths": paths}}])
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump_all([*objects(), macro, pattern]))
    world = load(str(file))
    findings = [finding for finding in world.check() if finding.code.startswith("TW6")]
    assert [(finding.code, str(finding.reference)) for finding in findings] == [
        ("TW651", "XAccessPolicy/prod/deep"),
        ("TW651", "XAccessPolicy/prod/pattern"),
    ]
    # Another implementation may evaluate the rules, so they do not fail a check.
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    options = EnvoyOptions(max_program_size=MAX_PROGRAM_SIZE)
    assert list(compile(world.snapshot, options)[0].diagnostics) == findings


def test_check_does_not_need_the_packages_of_envoy(tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(yaml.safe_dump_all([*objects(), by_expression(DEEP["selects"])]))
    blocked = "import sys; sys.modules.update(dict.fromkeys(('envoy', 'cel', 'xds', 'google.protobuf', 'grpc')))"
    program = f"{blocked}; from tierwall.__main__ import main; sys.argv = ['tierwall', 'check', {str(file)!r}]; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 4, done.stderr
    assert "warning[TW660]" in done.stdout + done.stderr


def test_conditions_that_names_multiply_are_bounded() -> None:
    """Five rules with long expressions, and fifty names for each of which they count."""
    long = " && ".join(f"{NAME} != '{'x' * 50}{number}'" for number in range(1000))
    rules = [
        {"authorization": {"type": "CEL", "cel": {"expression": f"{long} && {NAME} != '{number}'"}}}
        for number in range(5)
    ]
    assert codes(compiled(policy("deep", "open", rules))) == []
    rules += [calls(*(f"n{number}-{rule}" for number in range(10))) for rule in range(5)]
    resources = compiled(policy("deep", "open", rules))
    assert codes(resources) == ["TW660"]
    assert denies(resources)


def test_the_deepest_expression_that_passes_can_be_read_again() -> None:
    """Protobuf refuses to read more than a hundred levels, here as in Envoy."""
    depth = next(
        number
        for number in range(1, 60)
        if codes(compiled(by_expression(f"request.mcp.arguments{'.a' * number} == 1")))
    )
    resources = compiled(by_expression(f"request.mcp.arguments{'.a' * (depth - 1)} == 1"))
    [only] = policies(resources, "prod/open/0/0/mcp")
    text = only.decision.SerializeToString()
    expressions = [
        cel_pb2.CelMatcher.FromString(matcher.predicate.single_predicate.custom_match.typed_config.value)
        for matcher in type(only.decision)
        .FromString(text)
        .matcher.matcher_tree.exact_match_map.map["tools/call"]
        .matcher.matcher_list.matchers
    ]
    assert expressions
    assert expressions[0].expr_match.cel_expr_parsed.expr.call_expr.function == "_==_"


class Failing:
    """Makes a function fail for one object, with every kind of exception in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self._patch, self._error = monkeypatch, error

    def __call__(self, module: Any, name: str, concerns: Callable[..., bool]) -> None:
        original = getattr(module, name)

        def fails(*args: Any, **settings: Any) -> Any:
            if concerns(*args):
                raise self._error
            return original(*args, **settings)

        self._patch.setattr(module, name, fails)


ERRORS = (
    ValueError("odd"),
    RecursionError("deep"),
    MemoryError(),
    KeyError("x"),
    UnicodeEncodeError("utf-8", "x", 0, 1, "y"),
)


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch, request.param)


def differing(before: XdsResources, after: XdsResources) -> set[str]:
    """Return the names of the routes whose effects differ."""
    first, second = contents(before), contents(after)
    return {name.removeprefix("* ") for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


def routes_of(rule: str) -> set[str]:
    """Return the names of the routes with policies: for MCP, other JSON-RPC and plain HTTP."""
    return {f"{rule}/{kind}" for kind in ("mcp", "rpc", "http")}


def test_a_policy_that_cannot_be_compiled_closes_only_its_targets(failing: Failing) -> None:
    before = compiled()
    failing(policy_compiler, "compile_policy", lambda policy, *_: policy.reference.name == "lists")
    after = compiled()
    assert codes(after) == ["TW661"]
    assert denies(after, "lists", "mcp")
    assert differing(before, after) == routes_of("prod/mcp/0/0")


def test_an_authorizer_that_cannot_be_read_closes_only_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled()
    original = external_auth.authorization_service

    def find(snapshot: Snapshot, resource: Any) -> Any:
        if resource.name == "asks":
            raise ValueError("odd")
        return original(snapshot, resource)

    monkeypatch.setattr(policy_compiler.PolicyCompiler.__init__, "__defaults__", (None, None, find, None, None))
    after = compiled()
    assert codes(after) == ["TW661"]
    assert differing(before, after) == routes_of("prod/asks/0/0")


def test_a_route_that_cannot_be_compiled_answers_500(failing: Failing) -> None:
    before = compiled()
    failing(route_plan, "apply_filters", lambda route, *_: route.name.startswith("prod/mcp/"))
    after = compiled()
    assert codes(after) == ["TW661"]
    statuses = {
        route.name: route.direct_response.status
        for configuration in after.routes.values()
        for host in configuration.virtual_hosts
        for route in host.routes
    }
    assert statuses["prod/mcp/0/0"] == 500
    assert differing(before, after) == {"prod/mcp/0/0", *routes_of("prod/mcp/0/0")}


def test_a_route_whose_policies_cannot_be_applied_answers_500(failing: Failing) -> None:
    before = compiled()
    failing(routes, "protected_routes", lambda route, *_: route.name.startswith("prod/mcp/"))
    after = compiled()
    assert codes(after) == ["TW661"]
    assert differing(before, after) == {"prod/mcp/0/0", *routes_of("prod/mcp/0/0")}


def test_a_backend_that_cannot_be_compiled_leads_nowhere(failing: Failing) -> None:
    before = compiled()
    failing(clusters, "backend_cluster", lambda resource, *_: resource.name == "mcp")
    after = compiled()
    assert codes(after) == ["TW656", "TW661"]
    assert before.clusters.keys() - after.clusters.keys() == {f"backend/{NETWORKING}/prod/mcp"}
    assert differing(before, after) == {"prod/mcp/0/0", *routes_of("prod/mcp/0/0")}


def test_a_listener_that_cannot_be_compiled_is_not_opened(failing: Failing) -> None:
    authority = CertificateAuthority()
    options = EnvoyOptions(certificate=authority.server(), client_authority=authority.pem)
    snapshot = Snapshot.of(load_objects(objects(secure=True)))
    before, _ = compile(snapshot, options)
    failing(listeners, "transport_socket", lambda *_: True)
    after, _ = compile(snapshot, options)
    assert codes(after) == ["TW661"]
    assert before.listeners.keys() - after.listeners.keys() == {"gateway/prod/gate/443"}
    assert after.listeners.keys() == {"gateway/prod/gate/80"}
    assert after.listeners["gateway/prod/gate/80"] == before.listeners["gateway/prod/gate/80"]


def test_a_listener_whose_message_cannot_be_made_is_not_opened(failing: Failing) -> None:
    twin = next(each for each in objects() if each["kind"] == "Gateway")
    twin = {**twin, "metadata": {"name": "twin", "namespace": "prod"}}
    twin["spec"] = {**twin["spec"], "listeners": [{"name": "web", "port": 81, "protocol": "HTTP"}]}
    before = compiled(twin)
    failing(listeners, "connection_manager", lambda name, *_: "/twin/" in name)
    after = compiled(twin)
    assert codes(after) == ["TW661"]
    assert after.listeners == {"gateway/prod/gate/80": before.listeners["gateway/prod/gate/80"]}


def test_an_authorizer_without_a_cluster_is_left_out(failing: Failing) -> None:
    before = compiled()
    failing(clusters, "authorizer_cluster", lambda *_: True)
    after = compiled()
    assert codes(after) == ["TW661"]
    assert {name.split("/")[0] for name in before.clusters.keys() - after.clusters.keys()} == {"authorizer"}
    assert differing(before, after) == set()


def test_a_fixed_policy_opens_again() -> None:
    good, bad = policy("deep", "open", [calls("add")]), by_expression(DEEP["selects"])
    _, state = compile(Snapshot.of(load_objects([*objects(), good])), OPTIONS)
    closed, state = compile(Snapshot.of(load_objects([*objects(), bad])), OPTIONS, state)
    assert denies(closed)
    reopened, _ = compile(Snapshot.of(load_objects([*objects(), good])), OPTIONS, state)
    assert codes(reopened) == []
    assert contents(reopened) == contents(compiled(good))


@pytest.mark.engine
def test_policy_tests_say_that_envoy_cannot_be_asked(tmp_path: Path) -> None:
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all([*objects(), by_expression(DEEP["selects"])]))
    question = {"gateway": "prod/gate", "method": "tools/call", "tool": "add"}
    cases = [
        {"name": backend, "tool": {**question, "backend": f"prod/{backend}"}, "expect": {"verdict": verdict}}
        for backend, verdict in (("open", "Deny"), ("mcp", "Allow"))
    ]
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "limits"},
        "spec": {"resources": ["objects.yaml"], "cases": cases},
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    result = CliRunner().invoke(root, ["test", str(file), "--engine", "envoy"])
    assert result.exit_code == 0, result.output
    assert "not testable here: Envoy cannot hold rules[0] (r0)" in result.output
    assert "1 passed, 0 failed, 1 skipped" in result.output
    assert CliRunner().invoke(root, ["test", str(file)]).exit_code == 0
