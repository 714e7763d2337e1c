"""Random conditions and selectors: a read is allowed exactly if every object that is selected is allowed."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.randomness import seeds
from tests.reference.reads import Condition, Requirement, implied, is_allowed, selects
from tierwall.api.algebra.condition import CEL_TYPE, Effect
from tierwall.api.algebra.request import Attributes
from tierwall.api.reads.conditions import ReadCondition, ReadConditions
from tierwall.api.reads.proof import ReadProof, read_proof
from tierwall.api.reads.selectable import OF_KUBERNETES
from tierwall.api.reads.selection import selection_of
from tierwall.api.reads.widest import WidestSearch
from tierwall.core import labels as wire
from tierwall.core.verdict import Verdict

Choose = Callable[[Any], Any]

FIELDS = OF_KUBERNETES.of("", "v1", "pods")
# Every value that a condition or a selector names, and one that none does.
VALUES = ("alice", "bob", "", "other")
NODES = ("n1", "n2", "", "other")
NAMES = ("a", "alice-1", "other")
TESTS = (
    'LABEL == "alice"',
    'LABEL != "alice"',
    'LABEL in ["alice", "bob"]',
    'LABEL.startsWith("al")',
    'LABEL.matches("^(alice|bob)$")',
    "LABEL == LABEL2",
    'has(LABEL) && LABEL == "bob"',
    '!has(LABEL) || LABEL != "bob"',
    '!has(VAR.metadata.labels) || !has(LABEL) || LABEL != "alice"',
    "has(VAR.metadata.labels)",
    '"env" in VAR.metadata.labels',
    'VAR.metadata.?labels[?"owner"].orValue("alice") == "alice"',
    'VAR.metadata.labels.all(k, k == "owner" || VAR.metadata.labels[k] != "bob")',
    'has(VAR.metadata.labels) && VAR.metadata.labels.exists(k, k == "env")',
    "size(VAR.metadata.labels) > 1",
    'VAR.spec.nodeName == "n1"',
    'VAR.spec.nodeName != "n1"',
    '!has(VAR.spec) || !has(VAR.spec.nodeName) || VAR.spec.nodeName == ""',
    "has(VAR.spec.nodeName)",
    "VAR.spec.hostNetwork",
    "!VAR.?spec.?hostNetwork.orValue(false)",
    'VAR.metadata.name.startsWith("alice-")',
    'VAR.metadata.name == VAR.metadata.labels.owner + "-1"',
    'VAR.metadata.name == "a"',
    "operation == null",
    "true",
    "1 / 0 == 1",
    "VAR == null",
)


@cache
def world() -> tuple[dict[str, Any], ...]:
    """Every object that the conditions and selectors below can tell apart."""
    labels: list[dict[str, str] | None] = [None]
    for owner, env in itertools.product((None, *VALUES), repeat=2):
        labels.append({key: value for key, value in (("owner", owner), ("env", env)) if value is not None})
    specs: list[dict[str, Any] | None] = [None]
    for node, host in itertools.product((None, *NODES), (None, True, False)):
        specs.append({key: value for key, value in (("nodeName", node), ("hostNetwork", host)) if value is not None})
    return tuple(
        {
            "metadata": {"name": name, **({"labels": of_labels} if of_labels is not None else {})},
            **({"spec": spec} if spec is not None else {}),
        }
        for of_labels, spec, name in itertools.product(labels, specs, NAMES)
    )


def expression(choose: Choose, depth: int = 2) -> str:
    if depth and choose((True, True, False)):
        left, right = expression(choose, depth - 1), expression(choose, depth - 1)
        form = choose(("({}) && ({})", "({}) || ({})", "!({0})", "({}) ? ({}) : false"))
        return str(form).format(left, right)
    key = choose(("owner", "env"))
    variable = choose(("object", "object", "object", "oldObject"))
    other = "env" if key == "owner" else "owner"
    text = choose(TESTS).replace("LABEL2", f"{variable}.metadata.labels.{other}")
    return str(text).replace("LABEL", f"{variable}.metadata.labels.{key}").replace("VAR", variable)


def chain(choose: Choose) -> list[list[Condition] | str]:
    opinions: list[list[Condition] | str] = []
    for _ in range(choose((1, 1, 1, 2))):
        effects = [choose(("Allow", "Allow", "Allow", "Deny", "NoOpinion")) for _ in range(choose((1, 2, 3)))]
        opinions.append([Condition(effect, expression(choose)) for effect in effects])
    last = choose(("", "", "Allow", "Deny"))
    return [*opinions, last] if last else opinions


def requirements(choose: Choose) -> tuple[list[Requirement], list[Requirement]]:
    labels: list[Requirement] = []
    fields: list[Requirement] = []
    for _ in range(choose((0, 1, 1, 2, 3))):
        key, operator = (
            choose(("owner", "env", "owner", "absent")),
            choose(("In", "In", "NotIn", "Exists", "DoesNotExist")),
        )
        count = choose((1, 1, 2)) if operator in ("In", "NotIn") else 0
        labels.append((key, operator, tuple(choose(VALUES[:3]) for _ in range(count))))
    for _ in range(choose((0, 0, 1, 2))):
        key = choose(("spec.nodeName", "spec.nodeName", "spec.hostNetwork", "metadata.name"))
        values = {"spec.nodeName": NODES[:3], "spec.hostNetwork": ("true", "false"), "metadata.name": NAMES[:2]}[key]
        fields.append((key, choose(("In", "NotIn")), (choose(values),)))
    return labels, fields


def as_conditions(opinions: list[list[Condition] | str]) -> ReadConditions:
    return tuple(
        Verdict(opinion)
        if isinstance(opinion, str)
        else tuple(ReadCondition(Effect(each.effect), each.text, CEL_TYPE) for each in opinion)
        for opinion in opinions
    )


def attributes(verb: str, labels: list[Requirement], fields: list[Requirement]) -> Attributes:
    return Attributes(
        user="alice",
        verb=verb,
        version="v1",
        resource="pods",
        label_selector=tuple(wire.Requirement(*each) for each in labels) or None,
        field_selector=tuple(wire.Requirement(*each) for each in fields) or None,
    )


def is_in_world(value: Any) -> bool:
    """Whether an object has only what the world has, so that the world must have one like it."""
    return set(value) <= {"metadata", "spec"} and set(value["metadata"]) <= {"name", "labels"}


@pytest.mark.hypothesis
def test_a_read_is_allowed_exactly_if_each_object_that_is_selected_is() -> None:
    counted: Counter[bool] = Counter()
    for seed in seeds(400):
        choose = random.Random(seed).choice
        opinions, verb = chain(choose), choose(("list", "watch", "list", "deletecollection"))
        proof = read_proof(as_conditions(opinions), FIELDS, verb == "deletecollection")
        assert isinstance(proof, ReadProof), opinions
        for _ in range(3):
            labels, fields = requirements(choose)
            asked = selection_of(attributes(verb, labels, fields), FIELDS)
            got = proof.implied_by(asked)
            want = implied(opinions, verb, labels, fields, world())
            about = f"{seed}: {opinions} {verb} {labels} {fields}: {got}"
            counted[got.is_implied] += 1
            assert want or not got.is_implied, about
            if proof.unsupported:
                continue
            if not got.is_implied:
                assert got.witness is not None, about
                assert selects(labels, fields, dict(got.witness)), about
                assert not is_allowed(opinions, verb, dict(got.witness)), about
    assert min(counted[True], counted[False]) > sum(counted.values()) // 10, counted


@pytest.mark.hypothesis
def test_the_widest_selectors_are_allowed_and_as_wide_as_they_get() -> None:
    count = 0
    for seed in seeds(60):
        choose = random.Random(seed).choice
        opinions = chain(choose)
        proof = read_proof(as_conditions(opinions), FIELDS, False)
        assert isinstance(proof, ReadProof), opinions
        search = WidestSearch(proof, selection_of(attributes("list", [], []), FIELDS))
        for selector in search.selectors():
            count += 1
            labels, fields = [tuple(each) for each in selector.labels], [tuple(each) for each in selector.fields]
            about = f"{seed}: {opinions}: {selector}"
            assert implied(opinions, "list", labels, fields, world()), about  # type: ignore[arg-type]
            assert any(selects(labels, fields, thing) for thing in world()), about  # type: ignore[arg-type]
            for wider_labels, wider_fields in _without_one(labels, fields):
                asked = selection_of(attributes("list", wider_labels, wider_fields), FIELDS)
                assert not proof.implied_by(asked).is_implied, about
    assert count


def _without_one(labels: list[Any], fields: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    for place in range(len(labels)):
        yield labels[:place] + labels[place + 1 :], fields
    for place in range(len(fields)):
        yield labels, fields[:place] + fields[place + 1 :]
