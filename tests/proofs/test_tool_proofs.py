"""Proofs about the tool plane, held to its decision: for random policies and requests the circuit says the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tierwall
from tests.logic.cel.questions import placed
from tests.proofs.neighbours import neighbourhood
from tests.randomness import seeds
from tests.worlds import tool_objects, tool_worlds
from tierwall import InputError, Proof, ProofResult, Verdict
from tierwall.logic.cel.encoder import settle
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.cel.values import Values
from tierwall.logic.solver import CircuitSolver
from tierwall.planes import plane
from tierwall.proofs.proof import Claim
from tierwall.proofs.proving import prove as prove_snapshot
from tierwall.proofs.tool import plane as proving
from tierwall.proofs.tool.call import UnknownCall
from tierwall.proofs.tool.policies import PolicyCircuit
from tierwall.proofs.value_set import SetForm
from tierwall.tool.decide import decide
from tierwall.tool.grants import grants
from tierwall.tool.protocol import NAME_HEADER
from tierwall.tool.question import ToolQuestion, read_question
from tierwall.tool.request import ToolRequest


@pytest.mark.hypothesis
def test_the_circuit_of_a_way_says_what_the_decision_says() -> None:
    verdicts: Counter[str] = Counter()
    for seed in seeds(30):
        random_world = tool_worlds.World(seed)
        snapshot = tool_worlds.snapshot(random_world.objects)
        for _ in range(4):
            asked = random_world.question()
            question = ToolQuestion.from_dict(asked)
            way, request, answers = read_question(snapshot, question)
            if NAME_HEADER in request.headers:
                continue

            def build(world: UnknownWorld, way: Any = way, request: ToolRequest = request) -> Any:
                call = UnknownCall(world, way.backend, request.port)
                policies = PolicyCircuit(call)
                return call, policies.allows(way.stack), policies.answers

            world, (call, allows, free) = settle(build)
            values, solver = Values(world), CircuitSolver(world.circuit)
            literals = placed(values, pairs(call, request))
            assert literals is not None
            literals += [
                literal if answers.get(policy) is Verdict.ALLOW else -literal for policy, literal in free.items()
            ]
            decided = decide(way.stack, request, answers)
            guarded = "guarded" if decided.evaluated else "free"
            verdicts[f"{guarded}: {decided.verdict}"] += 1
            assert solver.possible(literals), (seed, asked)
            says = bool(solver.possible([*literals, allows])), bool(solver.possible([*literals, -allows]))
            assert says == (decided.verdict is Verdict.ALLOW, decided.verdict is Verdict.DENY), (seed, asked)
    assert verdicts["guarded: Allow"] > 5, verdicts
    assert verdicts["guarded: Deny"] > 20, verdicts


def pairs(call: UnknownCall, request: ToolRequest) -> list[Any]:
    value = request.variables()["request"]
    value.pop("url_path")
    return [
        (call.request, {**value, "headers": dict(request.headers)}),
        (call.caller, request.caller),
        (call.method, request.method),
        (call.uri, request.uri),
    ]


NAMES = ("method", "tool", "uri")


def random_claim(world: tool_worlds.World) -> dict[str, Any]:
    """A claim about requests on a random way that agree with a random one in some parts, or differ in them."""
    like, choose = world.question(), world.chance.choice
    region: dict[str, Any] = {key: like[key] for key in ("gateway", "listener", "backend") if key in like}
    if "caller" in like:
        caller = like["caller"]
        others = [caller] if isinstance(caller, dict) else [caller, {"not": [caller]}]
        region |= world.optional(70, caller=lambda: choose(others))
    elif world.likely(70):
        region["caller"] = "none"
    for key in NAMES:
        if key in like and world.likely(35):
            region[key] = choose((like[key], like[key], {"not": [like[key]]}, {"prefix": like[key][:3]}))
    http = like.get("http", {})
    parts = {key: http[key] for key in ("method", "path", "host") if key in http and world.likely(60)}
    headers = {name: value for name, value in http.get("headers", {}).items() if name != "Mcp-Name"}
    if headers and world.likely(35):
        parts["headers"] = headers
    if parts:
        region["http"] = parts
    return {"tool": region, choose(("never", "always")): choose(("Allow", "Deny"))}


def sample(world: tool_worlds.World, region: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """A random question on the way of a region, with strings that policies name, or nearly."""
    asked, choose = world.question(), world.chance.choice
    asked = {key: value for key, value in asked.items() if key not in ("gateway", "listener", "backend")}
    asked |= {key: region[key] for key in ("gateway", "listener", "backend") if key in region}
    asked |= world.optional(30, tool=lambda: choose(texts), uri=lambda: choose(texts), method=lambda: choose(texts))
    # What the region says in one word is rarely drawn by chance.
    asked |= {key: value for key in NAMES if isinstance(value := region.get(key), str) and world.likely(80)}
    if isinstance(caller := region.get("caller"), dict) and "not" not in caller:
        asked["caller"] = caller
    http = {**asked.get("http", {})}
    wanted = region.get("http", {})
    http |= {key: value for key, value in wanted.items() if key != "headers"}
    if "headers" in wanted:
        given = {**http.get("headers", {}), **wanted["headers"]}
        http["headers"] = {name.lower(): value for name, value in given.items()}
    return asked | ({"http": http} if http else {})


def is_inside(request: ToolRequest, region: Any) -> bool:
    """Whether a request is in a region. A part that a request does not have is in none that is not `not`."""
    variables = request.variables()["request"]
    parts = [
        (region.names.get("method"), request.method),
        (region.names.get("tool"), variables["mcp"].get("tool_name")),
        (region.names.get("uri"), request.uri),
        *((region.http.get(key), variables.get(key)) for key in ("method", "path", "host")),
        *((values, request.headers.get(name)) for name, values in region.headers.items()),
    ]
    if region.caller is not None:
        nobody = region.caller.form is SetForm.IN and not region.caller.values
        if nobody and request.caller is not None:
            return False
        parts += [] if nobody else [(region.caller, request.caller)]
    return all(
        values is None or (values.contains(text) if text is not None else values.form is SetForm.NOT)
        for values, text in parts
    )


@pytest.mark.hypothesis
def test_no_request_at_random_contradicts_a_proof() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds(20):
        world = tool_worlds.World(seed)
        snapshot = tool_worlds.snapshot(world.objects)
        for _ in range(4):
            document = random_claim(world)
            proof = Proof.from_dict(document)
            assert isinstance(proof.claim, Claim)
            result = prove_snapshot(snapshot, proof)
            assert not result.is_defect, (seed, result.why)
            counts[result.proof] += 1
            if result.proof != "Proved":
                continue
            texts = neighbourhood(world.policies, document)
            for _ in range(300):
                question = ToolQuestion.from_dict(sample(world, document["tool"], texts))
                _, request, _ = read_question(snapshot, question)
                if NAME_HEADER in request.headers or not is_inside(request, proof.region):
                    continue
                counts["asked"] += 1
                answer = plane("tool").ask(snapshot, question)
                assert not proof.claim.refuted_by(proving.outcomes(answer)), (seed, document, question)
    assert counts["Proved"] > 15, counts
    assert counts["asked"] > 1_000, counts


OBJECTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: prod}
spec: {gatewayClassName: c, listeners: [{name: web, port: 8080, protocol: HTTP}]}
---
apiVersion: agentic.networking.x-k8s.io/v0alpha0
kind: XBackend
metadata: {name: payments, namespace: prod}
spec: {mcp: {serviceName: s, port: 80}}
---
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XAccessPolicy
metadata: {name: gateway, namespace: prod}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  action: Allow
  rules:
  - name: finance
    source: {type: ServiceAccount, serviceAccount: {name: finance, namespace: agents}}
  - name: readers
    authorization: {type: CEL, cel: {expression: "request.mcp.tool_name.startsWith('get')"}}
---
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XAccessPolicy
metadata: {name: backend, namespace: prod}
spec:
  targetRefs: [{group: agentic.networking.x-k8s.io, kind: XBackend, name: payments}]
  action: Allow
  rules:
  - name: no-debug
    authorization:
      type: Inline
      hosts: ["*.example.com"]
      mcp: {methods: [{name: tools/call}]}
"""
WAY = {"gateway": "prod/gw", "backend": "prod/payments"}
FINANCE = {"serviceAccount": "agents/finance"}
FINANCE_ID = "spiffe://cluster.local/ns/agents/sa/finance"


def prove(text: str = OBJECTS, **proof: Any) -> ProofResult:
    return tierwall.prove(tierwall.loads(text), Proof.from_dict(proof))


@pytest.mark.parametrize(
    ("region", "claim"),
    [
        ({"method": "tools/call", "tool": "refund", "caller": {"not": [FINANCE_ID]}}, {"never": "Allow"}),
        ({"method": "tools/call", "tool": "refund", "caller": "none"}, {"always": "Deny"}),
        ({"http": {"host": {"suffix": "example.org"}}}, {"never": "Allow"}),
        ({"method": "tools/call", "where": "!has(request.host)"}, {"never": "Allow"}),
    ],
)
def test_claims_that_hold_are_proved(region: dict[str, Any], claim: dict[str, str]) -> None:
    result = prove(tool=WAY | region, **claim)
    assert result.proof == "Proved", result.sentence


@pytest.mark.parametrize(
    ("region", "is_missing"),
    [
        ({"tool": {"not": ["refund"]}}, "!has(request.mcp.tool_name)"),
        ({"http": {"host": {"not": ["other.org"]}}}, "!has(request.host)"),
        ({"http": {"headers": {"x-env": {"not": ["dev"]}}}}, "!('x-env' in request.headers)"),
    ],
)
def test_a_set_that_leaves_values_out_has_requests_without_one(region: dict[str, Any], is_missing: str) -> None:
    gateway_only = "---".join(OBJECTS.split("---")[:3])
    wanted = WAY | region | {"caller": FINANCE, "method": "tools/call", "where": is_missing}
    assert prove(gateway_only, tool=wanted, never="Allow").proof == "Refuted"


def test_a_refutation_is_a_small_question_with_its_answer() -> None:
    result = prove(tool=WAY | {"method": "tools/call", "tool": {"prefix": "get_secret"}}, never="Allow")
    assert result.proof == "Refuted"
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict() == WAY | {
        "method": "tools/call",
        "tool": "get_secret",
        "http": {"host": "a.example.com"},
    }
    assert result.counterexample.answer.verdict is Verdict.ALLOW
    # A request whose headers contradict its message is denied.
    result = prove(
        tool=WAY | {"caller": FINANCE, "method": "tools/call", "http": {"host": "a.example.com"}}, always="Allow"
    )
    assert result.proof == "Refuted"


EXTERNAL = """---
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XAccessPolicy
metadata: {name: ask, namespace: prod}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  action: ExternalAuth
  externalAuth: {protocol: GRPC, grpc: {}, backendRef: {name: authorizer, port: 5000}}
"""


def test_an_external_authorizer_may_answer_either_way() -> None:
    region = WAY | {"caller": FINANCE, "tool": "refund", "method": "tools/call", "http": {"host": "a.example.com"}}
    result = prove(OBJECTS + EXTERNAL, tool=region, never="Allow")
    assert result.proof == "Refuted"
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["externalAuth"] == {"XAccessPolicy/prod/ask": "Allow"}


@pytest.mark.parametrize("word", ["noNew", "noLoss"])
def test_an_authorizer_that_only_one_side_asks_is_not_asked_on_the_other(word: str) -> None:
    asking, plain = tierwall.loads(OBJECTS + EXTERNAL), tierwall.loads(OBJECTS)
    new, old = (plain, asking) if word == "noNew" else (asking, plain)
    changed = Proof.from_dict({word: {"against": "old", "planes": ["tool"]}})
    result = tierwall.prove(new, changed, against=old)
    assert result.proof == "Refuted", result.sentence
    assert result.counterexample is not None
    assert ("externalAuth" in result.counterexample.question.to_dict()) is (new is asking)
    assert tierwall.prove(old, changed, against=new).proof == "Proved"


def test_what_a_proof_cannot_say_is_named() -> None:
    late = OBJECTS.replace(
        "request.mcp.tool_name.startsWith('get')", "request.time > timestamp('2026-01-01T00:00:00Z')"
    )
    region = WAY | {"caller": "none", "method": "tools/call", "tool": "get-x"}
    result = prove(late, tool=region, never="Allow")
    assert result.proof == "Unknown"
    assert result.why.startswith("`request.time` in XAccessPolicy/prod/gateway rules[1] of the expression")
    # Finance may call it at any time, and the expression is about tools only.
    finance = region | {"caller": FINANCE, "http": {"host": "a.example.com"}}
    assert prove(late, tool=finance, always="Deny").proof == "Refuted"
    assert prove(late, tool=region | {"method": "prompts/get"}, never="Allow").proof == "Proved"


def test_a_pattern_without_a_translation_stays_open() -> None:
    text = OBJECTS.replace('hosts: ["*.example.com"]', "paths: [{type: RegularExpression, value: '(?i)/mcp'}]")
    calls = WAY | {"caller": FINANCE, "method": "tools/call"}
    result = prove(text, tool=calls | {"tool": "refund", "http": {"path": "/x"}}, never="Allow")
    assert result.why.endswith("in XAccessPolicy/prod/backend"), result.sentence
    assert prove(text, tool=calls | {"caller": "none", "tool": "refund"}, never="Allow").proof == "Proved"
    opens = Proof.from_dict({"noNew": {"against": "old", "planes": ["tool"]}})
    narrower = text.replace("startsWith('get')", "startsWith('get-')")
    assert tierwall.prove(tierwall.loads(narrower), opens, against=tierwall.loads(text)).proof == "Proved"
    assert tierwall.prove(tierwall.loads(text), opens, against=tierwall.loads(narrower)).proof != "Proved"


def test_a_change_that_opens_a_tool_is_refuted() -> None:
    wider = OBJECTS.replace("startsWith('get')", "startsWith('g')")
    opens, closes = (Proof.from_dict({word: {"against": "old", "planes": ["tool"]}}) for word in ("noNew", "noLoss"))
    old, new = tierwall.loads(OBJECTS), tierwall.loads(wider)
    result = tierwall.prove(new, opens, against=old)
    assert result.proof == "Refuted", result.sentence
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["tool"] == "g"
    assert tierwall.prove(new, closes, against=old).proof == "Proved"
    assert tierwall.prove(old, opens, against=old).proof == "Proved"
    # A backend that only one side has may come on the other, too, where no policy is on it.
    added = tierwall.loads(OBJECTS + "---" + OBJECTS.split("---")[1].replace("payments", "other"))
    assert tierwall.prove(added, opens, against=old).proof == "Proved"
    unguarded = tierwall.loads(OBJECTS.replace("kind: XBackend, name: payments", "kind: XBackend, name: other"))
    result = tierwall.prove(unguarded, opens, against=old)
    assert result.proof == "Refuted"
    moved = tierwall.loads(OBJECTS.replace("name: web", "name: other"))
    assert "is on one side of the change only" in tierwall.prove(moved, opens, against=old).why


def test_a_change_at_one_of_several_listeners_of_a_name_is_not_missed() -> None:
    """Its question could not be asked, so no counterexample is shown; `diff` and `tools` tell it by its ListenerSet."""
    edge = tool_objects.gateway()
    edge["spec"]["allowedListeners"] = {"namespaces": {"from": "All"}}
    parents = [{"name": "prod-gateway"}]
    more: list[dict[str, Any]] = []
    for name, port in (("one", 9001), ("two", 9002)):
        listener = {"name": "web", "port": port, "protocol": "HTTP"}
        spec = {"parentRef": {"name": "prod-gateway"}, "listeners": [listener]}
        more.append(tool_objects.manifest("gateway.networking.k8s.io/v1", "ListenerSet", name, spec))
        parents.append({"name": name, "kind": "ListenerSet", "group": "gateway.networking.k8s.io"})
    way = tool_objects.route("r", "prod-gateway", "pay")
    way["spec"]["parentRefs"] = parents
    objects = [edge, *more, tool_objects.backend("pay"), way]

    def guarded(section: str) -> list[dict[str, Any]]:
        target, ping = tool_objects.on_gateway(section=section), {"authorization": tool_objects.mcp("ping")}
        return [*objects, tool_objects.v1("p", target, ping)]

    def world(section: str) -> tierwall.World:
        return tierwall.loads("", objects=guarded(section))

    opens = Proof.from_dict({"noNew": {"against": "old", "planes": ["tool"]}})
    # The policy no longer reaches the listeners of the ListenerSets.
    result = tierwall.prove(world("web"), opens, against=world(""))
    assert (result.proof, "ListenerSet/prod/one" in result.why) == ("Unknown", True), result.sentence
    assert tierwall.prove(world(""), opens, against=world("web")).proof == "Proved"
    opened = tierwall.diff(world(""), world("web"), planes=["tool"])
    assert {str(difference.question["listenerSet"]) for difference in opened} == {"prod/one", "prod/two"}
    listed = grants(tool_worlds.snapshot(guarded("web")), None)
    assert [(rows[0].listener_set, str(rows[-1].verdict)) for rows in listed.ways] == [
        (None, "Deny"),
        ("prod/one", "Allow"),
        ("prod/two", "Allow"),
    ]


def test_everything_wrong_with_a_region_is_said() -> None:
    with pytest.raises(InputError) as raised:
        prove(
            tool={"gateway": ["a"], "caller": "agents/finance", "http": {"pth": "/"}, "where": "a ==", "tols": 1},
            never="Allow",
        )
    messages = sorted(diagnostic.message.partition(":")[0] for diagnostic in raised.value.diagnostics)
    assert messages == [
        "`where` is not a CEL expression",
        "expected `backend` in `tool`",
        "expected a SPIFFE id as `caller`, found `agents/finance`",
        'expected one name as `gateway`, found `["a"]`',
        "unknown key `pth` in `http`",
        "unknown key `tols` in `tool`",
    ]
    with pytest.raises(InputError, match="prod/none"):
        prove(tool={"gateway": "prod/none", "backend": "prod/payments"}, never="Allow")
