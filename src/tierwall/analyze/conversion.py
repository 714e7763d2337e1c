"""Converts network policies to another kind, and compares what both decide (docs/compare.md#convert).

If every policy of the Admin and Baseline tiers has the same subject, and the same rules in the same order, the two
decide alike for all pods there can be. Otherwise connections are compared between the given pods, and with hypothetical
pods of every sort that either side tells apart (`network.reach.exposure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.analyze.cluster_conversion import cluster_policy
from tierwall.analyze.future_pods import with_future_pods
from tierwall.analyze.namespace_conversion import IsolatedSubject, expressible_directions, isolations, network_policies
from tierwall.analyze.policy_writing import CannotExpress
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.network.model.model import NetworkModel, network_model_with_shadow
from tierwall.network.model.policies import BASELINE, CLUSTER
from tierwall.network.model.rules import Direction, TieredPolicy, TierName
from tierwall.network.reach.compare import compare_connections
from tierwall.network.reach.listing import ConnectionEntry
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections

NETWORK_POLICY = "NetworkPolicy"
KINDS = (CLUSTER, NETWORK_POLICY)
_SUFFIXES = {"AdminNetworkPolicy": "-admin", BASELINE: "-baseline", CLUSTER: "-cluster"}

# The rules of one direction: runs of rules with the same action, in which order does not matter.
_Runs: TypeAlias = tuple[tuple[str, frozenset[object]], ...]


class ConversionResult(Struct, frozen=True):
    """Converted policies, what could not be converted, and the objects as they are with the converted policies."""

    manifests: tuple[dict[str, Any], ...]
    problems: tuple[Diagnostic, ...]
    before: Snapshot
    after: Snapshot
    # How many policies there were to convert.
    total: int

    def compare(self) -> ConversionComparison:
        """Compare what policies decide before and after."""
        return compare_conversion(self)


def convert(snapshot: Snapshot, kind: str) -> ConversionResult:
    """Convert the policies of a snapshot to ClusterNetworkPolicies or NetworkPolicies; others stay as they are."""
    if kind not in KINDS:
        message = f"expected one of {', '.join(KINDS)} as kind to convert to, found `{kind}`"
        raise InputError([Diagnostic("TW703", message, hint=near_miss(str(kind), KINDS))])
    model = network_model_with_shadow(snapshot)
    sources = [(rank, policy) for rank, policy in enumerate(model.policies) if _is_source(policy, kind)]
    if kind == NETWORK_POLICY:
        # An Allow alone can be expressed for pods that are isolated, so it must be known which are.
        sources.sort(key=lambda source: not _isolates(source[1]))
    names = _Names(snapshot, kind)
    isolated = isolations(model)
    manifests: list[dict[str, Any]] = []
    problems: list[Diagnostic] = []
    for rank, policy in sources:
        try:
            reasons = objections(snapshot, policy.resource)
            if reasons:
                raise CannotExpress(f"an API server would refuse it: {reasons[0]}")
            if kind == CLUSTER:
                written = [cluster_policy(policy, names.of(policy.resource))]
            else:
                directions = list(expressible_directions(policy))
                below = [subject for subject in isolated if subject.comes_after(policy.tier, rank)]
                name = names.of(policy.resource)
                written = list(network_policies(policy, directions, model.namespaces, below, name))
                isolating = [direction.direction for direction in directions if direction.isolates]
                isolated |= {
                    IsolatedSubject(namespace, direction, policy.pods, rank)
                    for namespace in {manifest["metadata"]["namespace"] for manifest in written}
                    for direction in isolating
                }
            manifests += written
        except CannotExpress as error:
            part = policy if error.rule is None else error.rule
            message = f"{part} cannot be part of a {kind}: {error}; the policy is left out"
            problems.append(policy.resource.diagnostic("TW710", message, part.path))
    gone = [policy.resource for _, policy in sources]
    after = snapshot.with_changes(drop=gone, put=map(_resource, manifests))
    return ConversionResult(tuple(manifests), tuple(problems), snapshot, after, len(sources))


def _resource(manifest: dict[str, Any]) -> Resource:
    group, _, version = manifest["apiVersion"].partition("/")
    place = manifest["metadata"]
    return Resource(group, version, manifest["kind"], place.get("namespace", ""), place["name"], manifest)


def _is_source(policy: TieredPolicy, kind: str) -> bool:
    return policy.tier is not TierName.NAMESPACE and (kind == NETWORK_POLICY or policy.resource.kind != CLUSTER)


def _isolates(policy: TieredPolicy) -> bool:
    try:
        return any(direction.isolates for direction in expressible_directions(policy))
    except CannotExpress:
        return False


class _Names:
    """The names of converted policies: their own, unless another policy of the new kind has it."""

    def __init__(self, snapshot: Snapshot, kind: str) -> None:
        group = "policy.networking.k8s.io" if kind == CLUSTER else "networking.k8s.io"
        self._taken = {resource.name for resource in snapshot.of_kind(group, kind)}

    def of(self, resource: Resource) -> str:
        """Return the name of a converted policy."""
        name = resource.name
        if name in self._taken:
            name = f"{name[: 253 - len(_SUFFIXES[resource.kind])]}{_SUFFIXES[resource.kind]}"
        while name in self._taken:
            name = f"{name[:252]}x"
        self._taken.add(name)
        return name


def decides_alike(conversion: ConversionResult) -> bool:
    """Whether both sides certainly decide alike, for all pods there can be."""
    return _outline(network_model_with_shadow(conversion.before)) == _outline(
        network_model_with_shadow(conversion.after)
    )


def _outline(model: NetworkModel) -> list[object]:
    """Return everything about the policies of a model that decisions depend on."""
    return [
        (
            tier.name,
            [
                (policy.namespaces, policy.pods, [_runs(policy, direction) for direction in Direction])
                for policy in tier.policies
            ],
        )
        for tier in model.tiers
    ]


def _runs(policy: TieredPolicy, direction: Direction) -> _Runs | None:
    rules = policy.rules(direction)
    if rules is None:
        return None
    runs: list[tuple[str, frozenset[object]]] = []
    for rule in rules:
        peers: Sequence[object] = (None,) if rule.peers is None else rule.peers
        ports: Sequence[object] = (None,) if rule.ports is None else rule.ports
        pairs: frozenset[object] = frozenset((peer, port) for peer in peers for port in ports)
        if runs and runs[-1][0] == str(rule.action):
            pairs |= runs.pop()[1]
        runs.append((str(rule.action), pairs))
    return tuple(runs)


class ConversionComparison(Struct, frozen=True):
    """The connections that a conversion changes: those of given pods, and those of pods that do not exist yet.

    `is_proven` says that both sides are written alike. `is_complete` is false if some sorts of future pods, or ways in
    which they are related, were left out.
    """

    given: tuple[ConnectionEntry, ...] = ()
    future: tuple[ConnectionEntry, ...] = ()
    is_proven: bool = False
    is_complete: bool = True


def compare_conversion(conversion: ConversionResult) -> ConversionComparison:
    """Compare both sides: for certain if they are written alike, otherwise on given and hypothetical pods."""
    if decides_alike(conversion):
        return ConversionComparison(is_proven=True)
    before, after = conversion.before, conversion.after
    future = with_future_pods(before, after)
    return ConversionComparison(
        tuple(compare_connections(before, after)), tuple(future.changes()), is_complete=future.is_complete
    )
