"""Hints for common mistakes: fields of NetworkPolicies in administrators' policies, and the other way round.

`kinds/data/mistakes.json` has them by kind and place. In a place, `rules` stands for `ingress` and `egress`, `peers`
for `from` and `to`, and `=Word` at the end for a value. They replace the hint that the nearest known field gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from msgspec.structs import replace

from tierwall.resources.admission.problem import COUNT, REQUIRED, UNKNOWN_FIELD, AdmissionProblem
from tierwall.resources.kinds.registry import Kind, read_data

# The kinds with a table, each with those whose hints it shares.
_SHARED = {
    "AdminNetworkPolicy": ("*", "AdminNetworkPolicy"),
    "BaselineAdminNetworkPolicy": ("*", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"),
    "ClusterNetworkPolicy": ("*", "ClusterNetworkPolicy"),
    "NetworkPolicy": ("NetworkPolicy",),
}
_GROUPS = ("networking.k8s.io", "policy.networking.k8s.io")
_WORDS = {"ingress": "rules", "egress": "rules", "from": "peers", "to": "peers"}
_SELECTORS = ("podSelector", "namespaceSelector", "nodes")


@cache
def _hints(kind: str) -> Mapping[str, str]:
    table = read_data("mistakes.json")
    return {place: hint for name in _SHARED[kind] for place, hint in table[name].items()}


def with_hints(kind: Kind, problems: list[AdmissionProblem]) -> list[AdmissionProblem]:
    """Return problems with the hints for common mistakes."""
    if kind.group not in _GROUPS or kind.kind not in _SHARED:
        return problems
    hints = _hints(kind.kind)
    return [
        replace(problem, hint=hint) if _is_about_form(problem) and (hint := _hint(hints, problem)) else problem
        for problem in problems
    ]


def _is_about_form(problem: AdmissionProblem) -> bool:
    """Whether a value has another form than it should have; not if only its size or range is wrong."""
    return problem.refuses and (problem.code != COUNT or "at least 1 " in problem.message)


def _hint(hints: Mapping[str, str], problem: AdmissionProblem) -> str:
    names = [step for step in problem.path if isinstance(step, str)]
    if problem.code == REQUIRED:
        # The path leads to the object that lacks the field.
        names.append(problem.message.partition(":")[0].rpartition(".")[2])
    value = problem.actual.strip("`")
    for place in _places(names):
        if hint := hints.get(f"{place}={value}") or hints.get(place):
            return hint
    if problem.code == UNKNOWN_FIELD and not problem.hint and names[-2:-1] and names[-2] in _SELECTORS:
        return "put labels below `matchLabels`"
    return ""


def _places(names: list[str]) -> Iterator[str]:
    """Yield the forms of a path, the most specific first."""
    yield ".".join(names)
    yield ".".join(name if number == 1 else _WORDS.get(name, name) for number, name in enumerate(names))
    yield ".".join(_WORDS.get(name, name) for name in names)
