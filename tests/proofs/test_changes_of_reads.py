"""Changes of policies about objects that are read: selectors may imply the conditions of one side alone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

import tierwall
from tests.randomness import seeds
from tierwall import ApiQuestion, Proof, ProofResult, World

Object = dict[str, Any]
Requirement = dict[str, Any]

LABEL = "object.metadata.labels"
TESTS = (
    f'{LABEL}.k == "a"',
    f'{LABEL}.l != "a"',
    f'{LABEL}.k == request.userInfo.username || {LABEL}.l == "b"',
    f'"l" in {LABEL}',
    "!has(object.metadata.labels)",
    f"has({LABEL}.k)",
    'object.metadata.name == "a"',
    'object.metadata.name.split("-")[0] == "a"',
    'oldObject.metadata.name == "a"',
    f'!has(object.metadata.labels) || {LABEL}[?"k"].orValue("b") == "b"',
    "object == null || object.metadata.name != ''",
    "true",
)
VERBS = ('request.verb == "list"', 'request.verb in ["list", "deletecollection"]', 'request.verb == "deletecollection"')


def policies(*expressions: str, effect: str = "Allow", failure_mode: str = "Deny") -> list[Object]:
    chain: Object = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "CEL", "name": "policies", "failureMode": failure_mode}],
    }
    return [chain, *(policy(f"p{number}", effect, text) for number, text in enumerate(expressions))]


def policy(name: str, effect: str, expression: str) -> Object:
    return {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": name},
        "spec": {"effect": effect, "expression": expression},
    }


def change(old: list[Object], new: list[Object], word: str = "noNew") -> ProofResult:
    proof = Proof.from_dict({word: {"against": "old", "planes": ["api"]}})
    result = tierwall.prove(tierwall.load(objects=new), proof, against=tierwall.load(objects=old))
    assert not result.is_defect, result.why
    return result


def reading(*tests: str) -> str:
    return " && ".join(f"({test})" for test in ('request.verb == "list" && request.resource == "pods"', *tests))


@pytest.mark.parametrize("word", ["noNew", "noLoss"])
def test_a_read_that_only_selectors_allow_is_opened(word: str) -> None:
    sides = policies(reading(f'{LABEL}.k == "a"')), policies(reading(f'{LABEL}.l == "b"'))
    result = change(*sides, word)
    assert result.proof == "Refuted"
    assert result.counterexample is not None
    key, value = ("l", "b") if word == "noNew" else ("k", "a")
    asked = result.counterexample.question.to_dict()
    assert asked["labelSelector"] == [{"key": key, "operator": "In", "values": [value]}]
    assert (asked["verb"], asked["resource"]) == ("list", "pods")
    assert "object" not in asked


def test_a_narrower_condition_opens_no_read_and_a_wider_one_does() -> None:
    wide, narrow = (policies(reading(*tests)) for tests in ([TESTS[0]], [TESTS[0], f'{LABEL}.l == "b"']))
    assert change(wide, wide).proof == "Proved"
    assert change(wide, narrow).proof == "Proved"
    assert change(narrow, wide).proof == "Refuted"
    everything = policies(reading())
    assert change(everything, wide).proof == "Proved"
    assert change(wide, everything).proof == "Refuted"


def test_a_deny_about_objects_opens_nothing() -> None:
    before = policies(reading(TESTS[0]))
    after = [*before, policy("deny", "Deny", f'{LABEL}.l == "secret"')]
    assert change(before, after).proof == "Proved"
    assert change(policies(), policies(f'{LABEL}.l == "secret"', effect="Deny")).proof == "Proved"
    assert change(after, before).proof == "Refuted"


def test_conditions_that_cannot_be_part_of_a_proof_fail_as_a_whole() -> None:
    exotic = f'{TESTS[0]} || {LABEL}.l.split("-")[0] == "x"'
    before, after = policies(reading(exotic)), policies(reading(TESTS[0]))
    assert change(before, before).proof == "Proved"
    # `split()` keeps the whole condition from allowing reads, so the plain one opens those with `-l k=a`.
    assert change(before, after).proof == "Refuted"
    assert change(after, before).proof == "Unknown"


def test_what_is_deleted_by_selectors_counts_too() -> None:
    def deleting(test: str) -> str:
        return f'request.verb == "deletecollection" && {test}'

    before = policies(deleting('oldObject.metadata.labels.k == "a"'))
    after = policies(deleting(f'{LABEL}.k == "a"'))
    assert change(before, before).proof == "Proved"
    # As `object`, it is only there for selectors; without them nothing fulfils the condition.
    assert change(before, after).proof == "Proved"
    assert change(policies(), after).proof == "Refuted"


REQUIREMENTS: list[Requirement] = [
    {"key": key, "operator": operator, **({"values": [value]} if value else {})}
    for key in "kl"
    for operator, value in (
        ("In", "a"),
        ("In", "other"),
        ("NotIn", "a"),
        ("NotIn", "b"),
        ("Exists", ""),
        ("DoesNotExist", ""),
    )
]
SELECTORS: list[list[Requirement]] = [
    *([each] for each in REQUIREMENTS),
    *map(list, itertools.combinations(REQUIREMENTS, 2)),
]


def test_no_selectors_contradict_a_proof_about_a_change() -> None:
    seen: Counter[str] = Counter()
    for seed in seeds(120):
        chosen = random.Random(seed)
        old, new = _random_change(chosen)
        word = chosen.choice(("noNew", "noLoss"))
        result = change(old, new, word)
        seen[result.proof] += 1
        if result.proof == "Proved":
            before, after = tierwall.load(objects=old), tierwall.load(objects=new)
            gained, kept = (after, before) if word == "noNew" else (before, after)
            for verb in ("list", "deletecollection"):
                for selector in (None, *chosen.sample(SELECTORS, 20)):
                    assert not _opens(gained, kept, verb, selector), (seed, word, verb, selector)
        elif result.counterexample is not None:
            seen["by selectors"] += "labelSelector" in result.counterexample.question.to_dict()
    assert min(seen["Proved"], seen["Refuted"], 2 * seen["by selectors"]) > 10, seen


def _random_change(chosen: random.Random) -> tuple[list[Object], list[Object]]:
    mode = chosen.choice(("Deny", "NoOpinion"))

    def expression() -> str:
        tests = [chosen.choice(TESTS) for _ in range(chosen.choice((1, 1, 2)))]
        joined = f" {chosen.choice(('&&', '||'))} ".join(f"({test})" for test in tests)
        return f"{chosen.choice(VERBS)} && ({joined})"

    old = policies(failure_mode=mode)
    for number in range(chosen.choice((1, 2, 3))):
        old.append(policy(f"p{number}", chosen.choice(("Allow", "Allow", "Deny", "NoOpinion")), expression()))
    new = list(old)
    at = chosen.randrange(1, len(old))
    spec = old[at]["spec"]
    match chosen.randrange(4):
        case 0:
            del new[at]
        case 1:
            new.append(policy("p9", "Allow", expression()))
        case 2:
            new[at] = policy(f"p{at - 1}", spec["effect"], f"{spec['expression']} && ({chosen.choice(TESTS)})")
        case _:
            new[at] = policy(f"p{at - 1}", spec["effect"], expression())
    return old, new


def _opens(gained: World, kept: World, verb: str, selector: list[Requirement] | None) -> bool:
    asked = ApiQuestion(
        user="a", verb=verb, group="", version="v1", resource="pods", namespace="dev", label_selector=selector
    )
    if str(gained.ask(asked).verdict) != "Allow":
        return False
    answer = kept.ask(asked)
    return str(answer.detail.final or answer.verdict) not in ("Allow", "Conditional")
