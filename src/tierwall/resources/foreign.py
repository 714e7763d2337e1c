"""Omissions of an answer: policies of other systems, and objects that no cluster would have.

Other systems decide about the same traffic, calls, settings or requests. Tierwall does not read their policies, so
every answer that they could change says so (docs/reference/sources.md#what-is-not-considered).
`kinds/data/foreign.json` is the table: one line per plane and group. `namespaced` kinds concern only their own
namespace, unless it is the `rootNamespace` of their system; kinds in `everywhere` concern all of them. `bound` kinds
count only with a binding, kinds with `fields` only if they set one of them, and kinds with `verbs: write` only for
requests that admission sees. A policy whose targets are all other objects than those of the question does not matter.
`resources.refused` has the objects that no cluster would have, `resources.gaps` what could not be read from a cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from tierwall.core.answer import Omission
from tierwall.core.reference import Reference
from tierwall.resources.gaps import KindStake, gaps, replacements
from tierwall.resources.kinds.registry import is_built_in, needs_group, read_data
from tierwall.resources.once import per_snapshot
from tierwall.resources.plane_kinds import kinds_read
from tierwall.resources.refused import MAX_EXAMPLES, place_and_name, refusals
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.target_refs import target_namespaces, targets_others
from tierwall.resources.validity import DEFINITION
from tierwall.resources.workloads import WORKLOADS

_EFFECTS = {
    "network": "{owner} may deny what is allowed here, or allow what is denied",
    "tool": "{owner} may deny what is allowed here, or allow what is denied",
    "gateway": "{owner} may change settings that are shown here, or set others",
    "api": "{owner} may refuse what is allowed here",
}
_NETWORK_EFFECT = "{owner} connects pods or machines by networks that are not considered here"
# Another authorizer may also allow.
_AUTHORIZERS = {"cedar.k8s.aws": "{owner} may allow what is denied here, or deny what is allowed"}
_BINDINGS = {
    "ValidatingAdmissionPolicy": "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy": "MutatingAdmissionPolicyBinding",
}
_WEBHOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
# A kind that one plane reads and another does not.
_READ_ELSEWHERE = (("agentgateway.dev", "AgentgatewayPolicy"),)
# Without objects of these groups, nobody asks about tools. A single question is asked.
_AGENTIC = ("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io")
_NAMESPACE, _NODE, _POD = ("", "Namespace"), ("", "Node"), ("", "Pod")
_POD_SECURITY = "pod-security.kubernetes.io/enforce"


class ForeignKind(msgspec.Struct, frozen=True, rename="camel"):
    """A line of the table."""

    plane: str
    group: str
    owner: str
    reason: str = "foreign"
    namespaced: tuple[str, ...] = ()
    everywhere: tuple[str, ...] = ()
    root_namespace: str = ""
    bound: bool = False
    fields: tuple[str, ...] = ()
    verbs: str = ""

    @property
    def effect(self) -> str:
        """The possible effect of the objects on an answer, as a sentence."""
        form = _AUTHORIZERS.get(self.group, _EFFECTS[self.plane]) if self.reason == "foreign" else _NETWORK_EFFECT
        return form.format(owner=self.owner[:1].upper() + self.owner[1:])

    def covers(self, kind: str) -> bool:
        """Whether this line is about a kind of its group."""
        return kind in self.namespaced or kind in self.everywhere or "*" in self.everywhere

    def depends_on(self, kind: str) -> bool:
        """Whether this line depends on a kind of its group; an empty one stands for all of them."""
        return not kind or self.covers(kind) or (self.bound and kind in _BINDINGS.values())

    def counts(self, snapshot: Snapshot, resource: Resource) -> bool:
        """Whether an object of a kind that this line covers can decide something."""
        if _is_ours(resource) or (self.bound and not _is_bound(snapshot, resource)):
            return False
        return not self.fields or any(_has_field(resource.spec, field.split(".")) for field in self.fields)


@cache
def _table() -> tuple[ForeignKind, ...]:
    return msgspec.convert(read_data("foreign.json"), tuple[ForeignKind, ...])


def kinds_of_plane(plane: str) -> tuple[KindKey, ...]:
    """Return the foreign kinds that could change answers of a plane; `*` stands for all kinds of a group."""
    return tuple(
        (line.group, kind)
        for line in _table()
        if line.plane == plane
        for kind in (*line.namespaced, *line.everywhere, *(_BINDINGS.values() if line.bound else ()))
    )


@cache
def root_namespace(group: str, kind: str) -> str:
    """Return the namespace in which objects of a foreign kind concern all namespaces, or an empty string."""
    return next((line.root_namespace for line in _table() if line.group == group and line.covers(kind)), "")


class ForeignObjects(msgspec.Struct, frozen=True, eq=False):
    """The objects of a foreign kind: those that concern everything, and the others by namespace."""

    line: ForeignKind
    kind: str
    everywhere: tuple[Resource, ...]
    by_namespace: Mapping[str, tuple[Resource, ...]]

    def of(self, namespaces: Iterable[str] | None) -> list[Resource]:
        """Return the objects that could matter in some namespaces; None stands for all."""
        names = self.by_namespace if namespaces is None else namespaces
        local = {id(policy): policy for name in names for policy in self.by_namespace.get(name, ())}
        return [*self.everywhere, *local.values()]


@per_snapshot
def _foreign_objects(snapshot: Snapshot, plane: str) -> tuple[ForeignObjects, ...]:
    unknown = [key for key in snapshot.kinds if key in _READ_ELSEWHERE or not is_built_in(*key)]
    seen: set[tuple[str, str, Reference]] = set()
    # Most snapshots have only kinds that Tierwall knows, and need not read the table.
    return tuple(
        _sorted_by_namespace(line, kind, list(_counting(snapshot, line, kind, seen)))
        for line in (_table() if unknown else ())
        for group, kind in unknown
        if line.plane == plane and line.group == group and line.covers(kind)
    )


def _counting(
    snapshot: Snapshot, line: ForeignKind, kind: str, seen: set[tuple[str, str, Reference]]
) -> Iterator[Resource]:
    for resource in snapshot.of_kind(line.group, kind):
        # Calico serves the same object in two groups.
        key = line.owner, kind, resource.reference._replace(group="")
        if key not in seen and line.counts(snapshot, resource):
            seen.add(key)
            yield resource


def _sorted_by_namespace(line: ForeignKind, kind: str, objects: list[Resource]) -> ForeignObjects:
    everywhere: list[Resource] = []
    by_namespace: dict[str, list[Resource]] = {}
    for resource in sorted(objects, key=place_and_name):
        # Without a namespace an object goes where it is applied; some targets are in another namespace, or in none.
        namespaces = dict.fromkeys((resource.namespace, *target_namespaces(resource)))
        if kind not in line.namespaced or "" in namespaces or resource.namespace == line.root_namespace:
            everywhere.append(resource)
        else:
            for namespace in namespaces:
                by_namespace.setdefault(namespace, []).append(resource)
    return ForeignObjects(line, kind, tuple(everywhere), {name: tuple(by_namespace[name]) for name in by_namespace})


def omissions(
    snapshot: Snapshot,
    plane: str,
    namespaces: Iterable[str] | None = None,
    *,
    targets: Iterable[Reference] = (),
    named: Iterable[Resource] = (),
    every: bool = False,
    is_admitted: bool = True,
    is_about_pods: bool = True,
    in_any_namespace: bool = False,
    is_about_addresses: bool = True,
    needs_definitions: bool = False,
    asks_elsewhere: bool = False,
) -> tuple[Omission, ...]:
    """Return what could change the answer of a plane and was not considered.

    `namespaces` are those that the question is about; None stands for all. `targets` are the Gateways, routes and
    backends that it names, `named` are objects that it names, and `every` says that it is about all objects
    (`resources.refused`). For requests to an API server, `is_admitted` says whether admission sees them once they are
    allowed, and `is_about_pods` whether they change pods. `in_any_namespace` says that foreign policies of every
    namespace may apply, although ours and roles apply only in `namespaces`. For connections, `is_about_addresses` says
    that an end is a node or may be a pod that nobody named. `needs_definitions` says that only definitions of custom
    resources can tell which resource is meant, and `asks_elsewhere` that roles of every namespace may matter.
    """
    judged = None if namespaces is None else sorted(set(namespaces))
    wanted = None if in_any_namespace else judged
    places = frozenset((target.kind, target.namespace, target.name) for target in targets)
    entries = [
        _omission(foreign.line, foreign.kind, objects)
        for foreign in _foreign_objects(snapshot, plane)
        if (is_admitted or not foreign.line.verbs)
        and (places or not foreign.line.fields or _is_agentic(snapshot))
        and (
            objects := [policy for policy in foreign.of(wanted) if not targets_others(snapshot, policy, plane, places)]
        )
    ]
    if plane == "api" and is_admitted and is_about_pods:
        enforcing = _enforcing_pod_security(snapshot)
        namespaces_of_pods = [
            enforcing[name] for name in (enforcing if wanted is None else wanted) if name in enforcing
        ]
        if namespaces_of_pods:
            entries.append(_omission(ForeignKind("api", "", "Pod Security admission"), "Namespace", namespaces_of_pods))
    entries += refusals(snapshot, plane, judged, named, places, every)
    if snapshot.unlisted:
        is_agentic = bool(places) or _is_agentic(snapshot)
        about = is_about_pods, is_about_addresses, is_agentic, needs_definitions
        scope = _QuestionScope(plane, None if asks_elsewhere else judged, wanted, is_admitted, *about)
        entries += gaps(snapshot, lambda key: scope.stake_in(snapshot, key))
        if plane == "network":
            entries += replacements(snapshot, judged)
    return tuple(entries)


class _QuestionScope(NamedTuple):
    """The scope of a question, to tell which kinds it has a stake in; see `omissions`."""

    plane: str
    judged: Collection[str] | None
    wanted: Collection[str] | None
    is_admitted: bool
    is_about_pods: bool
    is_about_addresses: bool
    is_agentic: bool
    needs_definitions: bool

    def stake_in(self, snapshot: Snapshot, key: KindKey) -> KindStake | None:
        """Return the stake of the question in a kind, or None if its objects do not matter."""
        line = kinds_read(self.plane).get(key)
        if line is None:
            return self._foreign_stake(*key)
        if not line.unlisted or (key == _NODE and not self.is_about_addresses):
            return None
        if key == DEFINITION and not self.needs_definitions:
            return None
        if key in WORKLOADS and not _has_workloads_of_files(snapshot, self.judged):
            return None
        if key == _NAMESPACE and self.plane == "api":
            return KindStake(line.unlisted, self.wanted) if self.is_admitted and self.is_about_pods else None
        everywhere = not line.local or (key == _POD and self.is_about_addresses)
        return KindStake(line.unlisted, None if everywhere else self.judged)

    def _foreign_stake(self, group: str, kind: str) -> KindStake | None:
        for line in _table():
            if line.plane == self.plane and line.group == group and line.depends_on(kind):
                if (line.verbs and not self.is_admitted) or (line.fields and not self.is_agentic):
                    return None
                namespaces = None if self.wanted is None else {*self.wanted, line.root_namespace}
                return KindStake(line.effect, namespaces if kind in line.namespaced else None, line.owner)
        return None


def _has_workloads_of_files(snapshot: Snapshot, namespaces: Collection[str] | None) -> bool:
    """Whether files have workloads in some namespaces: they may replace those of a cluster, with their pods."""
    return any(
        not workload.is_live and (namespaces is None or workload.namespace in namespaces)
        for key in WORKLOADS
        for workload in snapshot.of_kind(*key)
    )


def _is_agentic(snapshot: Snapshot) -> bool:
    return not snapshot.groups.isdisjoint(_AGENTIC)


def _omission(line: ForeignKind, kind: str, objects: list[Resource]) -> Omission:
    return Omission(
        reason=line.reason,
        kind=kind,
        group=line.group,
        owner=line.owner,
        count=len(objects),
        examples=tuple(map(_reference, objects[:MAX_EXAMPLES])),
        at=objects[0].position(),
        effect=line.effect,
    )


def _has_field(value: Any, path: Sequence[str]) -> bool:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None


def _is_bound(snapshot: Snapshot, policy: Resource) -> bool:
    bindings = snapshot.of_kind(policy.group, _BINDINGS[policy.kind])
    return any(binding.spec.get("policyName") == policy.name for binding in bindings)


def _is_ours(resource: Resource) -> bool:
    """Whether an object belongs to Tierwall's own installation (`tierwall authorizer install`)."""
    return resource.kind in _WEBHOOKS and (resource.name == "tierwall.io" or resource.name.startswith("tierwall-"))


@per_snapshot
def _enforcing_pod_security(snapshot: Snapshot) -> Mapping[str, Resource]:
    return {
        namespace.name: namespace
        for namespace in snapshot.of_kind("", "Namespace")
        if namespace.labels.get(_POD_SECURITY, "privileged") != "privileged"
    }


def _reference(resource: Resource) -> Reference:
    """Return the reference of an object, with its group where the kind alone is ambiguous."""
    group = resource.group if needs_group(resource.group, resource.kind) else ""
    return resource.reference._replace(group=group)
