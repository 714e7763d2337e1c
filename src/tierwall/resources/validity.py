"""Whether an object of a snapshot would pass admission, as diagnostics at their places; judged once an object.

Planes ask this to fail closed: an object that fails validation never silently disappears from a decision.

A CustomResourceDefinition among the objects says what objects of its kind are like, whether Tierwall knows the kind or
not (docs/definitions.md): what it admits, admission admits. What it admits of a policy and the built-in definition does
not, planes cannot read (`unread`), so that a definition can close what a policy guards, never open it. Of other objects
they pass such a part over. A definition that an API server would refuse says nothing
(docs/definitions.md#a-definition-that-is-refused).

INVARIANT: what admission says depends on the object and on the definition of its kind alone, so that it holds in every
snapshot that has the object and the definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.core.words import join_names
from tierwall.resources.admission import AdmissionProblem, admit, with_defaults
from tierwall.resources.admission.admit import unknown_kind_problem
from tierwall.resources.admission.problem import WARNING
from tierwall.resources.admission.validate import MOST_PROBLEMS
from tierwall.resources.kinds.registry import Kind, find_kind, read_kinds, versions_of
from tierwall.resources.once import per_resource, per_resource_and, per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot

DIFFERS = "TW111"
UNREADABLE = "TW112"
UNUSABLE = "TW113"
PASSED_OVER = "TW114"
DEFINITION: KindKey = ("apiextensions.k8s.io", "CustomResourceDefinition")


class InstalledDefinition(msgspec.Struct, frozen=True, eq=False):
    """A CustomResourceDefinition among the objects."""

    name: str
    key: KindKey
    kinds: Mapping[str, Kind]  # by apiVersion; none if an API server would refuse the definition

    def judge(self, document: dict[str, Any]) -> list[AdmissionProblem]:
        """What an API server with this definition has against an object of its kind."""
        api_version = document["apiVersion"]
        kind = self.kinds.get(api_version)
        if kind is not None and kind.served:
            return admit(document, kind)
        served = " and ".join(f"`{version}`" for version, kind in self.kinds.items() if kind.served) or "no version"
        return [unknown_kind_problem(api_version, self.key[1], f"CustomResourceDefinition/{self.name} serves {served}")]


@per_snapshot
def installed_definitions(snapshot: Snapshot) -> Mapping[KindKey, InstalledDefinition]:
    """The definitions among the objects, by the group and kind that they define. Of several the oldest counts."""
    found: dict[KindKey, InstalledDefinition] = {}
    for resource in sorted(snapshot.of_kind(*DEFINITION), key=lambda resource: resource.seniority):
        definition = read_definition(resource)
        # What an API server has built in it does not take from a definition.
        if definition is not None and all(kind.is_crd for kind in versions_of(*definition.key).values()):
            found.setdefault(definition.key, definition)
    return found


@per_resource
def read_definition(resource: Resource) -> InstalledDefinition | None:
    """What a CustomResourceDefinition defines; None if it does not say of which kind it is."""
    spec = resource.spec
    names = spec.get("names")
    group, kind = spec.get("group"), names.get("kind") if isinstance(names, dict) else None
    if not isinstance(group, str) or not isinstance(kind, str):
        return None
    kinds: dict[str, Kind] = {}
    if not any(problem.refuses for problem in admit(resource.value)):
        versions = read_kinds(with_defaults(resource.value), installed=True)
        kinds = {version.api_version: version for version in versions}
    return InstalledDefinition(resource.name, (group, kind), kinds)


def installed_definition(snapshot: Snapshot, resource: Resource) -> InstalledDefinition | None:
    """The definition among the objects that an object is judged by; the same one as long as it says the same."""
    return installed_definitions(snapshot).get((resource.group, resource.kind))


def admit_with_definitions(snapshot: Snapshot, document: Any) -> list[AdmissionProblem]:
    """What an API server with the definitions of this snapshot has against an object."""
    definition = None
    if isinstance(document, dict):
        api_version, kind = document.get("apiVersion"), document.get("kind")
        if isinstance(api_version, str) and isinstance(kind, str):
            definition = installed_definitions(snapshot).get((api_version.rpartition("/")[0], kind))
    return admit(document) if definition is None or not definition.kinds else definition.judge(document)


def is_judged(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether the kind of an object is known, to Tierwall or by a definition that can be used."""
    if find_kind(resource.api_version, resource.kind) is not None:
        return True
    definition = installed_definition(snapshot, resource)
    return definition is not None and bool(definition.kinds)


def admission_problems(snapshot: Snapshot, resource: Resource) -> Diagnostics:
    """Every problem admission has with the object, warnings included."""
    definition = installed_definition(snapshot, resource)
    return built_in_problems(resource) if definition is None else _problems(resource, definition)


def is_valid(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether admission takes the object."""
    return not admission_problems(snapshot, resource).errors


def is_understood(snapshot: Snapshot, policy: Resource) -> bool:
    """Whether admission takes a policy, and Tierwall knows all that it says."""
    return not objections(snapshot, policy)


def objections(snapshot: Snapshot, policy: Resource) -> list[str]:
    """Why a policy cannot be read as it is written: what admission refuses, and what Tierwall does not know."""
    return [
        problem.message
        for problem in admission_problems(snapshot, policy)
        if problem.code == UNREADABLE or problem.severity is Severity.ERROR
    ]


def unknown_parts(snapshot: Snapshot, policy: Resource) -> tuple[AdmissionProblem, ...]:
    """What the definition among the objects admits of a policy and Tierwall does not know, with paths."""
    definition = installed_definition(snapshot, policy)
    if definition is None or all(problem.code != UNREADABLE for problem in _problems(policy, definition)):
        return ()
    return _unknown_parts(policy, definition)


@per_resource_and
def _unknown_parts(policy: Resource, definition: InstalledDefinition) -> tuple[AdmissionProblem, ...]:
    own = admit(policy.value)
    judged = _joined_problems(definition, definition.judge(policy.value), own)
    unknown = [problem for problem in judged if problem.code == UNREADABLE]
    if len(own) >= MOST_PROBLEMS:
        unknown.append(AdmissionProblem(UNREADABLE, (), "more than Tierwall tells of is not known to it"))
    return tuple(unknown)


def has_other_defaults(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether an API server would store a valid object with other defaults than those that Tierwall knows."""
    definition = installed_definition(snapshot, resource)
    kind = None if definition is None else definition.kinds.get(resource.api_version)
    return kind is not None and with_defaults(with_defaults(resource.value, kind)) != with_defaults(resource.value)


@per_resource
def built_in_problems(resource: Resource) -> Diagnostics:
    """Every problem of an object by what Tierwall itself knows of its kind."""
    diagnostics = [_diagnostic(resource, problem) for problem in admit(resource.value)]
    if (resource.group, resource.kind) == DEFINITION:
        diagnostics += _differences(resource)
    return Diagnostics(diagnostics)


@per_resource_and
def _problems(resource: Resource, definition: InstalledDefinition) -> Diagnostics:
    known = bool(versions_of(*definition.key))
    own = admit(resource.value) if known else []
    if not definition.kinds:
        reason = "is refused by an API server, so this object is not judged by it"
        unusable = AdmissionProblem(UNUSABLE, (), f"CustomResourceDefinition/{definition.name} {reason}")
        return Diagnostics(_diagnostic(resource, problem) for problem in (*own, unusable))
    judged = definition.judge(resource.value)
    return Diagnostics(_diagnostic(resource, problem) for problem in _joined_problems(definition, judged, own))


def _joined_problems(
    definition: InstalledDefinition, installed: list[AdmissionProblem], own: list[AdmissionProblem]
) -> Iterator[AdmissionProblem]:
    """What the definition among the objects says, with the hints and warnings of our own."""
    hints = {(problem.code, problem.path, problem.message): problem.hint for problem in own}
    for problem in installed:
        hint = hints.get((problem.code, problem.path, problem.message))
        yield msgspec.structs.replace(problem, hint=hint) if hint else problem
    yield from (problem for problem in own if problem.code == WARNING)
    if not any(problem.refuses for problem in installed):
        code, follows = _unknown(definition.key)
        for problem in own:
            if problem.refuses:
                message = f"admitted by the installed definition, but not known to Tierwall: {problem.message}"
                yield msgspec.structs.replace(problem, code=code, message=message, hint=follows)


def _unknown(key: KindKey) -> tuple[str, str]:
    """What it is called if Tierwall does not know a part of an object, and what planes make of it.

    What is unknown in a policy may be a restriction. The names of kinds say which are policies (GEP-713).
    """
    if not key[1].endswith("Policy"):
        return PASSED_OVER, "what is not known is passed over"
    # A setting has no closed side (docs/semantics.md#refused-policies-take-no-part).
    is_setting = key[1] == "AgentgatewayPolicy"
    return UNREADABLE, "the policy takes no part in merges" if is_setting else "the policy fails closed"


def _differences(resource: Resource) -> Iterator[Diagnostic]:
    from tierwall.resources.crd import definition_differences  # imports what writes YAML, which nothing else here needs

    definition = read_definition(resource)
    if definition is None or not definition.kinds:
        return
    own = {name: kind for name, kind in versions_of(*definition.key).items() if kind.is_crd}
    found = list(definition_differences(definition.kinds, own)) if own else []
    if found:
        message = f"differs from the definition that Tierwall knows: {join_names(found)}"
        hint = f"the installed definition is the one that {definition.key[1]} objects are judged by"
        yield resource.diagnostic(DIFFERS, message, hint=hint)


def _diagnostic(resource: Resource, problem: AdmissionProblem) -> Diagnostic:
    return resource.diagnostic(
        problem.code,
        problem.message,
        problem.path,
        key=CATALOGUE[problem.code].at_key,
        expected=problem.expected,
        actual=problem.actual,
        hint=problem.hint,
    )
