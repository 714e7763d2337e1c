"""Proofs about the api plane, held to its decision: for random policies and requests the circuit says the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import tierwall
from tests.logic.cel.questions import placed
from tests.proofs.neighbours import neighbourhood
from tests.randomness import seeds
from tierwall import InputError, Proof, ProofResult
from tierwall.api.algebra.request import OPERATIONS, ConditionData
from tierwall.api.decide import decide
from tierwall.api.model import AuthorizerType, chain_with_answers, configured_authorizers
from tierwall.api.question import ApiQuestion, attributes_of
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import settle
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.cel.values import Values
from tierwall.logic.solver import CircuitSolver
from tierwall.planes import plane
from tierwall.proofs.api import plane as proving
from tierwall.proofs.api.chain import ChainCircuit, CircuitVerdict
from tierwall.proofs.api.region import ApiRegion
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.proof import Claim
from tierwall.proofs.proving import prove as prove_snapshot
from tierwall.proofs.value_set import ValueSet

EXPRESSIONS = (
    "request.verb == 'create' && object.metadata.labels.owner == request.userInfo.username",
    "request.verb in ['update', 'delete'] && oldObject.metadata.labels.env == 'prod'",
    "'admins' in request.userInfo.groups",
    "request.userInfo.groups.exists(g, g.startsWith('team-') && g != 'team-x')",
    "request.resource == 'pods' && request.namespace == 'prod'",
    "request.name == 'special'",
    "operation == 'DELETE'",
    "has(object.metadata.labels) && object.metadata.labels.all(k, k != 'secret')",
    "object == null || object.spec.replicas <= 3",
    "request.path.startsWith('/healthz')",
    "object.spec.containers.all(c, c.image.startsWith('ok/'))",
    "request.subresource == '' && request.userInfo.username != 'eve'",
    "request.verb == 'list'",
    "options.dryRun == ['All']",
    "'not a bool'",
    "request.nothing == 1",
    "namespaceObject.metadata.labels.env == 'prod'",
    "object.metadata.name != request.name",
    "oldObject.metadata.name == 'special' || has(object.metadata.namespace)",
    "object.metadata.namespace == 'prod' && request.namespace != 'dev'",
)


def manifest(kind: str, name: str, **parts: Any) -> dict[str, Any]:
    version = "rbac.authorization.k8s.io/v1" if "Role" in kind else "tierwall.io/v1alpha1"
    namespace = parts.pop("namespace", None)
    return {
        "apiVersion": "v1" if kind == "Namespace" else version,
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}) | parts.pop("metadata", {}),
        **parts,
    }


def random_objects(choose: Callable[[Any], Any]) -> list[dict[str, Any]]:
    objects = [manifest("Namespace", "prod", metadata={"labels": {"env": "prod"}}), manifest("Namespace", "dev")]
    for number in range(choose(range(1, 5))):
        spec = {"effect": choose(("Allow", "Allow", "Deny", "NoOpinion")), "expression": choose(EXPRESSIONS)}
        if choose(range(4)) == 0:
            spec["authorizer"] = "others"
        if choose((True, False)):
            spec["expression"] += f" {choose(('&&', '||'))} {choose(EXPRESSIONS)}"
        if choose(range(6)) == 0:
            objects.append(manifest("AuthorizationPolicy", f"p{number}", namespace="prod", spec=spec))
        else:
            spec["effect"] = choose(("Allow", "Deny", "NoOpinion", "Alow")) if choose(range(8)) == 0 else spec["effect"]
            objects.append(manifest("ClusterAuthorizationPolicy", f"p{number}", spec=spec))
    rule = {"verbs": choose((["*"], ["create", "get"])), "apiGroups": ["", "apps"]}
    rule["resources"] = choose((["pods"], ["*"], ["*/log", "pods/exec"]))
    if choose((True, False)):
        rule["resourceNames"] = ["special"]
    urls = {"verbs": ["get"], "nonResourceURLs": choose((["/healthz"], ["/healthz/*"], ["*"]))}
    objects.append(manifest("ClusterRole", "r", rules=[rule, urls]))
    subject = {"kind": choose(("User", "Group")), "apiGroup": "rbac.authorization.k8s.io"}
    subject["name"] = "alice" if subject["kind"] == "User" else "admins"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    bound = {"roleRef": reference, "subjects": [subject]}
    if choose((True, False)):
        objects.append(random_chain(choose))
    kind = choose(("ClusterRoleBinding", "RoleBinding"))
    return [*objects, manifest(kind, "b", namespace="prod" if kind == "RoleBinding" else None, **bound)]


def random_chain(choose: Callable[[Any], Any]) -> dict[str, Any]:
    webhook = {
        "timeout": "3s",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": choose(("Deny", "NoOpinion")),
        "connectionInfo": {"type": "InClusterConfig"},
    }
    members: list[dict[str, Any]] = [
        {"type": "CEL", "name": "policies", "failureMode": choose(("Deny", "NoOpinion"))},
        {"type": "CEL", "name": "others"},
        {"type": "Node", "name": "node"},
        {"type": "RBAC", "name": "rbac"},
        {"type": "Webhook", "name": "w", "webhook": webhook},
        {"type": choose(("AlwaysAllow", "AlwaysDeny")), "name": "last"},
    ]
    chosen = [member for member in members if choose((True, True, False))] or members[:1]
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": sorted(chosen, key=lambda member: choose(range(6))),
    }


def random_object(choose: Callable[[Any], Any], name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name} if choose((True, True, False)) else {}
    if choose((True, False)):
        metadata["labels"] = {
            key: choose(("alice", "prod", "x")) for key in ("owner", "env", "secret") if choose((0, 1))
        }
    containers = [{"image": choose(("ok/a", "bad"))} for _ in range(choose(range(3)))]
    return {"metadata": metadata, "spec": {"replicas": choose((1, 5)), "containers": containers}}


def random_question(choose: Callable[[Any], Any]) -> ApiQuestion:
    common = {
        "user": choose(("alice", "eve", "bob", "system:node:n")),
        "groups": [group for group in ("admins", "team-a", "team-x", "system:nodes") if choose((True, False))],
        "webhooks": choose((None, {"w": "Allow"}, {"w": "Deny"}, {"w": "NoOpinion"})),
    }
    if choose(range(6)) == 0:
        return ApiQuestion(**common, verb="get", path=choose(("/healthz", "/healthz/x", "/metrics")))
    verb = choose(("create", "update", "patch", "delete", "get", "list"))
    subresource = choose(("", "", "", "log", "exec"))
    name = choose(("", "special", "a")) if verb in ("create", "list") else choose(("special", "a"))
    question = ApiQuestion(
        **common,
        verb=verb,
        group=choose(("", "apps")),
        version="v1",
        resource=choose(("pods", "pods", "deployments", "secrets")),
        subresource=subresource,
        namespace=choose(("prod", "dev", "")),
        name=name,
    )
    attributes = attributes_of(question, [])
    if not attributes.supports_conditions:
        return question
    namespace: dict[str, Any] = {
        "metadata": {"name": question.namespace, "labels": {"kubernetes.io/metadata.name": question.namespace}}
    }
    if question.namespace == "prod":
        namespace["metadata"]["labels"]["env"] = "prod"
    deletes, creates = verb == "delete", verb == "create" or attributes.is_connect
    drawn = tierwall.ApiQuestion(
        **{field: getattr(question, field) for field in (*common, "verb", "group", "version", "resource")},
        subresource=subresource,
        namespace=question.namespace,
        name=name,
        operation="CONNECT" if attributes.is_connect else OPERATIONS[verb],
        object=None if deletes and not attributes.is_connect else random_object(choose, "special"),
        old_object=None if creates else random_object(choose, "special"),
        options=choose((None, {}, {"dryRun": ["All"]})),
        namespace_object=namespace if question.namespace else None,
    )
    return as_a_server_sees_it(drawn)


def as_a_server_sees_it(question: ApiQuestion) -> ApiQuestion:
    """The same with the names and namespaces that objects have once an API server has read and checked them."""
    if attributes_of(question, []).is_connect or question.subresource not in ("", "status", "scale"):
        return question
    changed: dict[str, Any] = {}
    for field in ("object", "old_object"):
        value = getattr(question, field)
        if not isinstance(value, dict):
            continue
        metadata = {key: inner for key, inner in value["metadata"].items() if key != "namespace"}
        if question.namespace:
            metadata["namespace"] = question.namespace
        if field == "old_object" or question.verb != "create" or question.name:
            metadata["name"] = question.name
        changed[field] = value | {"metadata": metadata}
    return replace(question, **changed)


@pytest.mark.hypothesis
def test_the_circuit_of_a_chain_says_what_the_decision_says() -> None:
    verdicts: Counter[object] = Counter()
    for seed in seeds(25):
        choose = random.Random(seed).choice
        objects = random_objects(choose)
        snapshot = tierwall.loads(yaml.safe_dump_all(objects), strict=False).snapshot

        def build(world: UnknownWorld, snapshot: Any = snapshot) -> tuple[UnknownRequest, CircuitVerdict]:
            request = UnknownRequest(world, (snapshot,))
            verdict = ChainCircuit(snapshot, request).verdict()
            request.finish()
            return request, verdict

        world, (request, chain) = settle(build)
        values, solver = Values(world), CircuitSolver(world.circuit)
        for _ in range(25):
            question = random_question(choose)
            attributes = attributes_of(question, [])
            data = None
            if attributes.supports_conditions:
                data = ConditionData(**{name: getattr(question, name) for name in _DATA})
            final = decide(chain_with_answers(snapshot, answers_of(question)), attributes, data).final
            literals = placed(values, pairs(request, question, data))
            if literals is None or final is None:
                verdicts["left out"] += 1
                continue
            literals += answered(request, snapshot, question)
            assert solver.possible(literals), (seed, question)
            if data is None:
                verdicts["without data"] += 1
            verdicts[final.verdict] += 1
            if any(solver.possible([*literals, literal]) for literal, _ in chain.undecided):
                verdicts["undecided"] += 1
                # Then what is free may be what it really is.
                assert solver.possible([*literals, *chain.is_verdict(final.verdict)]), (seed, question, objects)
                continue
            says = [
                verdict
                for verdict in (Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION)
                if solver.possible([*literals, *chain.is_verdict(verdict)])
            ]
            assert says == [final.verdict], (seed, question, objects)
    assert verdicts["without data"] > 100, verdicts
    assert verdicts["undecided"] < verdicts.total() / 20, verdicts
    assert min(verdicts[verdict] for verdict in (Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION)) > 30, verdicts


_DATA = ("operation", "object", "old_object", "options", "namespace_object")


def answers_of(question: ApiQuestion) -> dict[str, Verdict]:
    return {name: Verdict(word) for name, word in (question.webhooks or {}).items()}


def answered(request: UnknownRequest, snapshot: Any, question: ApiQuestion) -> list[int]:
    """The literals that say what webhooks answer; who is not asked for an answer cannot be reached."""
    answers = answers_of(question)
    literals = []
    for member in configured_authorizers(snapshot):
        if member.type is AuthorizerType.WEBHOOK:
            verdict = answers.get(member.name, member.failure_policy)
            allows, denies = request.webhook(member)
            for literal, answer in ((allows, Verdict.ALLOW), (denies, Verdict.DENY)):
                literals.append(literal if verdict is answer else -literal)
    return literals


def pairs(request: UnknownRequest, question: ApiQuestion, data: ConditionData | None) -> list[Any]:
    attributes = attributes_of(question, [])
    value = attributes.request()
    if attributes.is_name_unknown:
        value["name"] = data.name if data is not None else ""
    keys = {"old_object": "oldObject", "namespace_object": "namespaceObject"}
    given = [(request.data[keys.get(name, name)], getattr(data, name) if data else None) for name in _DATA]
    return [(request.request, value), (request.name, attributes.name), *given]


FIELDS = ("user", "group", "resource", "subresource", "namespace", "name")
WHERE = tuple(text for text in EXPRESSIONS if "object" in text or "userInfo" in text)


def random_claim(choose: Callable[[Any], Any]) -> dict[str, Any]:
    """A claim about requests that agree with a random one in some fields, or differ in them."""
    like = random_question(choose)
    if like.path:
        fields = {"path": choose((like.path, {"prefix": like.path}, {"not": [like.path]})), "user": like.user}
    else:
        kept = [field for field in FIELDS if choose((True, False))]
        fields = {name: choose((value, value, {"not": [value]})) for name in kept if (value := getattr(like, name))}
        fields["verb"] = choose((like.verb, [like.verb, "create"]))
    if choose((True, False, False)):
        lacks = {"lacks": [choose(("admins", "system:nodes", "team-x"))]}
        fields["groups"] = lacks | ({"has": list(like.groups[:1])} if like.groups else {})
    if choose(range(4)) == 0:
        fields["where"] = choose(WHERE)
    return {"api": fields, choose(("never", "always")): choose(("Allow", "Deny", "NoOpinion"))}


def sample(choose: Callable[[Any], Any], region: dict[str, Any], read: ApiRegion, texts: list[str]) -> ApiQuestion:
    """A random question, most often in the region, with strings that policies name, or nearly."""
    # Its data hang on these fields, so they are drawn until they fit.
    fixed = {key: read.fields[key] for key in ("verb", "subresource", "namespace") if key in read.fields}
    drawn = (random_question(choose) for _ in range(30))
    fitting = (like for like in drawn if bool(like.path) is ("path" in region) and _has_fields(like, fixed))
    question = next(fitting, random_question(choose))
    groups = region.get("groups", {})
    chosen = {*question.groups, *(choose(texts) for _ in range(choose(range(3)))), *groups.get("has", ())}
    names = {"user": choose((question.user, choose(texts)))}
    names |= {key: value for key in ("user", "group", "resource", "name") if isinstance(value := region.get(key), str)}
    question = replace(question, groups=sorted(chosen - {"", *groups.get("lacks", ())}), **names)
    if question.path:
        path = choose((question.path, f"{question.path}{choose(texts)}"))
        return replace(question, path=path, group=None, resource="", name="")
    for value in (question.object, question.old_object):
        if isinstance(value, dict):
            labels = value["metadata"].get("labels", {})
            labels.update({key: choose(texts) for key in labels if choose((True, False))})
            for container in value["spec"]["containers"]:
                container["image"] = choose(("ok/a", choose(texts)))
    return as_a_server_sees_it(question)


def _has_fields(question: ApiQuestion, fields: Mapping[str, ValueSet]) -> bool:
    return all(values.contains(getattr(question, field) or "") for field, values in fields.items())


def is_true_of(question: ApiQuestion, expression: str) -> bool:
    """Whether an expression is true of a request with data: a policy of its own says so."""
    spec = {"effect": "Allow", "expression": expression}
    alone = tierwall.loads(yaml.safe_dump(manifest("ClusterAuthorizationPolicy", "where", spec=spec))).snapshot
    return plane("api").ask(alone, replace(question, webhooks=None)).detail.final is Verdict.ALLOW


def is_inside(question: ApiQuestion, region: dict[str, Any], read: ApiRegion) -> bool:
    """Whether a request is in a region. Where it has an expression, those without data are left out."""
    if not _has_fields(question, read.fields) or ("path" in region and not question.path):
        return False
    attributes = attributes_of(question, [])
    operation = "CONNECT" if attributes.is_connect else OPERATIONS.get(question.verb)
    if question.has_data is not attributes.supports_conditions or (
        question.has_data and question.operation != operation
    ):
        return False  # Another resource than was drawn carries other data.
    if not set(read.has_groups) <= set(question.groups) or set(read.lacks_groups) & set(question.groups):
        return False
    return "where" not in region or (question.has_data and is_true_of(question, region["where"]))


@pytest.mark.hypothesis
def test_no_request_at_random_contradicts_a_proof() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds(12):
        choose = random.Random(seed).choice
        objects = random_objects(choose)
        snapshot = tierwall.loads(yaml.safe_dump_all(objects), strict=False).snapshot
        webhooks = {member.name for member in configured_authorizers(snapshot) if member.type is AuthorizerType.WEBHOOK}
        for _ in range(6):
            document = random_claim(choose)
            proof = Proof.from_dict(document)
            assert isinstance(proof.claim, Claim)
            result = prove_snapshot(snapshot, proof)
            assert not result.is_defect, (seed, result.why)
            counts[result.proof] += 1
            if result.proof != "Proved":
                continue
            texts = neighbourhood(objects, document)
            for _ in range(80):
                question = sample(choose, document["api"], proof.region, texts)
                if not is_inside(question, document["api"], proof.region):
                    continue
                counts["asked"] += 1
                answer = plane("api").ask(snapshot, question if webhooks else replace(question, webhooks=None))
                assert not proof.claim.refuted_by(proving.outcomes(answer)), (seed, document, question)
    assert counts["Proved"] > 10, counts
    assert counts["asked"] > 200, counts


OWN = """
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: own}
spec:
  effect: Allow
  expression: >-
    request.verb in ["create", "update"] && request.resource == "pods" &&
    object.metadata.labels.owner == request.userInfo.username
---
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: prod}
spec:
  effect: Deny
  expression: request.namespace == "prod" && !("admins" in request.userInfo.groups)
"""


def prove(text: str = OWN, **proof: Any) -> ProofResult:
    return tierwall.prove(tierwall.loads(text), Proof.from_dict(proof))


@pytest.mark.parametrize(
    ("region", "claim"),
    [
        ({"namespace": "prod", "groups": {"lacks": ["admins"]}}, {"always": "Deny"}),
        ({"resource": {"not": ["pods"]}}, {"never": "Allow"}),
        ({"verb": "create", "where": "!has(object.metadata.labels)"}, {"never": "Allow"}),
        ({"user": "alice", "verb": "create", "where": "object.metadata.labels.owner != 'alice'"}, {"never": "Allow"}),
        (
            {"user": "a", "verb": "create", "resource": "pods", "namespace": "dev"}
            | {"where": "object.metadata.labels.owner == 'a'"},
            {"always": "Allow"},
        ),
        ({"path": {"prefix": "/"}}, {"always": "NoOpinion"}),
        # Deletes have no new object.
        ({"verb": "delete", "where": "object != null"}, {"never": "NoOpinion"}),
    ],
)
def test_claims_that_hold_are_proved(region: dict[str, Any], claim: dict[str, str]) -> None:
    result = prove(api=region, **claim)
    assert result.proof == "Proved", result.sentence


def test_a_refutation_is_a_small_question_with_its_answer() -> None:
    result = prove(api={"verb": "create", "user": {"prefix": "eve"}}, never="Allow")
    assert result.proof == "Refuted"
    assert result.counterexample is not None
    question = result.counterexample.question.to_dict()
    assert {key: question[key] for key in ("user", "verb", "resource", "object")} == {
        "user": "eve",
        "verb": "create",
        "resource": "pods",
        "object": {"metadata": {"labels": {"owner": "eve"}}},
    }
    assert result.counterexample.answer.detail.final is Verdict.ALLOW


def test_a_deny_that_fails_denies_unless_its_authorizer_ignores_failures() -> None:
    """The fault: the error of a Deny counts as false."""
    chain = random_chain(lambda options: next(iter(options)))
    chain["authorizers"] = [{"type": "CEL", "name": "policies"}]
    allow, deny = ({"effect": effect} for effect in ("Allow", "Deny"))
    policies = [
        manifest("ClusterAuthorizationPolicy", "all", spec=allow | {"expression": "request.verb == 'create'"}),
        manifest("ClusterAuthorizationPolicy", "x", spec=deny | {"expression": "object.spec.note == 'secret'"}),
    ]
    region = {"verb": "create", "resource": "widgets", "subresource": "", "namespace": "dev"}
    fails = region | {"where": "!has(object.spec) || !has(object.spec.note)"}
    for mode, always, never in (("Deny", "Deny", "Allow"), ("NoOpinion", "NoOpinion", "Deny")):
        chain["authorizers"][0]["failureMode"] = mode
        text = yaml.safe_dump_all([chain, *policies])
        assert prove(text, api=fails, always=always).proof == "Proved"
        assert prove(text, api=fails, never=never).proof == "Proved"
        assert prove(text, api=fails, never=always).proof == "Refuted"
        # Where it does not fail, it is false or true.
        assert prove(text, api=region | {"where": "object.spec.note == 'a'"}, always="Allow").proof == "Proved"
        assert prove(text, api=region | {"where": "object.spec.note == 'secret'"}, always="Deny").proof == "Proved"


def test_an_assumption_about_objects_narrows_what_may_come() -> None:
    region = {"verb": "create", "resource": "pods", "user": "a", "namespace": "dev"}
    claim: dict[str, Any] = {"api": region, "always": "Allow"}
    assert prove(**claim).proof == "Refuted"
    assert prove(**claim, assume={"objects": "object.metadata.labels.owner == 'a'"}).proof == "Proved"
    with pytest.raises(InputError, match="not a CEL expression"):
        prove(**claim, assume={"objects": "object."})


# Namespaces that exist in the test below.
INSIDE = "request.namespace.matches('^ns-[12]?[0-9]$')"


def test_namespaces_that_exist_have_just_their_labels() -> None:
    namespaces = [
        manifest("Namespace", f"ns-{number}", metadata={"labels": {"env": environment, "other": str(number)}})
        for number, environment in enumerate(("dev", "prod") * 15)
    ]
    marked = OWN.replace('"pods"', '"pods" && namespaceObject.metadata.labels.env == "prod"')
    text = "\n---\n".join([marked, *map(yaml.safe_dump, namespaces)])
    claim: dict[str, Any] = {"never": "Allow"}
    region = {"verb": "create", "user": "alice"}
    assert prove(text, api=region | {"namespace": "ns-2"}, **claim).proof == "Proved"
    assert prove(text, api=region | {"namespace": "ns-3", "where": "false"}, **claim).proof == "Proved"
    for name, labels in (("new", {"env": "prod"}), ("ns-3", {"env": "prod", "other": "3"})):
        result = prove(text, api=region | {"namespace": name}, **claim)
        assert result.proof == "Refuted"
        assert result.counterexample is not None
        shown = result.counterexample.question.to_dict()["namespaceObject"]["metadata"]["labels"]
        shown.pop("kubernetes.io/metadata.name", None)
        assert shown == labels
    # What looks at all labels sees those of no expression, too.
    through = marked.replace("labels.env ==", "labels.exists(k, k == 'other') && 'prod' ==")
    text = "\n---\n".join([through, yaml.safe_dump(namespaces[1])])
    assert prove(text, api=region | {"namespace": "ns-1"}, **claim).proof == "Refuted"
    text = "\n---\n".join([through.replace("'other'", "'another'"), *map(yaml.safe_dump, namespaces)])
    assert prove(text, api=region | {"namespace": {"prefix": "ns-1"}, "where": INSIDE}, **claim).proof == "Proved"
    result = prove(text, api=region, **claim)
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["namespaceObject"]["metadata"]["labels"].keys() == {
        "another",
        "kubernetes.io/metadata.name",
    }


def test_an_unknown_construct_and_an_open_request_are_named() -> None:
    quantity = OWN.replace('request.namespace == "prod"', "quantity(object.x).sign() > 0")
    result = prove(quantity, api={"verb": "create", "groups": {"lacks": ["admins"]}}, always="Deny")
    assert result.why == "quantity() in ClusterAuthorizationPolicy/prod spec.expression (1:1 of the expression)"
    listing = OWN.replace('["create", "update"]', '["list"]')
    # A selector may imply the condition.
    result = prove(listing, api={"verb": "list"}, never="Allow")
    assert result.why == "a policy asks about objects, of which requests select a part"
    where = "!has(request.labelSelector) && !has(request.fieldSelector)"
    assert prove(listing, api={"verb": "list", "where": where}, never="Allow").proof == "Proved"
    webhook = """
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: CEL, name: policies}
- type: Webhook
  name: w
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: InClusterConfig}
---
"""
    result = prove(webhook + OWN, api={"namespace": "dev", "verb": "get"}, never="Allow")
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["webhooks"] == {"w": "Allow"}
    # Nobody reaches a webhook that a question says nothing about.
    result = prove(webhook + OWN, api={"namespace": "dev", "verb": "get"}, never="Deny")
    assert result.counterexample is not None
    assert "webhooks" not in result.counterexample.question.to_dict()
    assert (
        prove(webhook + OWN, api={"namespace": "prod", "groups": {"lacks": ["admins"]}}, never="Allow").proof
        == "Proved"
    )


def test_roles_of_a_large_cluster_are_no_limit() -> None:
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    objects = [manifest("ClusterRole", "r", rules=rules)]
    for number in range(400):
        accounts = [{"kind": "ServiceAccount", "name": f"account-{number}", "namespace": f"ns-{number % 40}"}]
        objects.append(
            manifest("RoleBinding", f"a{number}", namespace=f"ns-{number % 40}", roleRef=role, subjects=accounts)
        )
    for number in range(100):
        groups = [{"kind": "Group", "name": f"team-{number}", "apiGroup": "rbac.authorization.k8s.io"}]
        objects.append(
            manifest("RoleBinding", f"g{number}", namespace=f"ns-{number % 40}", roleRef=role, subjects=groups)
        )
    text = "\n---\n".join([OWN, *map(yaml.safe_dump, objects)])
    region = {"group": "", "resource": "secrets", "subresource": ""}
    assert prove(text, api=region | {"verb": "delete"}, never="Allow").proof == "Proved"
    nobody = {"user": "system:serviceaccount:ns-1:account-1", "groups": {"lacks": [f"team-{n}" for n in range(100)]}}
    assert prove(text, api=region | nobody | {"namespace": {"not": ["ns-1"]}}, never="Allow").proof == "Proved"
    result = prove(text, api=region | {"verb": "get", "user": "eve", "namespace": "ns-3"}, never="Allow")
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["groups"] in (["team-3"], ["team-43"], ["team-83"])


# What no API server lets through: an object of another name or namespace than the URL's.
IDENTITY = [
    ("update", "object.metadata.name != request.name", "Proved"),
    ("update", "object.metadata.name != oldObject.metadata.name", "Proved"),
    ("delete", "oldObject.metadata.name != request.name", "Proved"),
    ("delete", "oldObject.metadata.namespace != 'dev'", "Proved"),
    ("deletecollection", "oldObject.metadata.name == 'a'", "Refuted"),
    ("deletecollection", "oldObject.metadata.namespace != 'dev'", "Proved"),
    ("create", "object.metadata.namespace != 'dev'", "Proved"),
    ("create", "!has(object.metadata.name) && request.name == ''", "Refuted"),
    ("create", "object.metadata.name == 'a' && request.name != 'a'", "Proved"),
    ("update", "object.metadata.exists(k, k == 'namespace' && object.metadata[k] != 'dev')", "Proved"),
    ("update", "!object.metadata.exists(k, k == 'name')", "Proved"),
]


@pytest.mark.parametrize(("verb", "condition", "expected"), IDENTITY)
def test_objects_have_the_name_and_the_namespace_of_the_request(verb: str, condition: str, expected: str) -> None:
    spec = {"effect": "Allow", "expression": f"request.verb == '{verb}' && ({condition})"}
    policy = yaml.safe_dump(manifest("ClusterAuthorizationPolicy", "p", spec=spec))
    where = "!has(request.labelSelector) && !has(request.fieldSelector)"
    region = {"verb": verb, "resource": "pods", "subresource": "", "namespace": "dev", "where": where}
    result = prove(policy, api=region, never="Allow")
    assert result.proof == expected, result.sentence
    # Evictions are objects of their own.
    loose = prove(policy, api=region | {"subresource": "eviction"}, never="Allow")
    assert loose.proof == "Refuted" or "request.name" in condition or "!object" in condition, loose.sentence


def test_objects_outside_of_namespaces_have_none() -> None:
    spec = {"effect": "Allow", "expression": "has(object.metadata.namespace)"}
    policy = yaml.safe_dump(manifest("ClusterAuthorizationPolicy", "p", spec=spec))
    write = {"verb": "update", "subresource": ""}
    assert prove(policy, api=write | {"namespace": ""}, never="Allow").proof == "Proved"
    about_one = write | {"group": "", "resource": "namespaces", "namespace": "dev"}
    assert prove(policy, api=about_one, never="Allow").proof == "Proved"
    assert prove(
        policy, api=write | {"group": "apps", "resource": "namespaces", "namespace": "x"}, never="Allow"
    ).proof == ("Refuted")


def test_a_counterexample_has_an_object_that_an_api_server_lets_through() -> None:
    result = prove(api={"verb": "update", "user": "eve", "name": "web", "namespace": "dev"}, never="Allow")
    assert result.counterexample is not None
    question = result.counterexample.question.to_dict()
    assert question["object"]["metadata"] == {"name": "web", "namespace": "dev", "labels": {"owner": "eve"}}
    assert question["oldObject"]["metadata"] == {"name": "web", "namespace": "dev"}


EXOTIC = """
---
apiVersion: tierwall.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: exotic, namespace: tenant}
spec:
  effect: Allow
  expression: request.verb == "create" && object.metadata.name.split("-")[0] == request.userInfo.username
"""


class TestExpressionsWithoutATranslation:
    def test_they_leave_the_proofs_of_others_alone(self) -> None:
        for region in ({"namespace": "prod"}, {"resource": "secrets", "namespace": {"not": ["tenant"]}}):
            lacks = region | {"groups": {"lacks": ["admins"]}}
            assert prove(OWN + EXOTIC, api=lacks, never="Allow").proof == "Proved"
        # Its own namespace, where the verb settles it, and where it does not.
        mine = {"namespace": "tenant", "resource": "secrets"}
        assert prove(OWN + EXOTIC, api=mine | {"verb": {"not": ["create"]}}, never="Allow").proof == "Proved"
        result = prove(OWN + EXOTIC, api=mine | {"verb": "create"}, never="Allow")
        assert result.why == "split() in AuthorizationPolicy/tenant/exotic spec.expression (1:50 of the expression)"
        assert prove(OWN + EXOTIC, api=mine | {"verb": "create"}, never="Deny").proof == "Proved"

    def test_a_counterexample_that_the_evaluator_confirms_refutes(self) -> None:
        # Whatever the expression comes to: alice's own pod is allowed.
        result = prove(OWN + EXOTIC, api={"namespace": "tenant", "verb": "create", "resource": "pods"}, never="Allow")
        assert result.proof == "Refuted"
        # It fails for every object of the smallest counterexample, and a Deny that fails denies.
        deny = EXOTIC.replace("effect: Allow", "effect: Deny")
        result = prove(OWN + deny, api={"namespace": "tenant", "verb": "create", "resource": "secrets"}, never="Deny")
        assert result.proof == "Refuted"
        assert result.counterexample is not None
        assert result.counterexample.answer.detail.final is Verdict.DENY

    def test_a_name_that_only_an_open_expression_reads_is_that_of_the_request(self) -> None:
        policy = EXOTIC.replace('object.metadata.name.split("-")[0] == request.userInfo.username', "TEST")
        for test in ("request.name.matches('(?i)SPEC')", "object.metadata.name.matches('(?i)SPEC')"):
            text = policy.replace("TEST", test).replace("create", "update")
            region = {"namespace": "tenant", "verb": "update", "resource": "secrets", "subresource": ""}
            assert prove(text, api=region | {"name": "special"}, never="Allow").proof == "Refuted"
            assert prove(text, api=region | {"name": "x"}, never="Allow").why.startswith(
                "`(?i)` in a regular expression"
            )

    def test_a_request_without_data_still_meets_no_condition(self) -> None:
        guard = EXOTIC.replace('"create"', '"get"')
        region = {"namespace": "tenant", "verb": "get", "subresource": ""}
        assert prove(OWN + guard, api=region, never="Allow").proof == "Proved"
        denies = guard.replace("effect: Allow", "effect: Deny")
        assert prove(OWN + denies, api=region | {"resource": "secrets"}, always="Deny").proof == "Proved"

    def test_an_unchanged_one_opens_nothing(self) -> None:
        unchanged = Proof.from_dict({"noNew": {"against": "old", "planes": ["api"]}})
        role = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: new}\n"
        old, new = tierwall.loads(OWN + EXOTIC), tierwall.loads(OWN + EXOTIC + role)
        assert tierwall.prove(new, unchanged, against=old).proof == "Proved"
        # Nor does one that is narrower.
        narrower = EXOTIC.replace('request.verb == "create"', 'request.verb == "create" && request.name != "x"')
        assert tierwall.prove(tierwall.loads(OWN + narrower), unchanged, against=old).proof == "Proved"
        wider = EXOTIC.replace('"create"', '"update"')
        result = tierwall.prove(tierwall.loads(OWN + wider), unchanged, against=old)
        assert result.why.startswith("split() in AuthorizationPolicy/tenant/exotic")

    def test_what_asks_its_own_chain_may_change_although_its_text_does_not(self) -> None:
        asks = EXOTIC.replace('object.metadata.name.split("-")[0] == request.userInfo.username', "CHECK").replace(
            "CHECK", "authorizer.path('/x').check('get').allowed()"
        )
        unchanged = Proof.from_dict({"noNew": {"against": "old", "planes": ["api"]}})
        opens = (
            OWN
            + asks
            + EXOTIC.replace("name: exotic", "name: path")
            .replace(
                'request.verb == "create" && object.metadata.name.split("-")[0] == request.userInfo.username',
                'request.path == "/x"',
            )
            .replace("AuthorizationPolicy", "ClusterAuthorizationPolicy")
            .replace(", namespace: tenant", "")
        )
        result = tierwall.prove(tierwall.loads(opens), unchanged, against=tierwall.loads(OWN + asks))
        assert result.proof != "Proved"

    def test_regions_and_assumptions_may_have_one_too(self) -> None:
        region = {"verb": "create", "resource": "pods", "namespace": "dev"}
        where = "object.metadata.name.split('-')[0] == 'x'"
        denied = region | {"namespace": "prod", "groups": {"lacks": ["admins"]}, "where": where}
        assert prove(api=denied, always="Deny").proof == "Proved"
        # The smallest request is not in the region, and only the evaluator could tell one that is.
        result = prove(api=region | {"where": where}, never="Allow")
        assert result.why == "split() in `where`"
        assert prove(api=region | {"where": f"!({where}) && size(object.metadata.name) > 2"}, never="Allow").proof == (
            "Refuted"
        )
        result = prove(api=region, never="Allow", assume={"objects": where})
        assert result.why == "split() in `assume.objects`"


@pytest.mark.parametrize("word", ["noNew", "noLoss"])
def test_a_webhook_of_one_side_is_not_asked_on_the_other(word: str) -> None:
    chain = random_chain(lambda options: options[0])
    webhook = [member for member in chain["authorizers"] if member["type"] == "Webhook"]
    asking = tierwall.loads(yaml.safe_dump_all([chain | {"authorizers": webhook}]))
    never = tierwall.loads(yaml.safe_dump_all([chain | {"authorizers": [{"type": "AlwaysDeny", "name": "no"}]}]))
    new, old = (asking, never) if word == "noNew" else (never, asking)
    result = tierwall.prove(new, Proof.from_dict({word: {"against": "old", "planes": ["api"]}}), against=old)
    assert result.proof == "Refuted", result.sentence
    assert result.counterexample is not None
    assert ("webhooks" in result.counterexample.question.to_dict()) is (new is asking)


NODES = """
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: CEL, name: policies}
- {type: Node, name: node}
- {type: RBAC, name: rbac}
---
"""


def test_what_nodes_may_do_depends_on_their_pods_and_names_alone() -> None:
    def proof(resource: str, **region: Any) -> ProofResult:
        group = {"group": "", "verb": "get", "resource": resource, "user": {"prefix": "system:node:"}}
        return prove(NODES + OWN, api=group | {"groups": {"has": ["system:nodes"]}} | region, never="Allow")

    assert proof("services", namespace="dev").proof == "Refuted"
    others = {"has": ["system:nodes"], "lacks": ["admins"]}
    assert proof("services", namespace="prod", groups=others).proof == "Proved"
    assert proof("widgets").proof == "Proved"
    assert proof("secrets", user="system:node:").proof == "Proved"
    assert proof("secrets", groups={"lacks": ["system:nodes"]}).proof == "Proved"
    assert proof("secrets").why == "authorizer `node` decides by the node's name and pods"
    # Both sides of a change have the same pods.
    role = "apiVersion: v1\nkind: Namespace\nmetadata: {name: new}\n---\n"
    unchanged = Proof.from_dict({"noNew": {"against": "old", "planes": ["api"]}})
    old, new = tierwall.loads(NODES + OWN), tierwall.loads(NODES + role + OWN)
    assert tierwall.prove(new, unchanged, against=old).proof == "Proved"


def test_a_request_without_an_object_meets_no_condition() -> None:
    guard = OWN.replace("effect: Allow", "effect: Deny").replace('["create", "update"]', '["get", "create"]')
    roles = [
        manifest("ClusterRole", "r", rules=[{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]),
        manifest(
            "ClusterRoleBinding",
            "b",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            subjects=[{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        ),
    ]
    text = "\n---\n".join([guard, *map(yaml.safe_dump, roles)])
    region = {"user": "alice", "verb": "get", "group": "", "resource": "pods", "subresource": "", "namespace": "dev"}
    assert prove(text, api=region, always="Deny").proof == "Proved"
    result = prove(text, api=region, never="Deny")
    assert result.counterexample is not None
    assert result.counterexample.answer.detail.final is Verdict.DENY


def test_a_change_that_opens_something_is_refuted() -> None:
    wider = OWN.replace('request.resource == "pods" &&', "")
    opens, closes = (Proof.from_dict({word: {"against": "old", "planes": ["api"]}}) for word in ("noNew", "noLoss"))
    old, new = tierwall.loads(OWN), tierwall.loads(wider)
    result = tierwall.prove(new, opens, against=old)
    assert result.proof == "Refuted"
    assert result.counterexample is not None
    assert result.counterexample.question.to_dict()["resource"] != "pods"
    assert tierwall.prove(new, closes, against=old).proof == "Proved"
    assert tierwall.prove(old, opens, against=new).proof == "Proved"


def test_everything_wrong_with_a_region_is_said() -> None:
    with pytest.raises(InputError) as raised:
        prove(api={"usr": "a", "groups": {"has": 3}, "where": "object.", "verb": {"prefx": "a"}}, never="Alow")
    messages = [diagnostic.message for diagnostic in raised.value.diagnostics]
    assert [message.partition(",")[0].partition(":")[0] for message in messages] == [
        "`where` is not a CEL expression",
        "expected a list of groups as `has`",
        "expected a value",
        "expected one of Allow",
        "unknown key `usr` in `api`",
    ]


WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.io"},
    "spec": {
        "group": "example.io",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {}}],
    },
}
WIDGETS["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {  # type: ignore[index]
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size", "mode"],
            "properties": {
                "size": {"type": "integer"},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "note": {"type": "string", "nullable": True},
                "port": {"x-kubernetes-int-or-string": True},
                "parts": {
                    "type": "array",
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                },
                "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("condition", "can_be_true", "can_be_otherwise"),
    [
        ("object.spec.size > 2 && object.spec.size < 3", False, True),
        ("has(object.spec.mode) && object.spec.mode in ['a', 'b']", True, False),
        ("object.spec.mode == 'c'", False, True),
        ("object.spec.note == null", True, True),
        ("has(object.spec.size) && object.spec.size == null", False, True),
        ("object.spec.port == 1", True, True),
        ("has(object.spec.port) && object.spec.port == true", False, True),
        ("has(object.spec.other)", False, True),
        ("has(object.spec.free.other)", True, True),
        ("has(object.spec.parts) && object.spec.parts.exists(p, !has(p.name))", False, True),
        ("object.spec.tags.x == 'y'", True, True),
        ("object.spec.tags.x == 1", False, True),
        ("object.kind == 'Widget' && object.apiVersion == 'example.io/v1'", True, False),
    ],
)
def test_objects_of_a_known_kind_have_the_shape_of_its_schema(
    condition: str, can_be_true: bool, can_be_otherwise: bool
) -> None:
    about = "request.apiGroup == 'example.io' && request.resource == 'widgets' && request.verb == 'create'"
    spec = {"effect": "Allow", "expression": f"{about} && {condition}"}
    policy = yaml.safe_dump(manifest("ClusterAuthorizationPolicy", "p", spec=spec))
    text = "\n---\n".join([policy, yaml.safe_dump(WIDGETS)])
    region = {"group": "example.io", "resource": "widgets", "verb": "create", "subresource": ""}
    for claim, expected in (("never", can_be_true), ("always", can_be_otherwise)):
        result = prove(text, api=region, **{claim: "Allow"})
        assert result.proof == ("Refuted" if expected else "Proved"), (claim, result.sentence)
        if result.counterexample is not None:
            widget = result.counterexample.question.to_dict()["object"]
            assert {"size", "mode"} <= widget["spec"].keys()
    # Nobody knows the shape of other resources.
    other = prove(text.replace("'widgets'", "'gadgets'"), api=region | {"resource": "gadgets"}, always="Allow")
    assert other.proof == "Refuted"
