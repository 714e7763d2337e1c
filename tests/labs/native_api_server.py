"""The API server's side of two-phase authorization (KEP-5681), over JSON alone: no code of Tierwall reads the answers.

A request goes through the filter: the authorizers are asked in order, as a union. It passes if it is allowed, or if
conditions can be enforced on it and it can become allowed. The enforcer then sends each conditional answer, exactly as
it came, back to the authorizer that gave it, and lets the request pass only if the first answer that is not NoOpinion
is Allow. Whatever goes wrong in the second phase counts as Deny where a Deny was possible, else as NoOpinion.

Shapes: `seed` and `kep` are those of the KEP's first and newest text, `series` that of its author's commits, `none` an
API server that knows no conditions. `lazy` is the union of the KEP, which stops at a conditional Allow; the commits ask
on until the first concrete answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from tests.labs.authorizer_server import Served

ALLOW, DENY, NO_OPINION = "Allow", "Deny", "NoOpinion"
OPERATIONS = {
    "create": "CREATE",
    "update": "UPDATE",
    "patch": "UPDATE",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
SHAPES = ("seed", "kep", "series")
_CHAIN_KEYS = {"seed": ("conditionsChain", "conditionSets"), "kep": ("conditionSetChain", "conditionSetChain")}
_ALL_TYPES = ["Allow", "Deny", "NoOpinion", "ConditionsMap", "Union"]


class Write(NamedTuple):
    """A request, with the objects that only admission sees."""

    user: str = "alice"
    verb: str = "create"
    object: Any = None
    old_object: Any = None
    resource: str = "persistentvolumeclaims"
    subresource: str = ""
    namespace: str = "dev"
    name: str = ""
    version: str = "v1"
    group: str = ""
    groups: tuple[str, ...] = ()

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes as a SubjectAccessReview has them; empty ones are left out."""
        keys = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        return {key: getattr(self, key) for key in keys if getattr(self, key)}

    @property
    def is_supported(self) -> bool:
        """Whether conditions can be enforced on it."""
        return self.verb in OPERATIONS and "*" not in (self.group, self.version, self.resource)


class Opinion(NamedTuple):
    """The answer of one authorizer: a verdict, or conditions as they came and the verdicts that they can come to."""

    authorizer: NativeAuthorizer
    verdict: str
    possible: frozenset[str]
    conditions: Any = None


class Outcome(NamedTuple):
    """The answer to the user."""

    code: int
    reason: str = ""


class NativeAuthorizer:
    """An authorizer inside the API server that always answers the same: RBAC or Node as far as a test cares."""

    def __init__(self, name: str, verdict: str) -> None:
        self.name, self.verdict, self.asked = name, verdict, 0

    def authorize(self, write: Write) -> Opinion:
        """Decide the first phase."""
        self.asked += 1
        return Opinion(self, self.verdict, frozenset((self.verdict,)))

    def evaluate(self, opinion: Opinion, write: Write) -> tuple[str, str]:
        """Decide the second phase."""
        raise AssertionError("it gives no conditions")


class NativeWebhook(NativeAuthorizer):
    """An authorizer that is asked over HTTP, in one shape.

    `tamper` changes a conditional answer before it is sent back, as a broken API server would. `fails` is the status of
    every second phase. `handled` are the decision types that a caller of the shape `series` handles.
    """

    def __init__(
        self,
        name: str,
        served: Served,
        shape: str,
        *,
        evaluator: Served | None = None,
        mode: str = "HumanReadable",
        handled: list[str] | None = None,
        one_address: bool = False,
        tamper: Callable[[Any], Any] = lambda conditions: conditions,
        fails: int = 0,
    ) -> None:
        super().__init__(name, NO_OPINION)
        self.served, self.shape, self.evaluator = served, shape, evaluator or served
        self.mode, self.handled, self.one_address = mode, handled or _ALL_TYPES, one_address
        self.tamper, self.fails = tamper, fails
        self.evaluated = 0

    def authorize(self, write: Write) -> Opinion:
        """Send a SubjectAccessReview."""
        self.asked += 1
        spec: dict[str, Any] = {
            "user": write.user,
            "groups": list(write.groups),
            "resourceAttributes": write.attributes,
        }
        wants_conditions = write.is_supported and self.shape != "none"
        if wants_conditions and self.shape == "series":
            spec["authorizationOptions"] = {"handledDecisionTypes": self.handled}
        elif wants_conditions:
            spec["conditionalAuthorization"] = {"mode": self.mode}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = self.served.post("/authorize", review)
        assert answer.status == 200, answer.body
        status = answer.json["status"]
        conditions = status.get(self._status_key)
        assert conditions is None or wants_conditions, "conditions that nobody asked for"
        if conditions is not None:
            # An old reader must see no opinion.
            assert not status["allowed"]
            assert not status.get("denied")
            return Opinion(self, NO_OPINION, self._possible(conditions), conditions)
        assert not (status["allowed"] and status.get("denied"))
        verdict = ALLOW if status["allowed"] else DENY if status.get("denied") else NO_OPINION
        return Opinion(self, verdict, frozenset((verdict,)))

    @property
    def _status_key(self) -> str:
        return "conditionalDecision" if self.shape == "series" else _CHAIN_KEYS.get(self.shape, ("?",))[0]

    def _possible(self, conditions: Any) -> frozenset[str]:
        """Return the verdicts that conditions can come to."""
        possible = {NO_OPINION}
        for effects, is_final in _leaves(conditions):
            possible |= effects
            if is_final:
                possible.discard(NO_OPINION)
        return frozenset(possible)

    def evaluate(self, opinion: Opinion, write: Write) -> tuple[str, str]:
        """Send an AuthorizationConditionsReview with the conditions as they came; the reason is the second."""
        self.evaluated += 1
        conditions = self.tamper(copy.deepcopy(opinion.conditions))
        data: dict[str, Any] = {
            "operation": OPERATIONS[write.verb],
            "object": write.object,
            "oldObject": write.old_object,
            "options": {"kind": f"{OPERATIONS[write.verb].capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
        }
        if self.shape == "series":
            request: dict[str, Any] = {"decision": conditions, "admissionRequest": {**_admission(write), **data}}
        else:
            request = {_CHAIN_KEYS[self.shape][1]: conditions, **data}
        review = {
            "apiVersion": "authorization.k8s.io/v1alpha1",
            "kind": "AuthorizationConditionsReview",
            "request": request,
        }
        if self.fails:
            return self._failed(opinion, f"the webhook answered with {self.fails}")
        answer = self.evaluator.post("/authorize" if self.one_address else "/conditions", review)
        assert answer.status in (200, 400, 413), answer.body
        if answer.status != 200:
            return self._failed(opinion, f"the webhook answered with {answer.status}")
        verdict, reason = self._response(answer.json.get("response") or {})
        if verdict not in opinion.possible:
            return self._failed(opinion, f"{verdict} is not possible: {reason}")
        return verdict, reason

    def _response(self, response: dict[str, Any]) -> tuple[str, str]:
        if self.shape != "series":
            verdict = DENY if response.get("denied") else ALLOW if response.get("allowed") else NO_OPINION
            return verdict, str(response.get("reason", ""))
        assert response["uid"] == "u-1", "the uid is echoed"
        decision = response["decision"]
        assert set(decision) == {"type", {ALLOW: "allow", DENY: "deny", NO_OPINION: "noOpinion"}[decision["type"]]}
        return decision["type"], json.dumps(decision)

    def _failed(self, opinion: Opinion, why: str) -> tuple[str, str]:
        return (DENY if DENY in opinion.possible else NO_OPINION), f"error: {why}"


def _leaves(conditions: Any) -> Iterator[tuple[set[str], bool]]:
    """Yield the effects of each leaf of an answer, in any shape, and whether it is concrete."""
    if isinstance(conditions, list):
        for entry in conditions:
            assert entry["authorizerName"], "every set has the name of its authorizer"
            if "conditionSetChain" in entry:
                yield from _leaves(entry["conditionSetChain"])
            elif entry.get("conditions"):
                assert not entry.get("allowed")
                assert not entry.get("denied")
                yield {condition["effect"] for condition in entry["conditions"]}, False
            else:
                yield ({ALLOW} if entry.get("allowed") else {DENY} if entry.get("denied") else {NO_OPINION}), True
    elif conditions["type"] == "Union":
        names = [member["authorizerName"] for member in conditions["union"]]
        assert all(names)
        assert len(set(names)) == len(names)
        for member in conditions["union"]:
            yield from _leaves(member["decision"])
    elif conditions["type"] == "ConditionsMap":
        lists = {ALLOW: "allowConditions", DENY: "denyConditions", NO_OPINION: "noOpinionConditions"}
        yield {effect for effect, key in lists.items() if conditions["conditionsMap"].get(key)}, False
    else:
        yield {conditions["type"]}, conditions["type"] != NO_OPINION


def _admission(write: Write) -> dict[str, Any]:
    resource = {"group": write.group, "version": write.version, "resource": write.resource}
    name = write.name or (write.object or {}).get("metadata", {}).get("name", "")
    return {
        "uid": "u-1",
        "resource": resource,
        "requestResource": resource,
        "subResource": write.subresource,
        "name": "" if write.verb == "deletecollection" else name,
        "namespace": write.namespace,
        "userInfo": {"username": write.user, "groups": list(write.groups)},
    }


class NativeApiServer:
    """An API server that knows conditions, with the authorizers of its configuration in order."""

    def __init__(self, *authorizers: NativeAuthorizer, lazy: bool = False) -> None:
        self.authorizers, self.lazy = authorizers, lazy

    def send(self, write: Write, *deleted: Any) -> Outcome:
        """Send a request; `deleted` are the objects of a deletecollection. An update without an old object creates."""
        outcome = self._send(write, [write._replace(old_object=value) for value in deleted] or [write])
        if outcome.code == 200 and write.verb in ("update", "patch") and write.old_object is None:
            return self._send(write._replace(verb="create"), [write._replace(verb="create")])
        return outcome

    def _send(self, write: Write, admitted: list[Write]) -> Outcome:
        opinions, rest = self._filter(write)
        if not any(opinion.conditions is not None for opinion in opinions):
            verdict = opinions[-1].verdict if opinions else NO_OPINION
            return Outcome(200 if verdict == ALLOW else 403, verdict)
        if not any(ALLOW in opinion.possible for opinion in opinions):
            return Outcome(403, "it cannot become allowed")
        for object_ in admitted:
            verdict, reason = self._enforce(opinions, rest, object_)
            if verdict != ALLOW:
                return Outcome(500 if reason.startswith("error") else 403, reason)
        return Outcome(200, "admitted")

    def _filter(self, write: Write) -> tuple[list[Opinion], list[NativeAuthorizer]]:
        """Return the opinions that count, and the authorizers that are asked later, if ever."""
        opinions: list[Opinion] = []
        for index, authorizer in enumerate(self.authorizers):
            opinion = authorizer.authorize(write)
            if opinion.conditions is not None:
                opinions.append(opinion)
                if NO_OPINION not in opinion.possible:
                    return opinions, []
                if self.lazy and ALLOW in opinion.possible:
                    return opinions, list(self.authorizers[index + 1 :])
            elif opinion.verdict != NO_OPINION:
                # Conditions before it may still decide otherwise.
                return [*opinions, opinion], []
        return opinions, []

    def _enforce(self, opinions: list[Opinion], rest: list[NativeAuthorizer], write: Write) -> tuple[str, str]:
        """Decide on the object: the first opinion that does not come to NoOpinion."""
        reasons = []
        later = (authorizer.authorize(write) for authorizer in rest)
        for opinion in chain(opinions, later):
            if opinion.conditions is None:
                verdict, reason = opinion.verdict, opinion.verdict
            else:
                verdict, reason = opinion.authorizer.evaluate(opinion, write)
            reasons.append(reason)
            if verdict != NO_OPINION:
                return verdict, reason
        return NO_OPINION, "; ".join(reasons)
