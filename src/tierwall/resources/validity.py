"""Checks whether objects of a snapshot would pass admission, once per object, as diagnostics with positions.

Planes use this to fail closed: an object that fails validation never silently disappears from a decision.

A CustomResourceDefinition among the objects defines its kind, whether Tierwall knows the kind or not
(docs/definitions.md): admission accepts what it accepts. If it accepts a part of a policy that the built-in definition
does not, planes cannot read that part (`unknown_parts`) and fail closed: a definition can close what a policy guards,
never open it. In other objects such a part is ignored. A definition that an API server would refuse has no effect
(docs/definitions.md#a-definition-that-is-refused).

A cluster has admitted its own objects, so nothing there is refused (docs/clusters.md#what-is-judged). Of the kinds in
TRIMMED, only a part is read from a cluster, and that part is not judged at all. In objects of other kinds, parts that
Tierwall does not know are treated as if a definition among the objects accepted them.

INVARIANT: the result depends only on the object and the definition of its kind. It holds in every snapshot that has
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec

from tierwall.core.catalogue import CATALOGUE, Severity
from tierwall.core.diagnostics import Diagnostic, Diagnostics
from tierwall.core.words import join_names
from tierwall.resources.admission import AdmissionProblem, admit, with_defaults
from tierwall.resources.admission.admit import unknown_kind_problem
from tierwall.resources.admission.problem import WARNING
from tierwall.resources.admission.validate import MAX_PROBLEMS
from tierwall.resources.kinds.registry import Kind, find_kind, read_kinds, versions_of
from tierwall.resources.kinds.served import unserved_version
from tierwall.resources.once import per_resource, per_resource_and, per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.workloads import WORKLOADS

DIFFERS = "TW111"
UNREADABLE = "TW112"
UNUSABLE = "TW113"
IGNORED = "TW114"
DEFINITION: KindKey = ("apiextensions.k8s.io", "CustomResourceDefinition")
# The kinds whose objects are read from a cluster only in part; see `cluster.wanted`.
TRIMMED: Set[KindKey] = frozenset(
    (
        *(("", kind) for kind in ("Pod", "Node", "Namespace", "ServiceAccount")),
        *WORKLOADS,
        DEFINITION,
        ("apiregistration.k8s.io", "APIService"),
    )
)
_RBAC = "rbac.authorization.k8s.io"


class InstalledDefinition(msgspec.Struct, frozen=True, eq=False):
    """A CustomResourceDefinition among the objects."""

    name: str
    key: KindKey
    kinds: Mapping[str, Kind]  # by apiVersion; empty if an API server would refuse the definition

    def judge(self, document: dict[str, Any]) -> list[AdmissionProblem]:
        """Return the problems that an API server with this definition has with an object of its kind."""
        api_version = document["apiVersion"]
        kind = self.kinds.get(api_version)
        if kind is not None and kind.served:
            return admit(document, kind)
        served = " and ".join(f"`{version}`" for version, kind in self.kinds.items() if kind.served) or "no version"
        return [unknown_kind_problem(api_version, self.key[1], f"CustomResourceDefinition/{self.name} serves {served}")]


@per_snapshot
def installed_definitions(snapshot: Snapshot) -> Mapping[KindKey, InstalledDefinition]:
    """Return the definitions among the objects by group and kind. If several define a kind, the oldest one counts."""
    definitions: dict[KindKey, InstalledDefinition] = {}
    for resource in sorted(snapshot.of_kind(*DEFINITION), key=lambda resource: resource.seniority):
        definition = read_definition(resource) if not _is_trimmed_definition(resource) else None
        # A definition cannot replace a kind that is built into the API server.
        if definition is not None and all(kind.is_crd for kind in versions_of(*definition.key).values()):
            definitions.setdefault(definition.key, definition)
    return definitions


def defined_kinds(snapshot: Snapshot) -> Set[KindKey]:
    """Return the kinds that definitions define, those of a cluster included, which may have no schemas."""
    of_cluster = (resource.spec for resource in snapshot.of_kind(*DEFINITION) if resource.is_live)
    named = {(str(spec.get("group")), str(nested_map(spec, "names").get("kind"))) for spec in of_cluster}
    return named | installed_definitions(snapshot).keys()


def _is_trimmed_definition(resource: Resource) -> bool:
    """Whether a definition was read from a cluster without its schemas: it says which names there are, and no more."""
    return resource.is_live and not any("schema" in version for version in list_of_maps(resource.spec.get("versions")))


@per_resource
def read_definition(resource: Resource) -> InstalledDefinition | None:
    """Read a CustomResourceDefinition; None if it does not name its group and kind."""
    spec = resource.spec
    names = spec.get("names")
    group, kind = spec.get("group"), names.get("kind") if isinstance(names, dict) else None
    if not isinstance(group, str) or not isinstance(kind, str):
        return None
    kinds: dict[str, Kind] = {}
    if resource.is_live or not any(problem.refuses for problem in admit(resource.value)):
        versions = read_kinds(with_defaults(resource.value), installed=True)
        kinds = {version.api_version: version for version in versions}
    return InstalledDefinition(resource.name, (group, kind), kinds)


def installed_definition(snapshot: Snapshot, resource: Resource) -> InstalledDefinition | None:
    """Return the installed definition of an object's kind. It is the same value as long as it says the same."""
    return installed_definitions(snapshot).get((resource.group, resource.kind))


def admit_with_definitions(snapshot: Snapshot, document: Any) -> list[AdmissionProblem]:
    """Return the problems that an API server with the definitions of this snapshot has with an object."""
    definition = None
    if isinstance(document, dict):
        api_version, kind = document.get("apiVersion"), document.get("kind")
        if isinstance(api_version, str) and isinstance(kind, str):
            definition = installed_definitions(snapshot).get((api_version.rpartition("/")[0], kind))
    return admit(document) if definition is None or not definition.kinds else definition.judge(document)


def is_judged(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether the kind of an object is known, built in (in whatever version) or by a usable definition."""
    if find_kind(resource.api_version, resource.kind) or unserved_version(resource.api_version, resource.kind):
        return True
    definition = installed_definition(snapshot, resource)
    return definition is not None and bool(definition.kinds)


def admission_problems(snapshot: Snapshot, resource: Resource) -> Diagnostics:
    """Return every problem that admission has with an object, warnings included."""
    if resource.is_live:
        return built_in_problems(resource)
    definition = installed_definition(snapshot, resource)
    return built_in_problems(resource) if definition is None else _problems(resource, definition)


def refused_paths(snapshot: Snapshot, resource: Resource) -> tuple[tuple[str | int, ...], ...]:
    """Return the place of each part of an object that admission refuses; the whole object if there are too many."""
    refusals = [problem for problem in admit_with_definitions(snapshot, resource.value) if problem.refuses]
    return tuple(problem.path for problem in refusals) if 0 < len(refusals) < MAX_PROBLEMS else ((),)


def is_valid(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether admission accepts the object."""
    return not admission_problems(snapshot, resource).errors


def is_understood(snapshot: Snapshot, policy: Resource) -> bool:
    """Whether admission accepts a policy and Tierwall knows every part of it."""
    return not objections(snapshot, policy)


def objections(snapshot: Snapshot, policy: Resource) -> list[str]:
    """Return the reasons why a policy cannot be applied as written: refusals, and parts that Tierwall does not know."""
    return [
        problem.message
        for problem in admission_problems(snapshot, policy)
        if problem.code == UNREADABLE or problem.severity is Severity.ERROR
    ]


def unknown_parts(snapshot: Snapshot, policy: Resource) -> tuple[AdmissionProblem, ...]:
    """Return the parts of a policy that the installed definition accepts and Tierwall does not know, with paths."""
    if policy.is_live:
        return tuple(problem for problem in _parts_of_cluster(policy) if problem.code == UNREADABLE)
    definition = installed_definition(snapshot, policy)
    if definition is None or all(problem.code != UNREADABLE for problem in _problems(policy, definition)):
        return ()
    return _unknown_parts(policy, definition)


@per_resource_and
def _unknown_parts(policy: Resource, definition: InstalledDefinition) -> tuple[AdmissionProblem, ...]:
    document = _document(policy)
    built_in = admit(document)
    judged = _joined_problems(definition, definition.judge(document), built_in)
    unknown = [problem for problem in judged if problem.code == UNREADABLE]
    if len(built_in) >= MAX_PROBLEMS:
        unknown.append(AdmissionProblem(UNREADABLE, (), "there are more unknown parts than Tierwall lists"))
    return tuple(unknown)


def _document(resource: Resource) -> dict[str, Any]:
    """Return the whole object; a typed list, as an API server writes it, has the types of its items only once."""
    value = resource.value
    if "apiVersion" in value and "kind" in value:
        return value
    return {"apiVersion": resource.api_version, "kind": resource.kind, **value}


def has_other_defaults(snapshot: Snapshot, resource: Resource) -> bool:
    """Whether an API server would store a valid object with other defaults than Tierwall sets."""
    definition = installed_definition(snapshot, resource) if not resource.is_live else None
    kind = None if definition is None else definition.kinds.get(resource.api_version)
    return kind is not None and with_defaults(with_defaults(resource.value, kind)) != with_defaults(resource.value)


@per_resource
def built_in_problems(resource: Resource) -> Diagnostics:
    """Return every problem of an object by the built-in definition of its kind."""
    if resource.is_live:
        return Diagnostics(_diagnostic(resource, problem) for problem in _parts_of_cluster(resource))
    diagnostics = [_diagnostic(resource, problem) for problem in admit(_document(resource))]
    if (resource.group, resource.kind) == DEFINITION:
        diagnostics += _differences(resource)
    return Diagnostics(diagnostics)


@per_resource
def _parts_of_cluster(resource: Resource) -> tuple[AdmissionProblem, ...]:
    """Return the parts of an object of a cluster that Tierwall does not know."""
    key = resource.group, resource.kind
    if key in TRIMMED or not versions_of(*key):
        return ()
    return tuple(_accepted_problems("admitted by the cluster", key, admit(_document(resource))))


@per_resource_and
def _problems(resource: Resource, definition: InstalledDefinition) -> Diagnostics:
    document = _document(resource)
    built_in = admit(document) if versions_of(*definition.key) else []
    if not definition.kinds:
        reason = "would be refused by an API server, so it does not apply to this object"
        unusable = AdmissionProblem(UNUSABLE, (), f"CustomResourceDefinition/{definition.name} {reason}")
        return Diagnostics(_diagnostic(resource, problem) for problem in (*built_in, unusable))
    judged = definition.judge(document)
    return Diagnostics(_diagnostic(resource, problem) for problem in _joined_problems(definition, judged, built_in))


def _joined_problems(
    definition: InstalledDefinition, installed: list[AdmissionProblem], built_in: list[AdmissionProblem]
) -> Iterator[AdmissionProblem]:
    """Yield the problems by the installed definition, with the hints and warnings of the built-in one."""
    hints = {(problem.code, problem.path, problem.message): problem.hint for problem in built_in}
    for problem in installed:
        hint = hints.get((problem.code, problem.path, problem.message))
        yield msgspec.structs.replace(problem, hint=hint) if hint else problem
    yield from (problem for problem in built_in if problem.code == WARNING)
    if not any(problem.refuses for problem in installed):
        yield from _accepted_problems("admitted by the installed definition", definition.key, built_in)


def _accepted_problems(admitted: str, key: KindKey, built_in: list[AdmissionProblem]) -> Iterator[AdmissionProblem]:
    """Yield what Tierwall would refuse in an object that was admitted; the words `admitted` say by what."""
    code, consequence = _unknown_part(key)
    for problem in built_in:
        if problem.refuses:
            message = f"{admitted}, but not known to Tierwall: {problem.message}"
            yield msgspec.structs.replace(problem, code=code, message=message, hint=consequence)


def _unknown_part(key: KindKey) -> tuple[str, str]:
    """Return the code of an unknown part of an object, and the consequence.

    An unknown part of a policy may be a restriction. Names of policy kinds end in `Policy` (GEP-713).
    """
    if key[0] == _RBAC:
        return UNREADABLE, "nothing is granted by it"
    if not key[1].endswith("Policy"):
        return IGNORED, "unknown parts are ignored"
    # A setting has no closed side (docs/semantics.md#refused-policies-take-no-part).
    is_setting = key[1] == "AgentgatewayPolicy"
    return UNREADABLE, "the policy takes no part in merges" if is_setting else "the policy fails closed"


def _differences(resource: Resource) -> Iterator[Diagnostic]:
    from tierwall.resources.crd import definition_differences  # few snapshots need it

    definition = read_definition(resource)
    if definition is None or not definition.kinds:
        return
    built_in = {name: kind for name, kind in versions_of(*definition.key).items() if kind.is_crd}
    differences = list(definition_differences(definition.kinds, built_in)) if built_in else []
    if differences:
        message = f"differs from the definition that Tierwall knows: {join_names(differences)}"
        hint = f"the installed definition applies to {definition.key[1]} objects"
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
