"""Fake authorizers and conditions, without a policy language: a condition looks up its text in the object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from tierwall.api.algebra.chain import ChainDecision, ask_the_rest
from tierwall.api.algebra.condition import (
    Condition,
    ConditionalDecision,
    ConditionError,
    ConditionSet,
    Effect,
    FailureMode,
    conditional,
)
from tierwall.api.algebra.decision import ALLOW, DENY, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes, ConditionData
from tierwall.api.question import ApiQuestion, ask
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

FAKE_TYPE = "tierwall.io/fake"
CREATE = Attributes(user="alice", verb="create", resource="pods", version="v1", namespace="dev")
LIST = Attributes(user="alice", verb="list", resource="pods", version="v1", namespace="dev")


def condition(effect: str, text: str = "x", id: str = "") -> Condition:
    """Build a condition that looks up `text` in the object: True, False, or anything else for an error."""
    return Condition(id or f"{effect.lower()}-{text}", Effect(effect), text, FAKE_TYPE)


def condition_is_true(condition: Condition, data: ConditionData) -> bool:
    """Evaluate a fake condition."""
    result = data.object.get(condition.text) if isinstance(data.object, dict) else None
    if not isinstance(result, bool):
        raise ConditionError(f"no bool under `{condition.text}`")
    return result


class Fake:
    """An authorizer with one answer: a word (`Allow`, `Deny`, `NoOpinion`, `Error`) or conditions. Counts its calls."""

    condition_types = frozenset((FAKE_TYPE,))

    def __init__(self, name: str, answer: str | list[Condition], mode: FailureMode = FailureMode.DENY) -> None:
        self.name = name
        self.calls = 0
        self.evaluations = 0
        self._decision: Decision
        if isinstance(answer, list):
            self._decision = conditional(name, answer, mode)
        elif answer == "Error":
            self._decision = Decision(NO_OPINION, error=f"{name} failed")
        else:
            self._decision = Decision({"Allow": ALLOW, "Deny": DENY, "NoOpinion": NO_OPINION}[answer])

    def authorize(self, attributes: Attributes) -> Decision:
        """Return the one answer."""
        self.calls += 1
        return self._decision

    def evaluate(self, conditions: ConditionSet, data: ConditionData) -> Decision:
        """Decide the second phase."""
        self.evaluations += 1
        return conditions.evaluate(lambda condition: condition_is_true(condition, data))


def data(**results: object) -> ConditionData:
    """Build data for which the condition with text `x` is `results["x"]`."""
    return ConditionData(object=results)


def policy(
    name: str, effect: str, expression: str, authorizer: str = "policies", namespace: str = "", description: str = ""
) -> Resource:
    """Build a ClusterAuthorizationPolicy, or an AuthorizationPolicy if a namespace is given."""
    kind = "AuthorizationPolicy" if namespace else "ClusterAuthorizationPolicy"
    spec = {"authorizer": authorizer, "effect": effect, "expression": expression, "description": description}
    value = {"metadata": {"name": name}, "spec": spec}
    return Resource("tierwall.io", "v1alpha1", kind, namespace, name, value)


def policies_text(policies: Iterable[tuple[str, str, str]], *others: dict[str, Any]) -> str:
    """Write a file of ClusterAuthorizationPolicies, each by name, effect and expression, and other objects."""
    documents = [
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "ClusterAuthorizationPolicy",
            "metadata": {"name": name},
            "spec": {"effect": effect, "expression": expression},
        }
        for name, effect, expression in policies
    ]
    return str(yaml.safe_dump_all([*documents, *others]))


def configuration(*authorizers: dict[str, Any]) -> Resource:
    """Build an AuthorizationConfiguration."""
    value = {"authorizers": list(authorizers)}
    return Resource("apiserver.config.k8s.io", "v1", "AuthorizationConfiguration", "", "", value)


def document(snapshot: Snapshot, question: dict[str, Any]) -> dict[str, Any]:
    """Return the decision document of a question in its YAML form."""
    return ask(snapshot, ApiQuestion.from_dict(question)).to_dict()


def objects(*values: dict[str, Any]) -> Snapshot:
    """Build a snapshot of plain objects."""
    resources = []
    for value in values:
        group, _, version = str(value["apiVersion"]).rpartition("/")
        metadata = value.get("metadata") or {}
        resources.append(
            Resource(group, version, value["kind"], metadata.get("namespace", ""), metadata.get("name", ""), value)
        )
    return Snapshot.of(resources)


def condition_sets(decision: ChainDecision) -> list[ConditionSet]:
    """Return the condition sets of a decision, with those of authorizers that were not asked yet."""
    entries = ask_the_rest(decision).entries
    return [opinion.conditions for _, opinion in entries if isinstance(opinion, ConditionalDecision)]
