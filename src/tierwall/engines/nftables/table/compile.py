"""Compile a network model into one nftables table. Pure.

Every hook has one base chain. One run of a base chain sees one generation of the rules, so each packet is judged by the
old table or by the new one, never by a mixture. Established traffic comes first in that chain. Then the source's
address leads to the chain of its egress class, and the destination's address to the chain of its ingress class. A class
is the set of pods with the same policies. Its chain holds the Admin rules, then either NetworkPolicies or the Baseline,
then the default.

A map is named after the chains it can lead to, so new classes mean a new map. A packet in flight while the old map is
deleted misses the map and its catch-all, and the rule after it drops the packet: the swap fails closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss, sorted_diagnostics
from tierwall.core.reference import Reference
from tierwall.core.stack import CombiningRule, Stack
from tierwall.core.words import failure_words
from tierwall.engines.nftables.table.builder import ALLOW, TableBuilder
from tierwall.engines.nftables.table.hooks import base_chains, plainly_named
from tierwall.engines.nftables.table.matches import subject_field
from tierwall.engines.nftables.table.names import UniqueNames, comment
from tierwall.engines.nftables.table.options import TableOptions, WireAddresses
from tierwall.engines.nftables.table.refusal import at_fault, over_limits, refusal_findings
from tierwall.engines.nftables.table.sets import SetBuilder, family_of
from tierwall.engines.nftables.table.table import (
    CUT,
    EVERY_OTHER,
    FAMILIES,
    NODES,
    PODS,
    Attached,
    ChainVerdict,
    Element,
    NamedSet,
    RuleChain,
    SetKind,
    Table,
    VerdictWord,
)
from tierwall.engines.nftables.table.tiers import TierSubject, first_match, shadow_union, union
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.matching import domain_names
from tierwall.network.model.model import NetworkModel, network_model_with_shadow
from tierwall.network.model.rules import Direction, RuleAction, TieredPolicy
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import format_address

_DISPATCH = {Direction.EGRESS: "by the class of the source", Direction.INGRESS: "by the class of the destination"}


class CompiledTable(Struct, frozen=True):
    """A compiled table, its diagnostics, and the compiler that follows later changes of pods."""

    table: Table
    diagnostics: tuple[Diagnostic, ...]
    compiler: TableCompiler
    # The policies that fail closed because the kernel cannot enforce them, each with the reason.
    refused: Mapping[Reference, str] = {}


def compile_model(
    model: NetworkModel, options: TableOptions | None = None, wire: WireAddresses | None = None
) -> CompiledTable:
    """Compile a model into the table that enforces its policies; InputError if the wanted node is unknown."""
    node_name = options.node if options is not None else None
    known_nodes = {node.name for node in model.nodes} | {pod.node for pod in model.pods if pod.node}
    if node_name is not None and node_name not in known_nodes:
        hint = near_miss(node_name, sorted(known_nodes))
        raise InputError([Diagnostic("TW703", f"there is no node `{node_name}`, and no pod is on it", hint=hint)])
    compiler = TableCompiler(model, options or TableOptions(), wire or WireAddresses())
    return CompiledTable(compiler.table(), sorted_diagnostics(compile_findings(model, compiler.wire)), compiler)


def compile_snapshot(
    snapshot: Snapshot, options: TableOptions, refused: Mapping[Reference, str] | None = None
) -> CompiledTable:
    """Compile the policies of a snapshot, including those in shadow mode.

    Policies that the kernel `refused`, that are too large or that cannot be compiled fail closed.
    """
    model = network_model_with_shadow(snapshot)
    broken = over_limits(model)
    while True:
        closed = {**broken, **(refused or {})}
        try:
            compiled = compile_model(NetworkModel(snapshot, closed) if closed else model, options)
        except InputError:
            raise
        except Exception:
            errors = _compile_errors(snapshot, options, closed, model)
            if not errors:
                raise  # it is not the fault of a policy
            broken |= errors
            continue
        findings = (
            *refusal_findings(model, broken, "TW610"),
            *refusal_findings(model, refused or {}, "TW611"),
            *compiled.diagnostics,
        )
        return CompiledTable(compiled.table, sorted_diagnostics(findings), compiled.compiler, closed)


def _compile_errors(
    snapshot: Snapshot, options: TableOptions, closed: Mapping[Reference, str], model: NetworkModel
) -> dict[Reference, str]:
    """Return the policies that cannot be compiled, each with the reason; none if no policy is at fault."""
    errors: dict[frozenset[Reference], str] = {}

    def is_good(policies: Sequence[TieredPolicy]) -> bool:
        try:
            compile_model(NetworkModel(without_others(snapshot, model, policies)), options)
        except Exception as error:
            errors[frozenset(policy.reference for policy in policies)] = failure_words(error)
            return False
        return True

    suspects = [policy for policy in model.policies if policy.reference not in closed]
    if not suspects or not is_good([]):
        return {}
    return {
        policy.reference: f"it cannot be compiled ({errors.get(frozenset((policy.reference,)), 'with the others')})"
        for policy in at_fault(suspects, is_good)
    }


def without_others(snapshot: Snapshot, model: NetworkModel, policies: Iterable[TieredPolicy]) -> Snapshot:
    """Return the snapshot with these policies of its model only."""
    kept = {policy.reference for policy in policies}
    return snapshot.with_changes(drop=[policy.resource for policy in model.policies if policy.reference not in kept])


class TableCompiler:
    """Compiles one model, and keeps its classes and sets so that pods with the same policies can be added later."""

    def __init__(self, model: NetworkModel, options: TableOptions, wire: WireAddresses) -> None:
        self.model, self.options, self.wire = model, options, wire
        names = UniqueNames()
        self.sets = SetBuilder(model, wire, names)
        self.builder = TableBuilder(self.sets, names, options)
        self.names = names
        self._classes: dict[tuple[object, ...], str] = {}
        # The maps that lead to classes, by direction and family.
        self.maps: dict[tuple[Direction, int], str] = {}

    def is_judged(self, pod: Endpoint) -> bool:
        """Whether this table judges a pod: the pod is under policy and on the node that the table is for."""
        return pod.under_policy and self.options.node in (None, pod.node)

    def class_of(self, pod: Endpoint, direction: Direction) -> str:
        """Return the chain of a pod's class; empty if no policy applies."""
        stack = self.model.stack(pod, direction)
        key = stack, direction, pod.namespace
        chain = self._classes.get(key)
        if chain is None:
            lines = self._lines(stack, TierSubject(direction, pod.namespace, pod.namespace_labels))
            chain = self.builder.chain(str(direction), lines, _policy_names(stack)) if lines is not None else ""
            self._classes[key] = chain
        return chain

    def verdicts(self, pods: Iterable[Endpoint], direction: Direction) -> dict[Element, Attached]:
        """Map the addresses of pods to their classes. Of two pods with the same address, the first counts."""
        out: dict[Element, Attached] = {}
        for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name)):
            if self.is_judged(pod) and (chain := self.class_of(pod, direction)):
                for address in self.wire.addresses(pod):
                    out.setdefault(address, ChainVerdict(VerdictWord.GOTO, chain))
        return out

    def table(self) -> Table:
        """Compile the whole table."""
        sets = self._address_sets()
        chains: dict[str, RuleChain] = {}
        for direction in Direction:
            verdicts = self.verdicts(self.model.pods, direction)
            classes = {self.class_of(pod, direction) for pod in self.model.pods if self.is_judged(pod)}
            rules = []
            for family in FAMILIES:
                name = self.maps[direction, family] = self.names.name(f"{direction}{family}", repr(sorted(classes)))
                elements = {address: goto for address, goto in verdicts.items() if family_of(address) == family}
                sets[name] = NamedSet(SetKind.VERDICTS, family, elements | {EVERY_OTHER: ALLOW[direction]})
                rules.append(f"{subject_field(direction, family)} vmap @{name}")
            rules.append('drop comment "only while the map above is replaced"')
            chains[str(direction)] = plainly_named(rules, _DISPATCH[direction])
        builder = self.builder
        return Table(
            dict(sorted(builder.counters.items())),
            dict(sorted(sets.items())) | dict(sorted(self.sets.built.items())),
            dict(sorted(builder.chains.items())) | chains | base_chains(self.options),
        )

    def _lines(self, stack: Stack[TieredPolicy], subject: TierSubject) -> list[str] | None:
        """Compile a stack of tiers from its first tier down; None if it lets everything pass."""
        if not stack:
            return None
        builder, allow = self.builder, ALLOW[subject.direction]
        tier, below = stack[0], stack[1:]
        match tier.combining:
            case CombiningRule.UNION_WITH_ISOLATION:
                lines = union(builder, subject, tier.policies)
                if lines is not None:  # isolation lets nothing through to the tiers below
                    return lines
                watching, lower = shadow_union(builder, subject, tier.policies), self._lines(below, subject)
                if lower is None:
                    return [*watching, str(allow)] if watching else None
                return [*watching, *lower]
            case CombiningRule.FIRST_MATCH:
                lower = self._lines(below, subject)
                if lower is None:
                    return first_match(builder, subject, tier.policies, allow)
                passing = ChainVerdict(VerdictWord.GOTO, builder.chain("below", lower, _policy_names(below)))
                return first_match(builder, subject, tier.policies, passing) or [str(passing)]
            case CombiningRule.EVERY_ONE_MUST_ALLOW | CombiningRule.MOST_SPECIFIC | CombiningRule.AUTHORIZER_CHAIN:
                raise AssertionError(f"the network plane has no tier that combines by {tier.combining}")
            case _:
                assert_never(tier.combining)

    def _address_sets(self) -> dict[str, NamedSet]:
        """Build the sets that map addresses to names, and the sets of connections that were cut."""
        out: dict[str, NamedSet] = {}
        for family in FAMILIES:
            out[f"{CUT}{family}"] = NamedSet(SetKind.FLOWS, family, {}, "connections that a new policy forbids")
            for word, endpoints in (
                (PODS, [pod for pod in self.model.pods if pod.under_policy]),
                (NODES, [*self.model.nodes, *(pod for pod in self.model.pods if not pod.under_policy)]),
            ):
                elements: dict[Element, Attached] = {}
                for endpoint in sorted(endpoints, key=str):
                    for address in self.wire.addresses(endpoint):
                        if family_of(address) == family:
                            elements.setdefault(address, comment(str(endpoint)))
                out[f"{word}{family}"] = NamedSet(SetKind.ADDRESSES, family, elements)
        return out


def _policy_names(stack: Stack[TieredPolicy]) -> str:
    return ", ".join(str(policy.reference) for tier in stack for policy in tier.policies)


_SHOWN = 5
# What happens to a rule by domain name.
_BY_DOMAIN = {
    RuleAction.ALLOW: "it opens nothing",
    RuleAction.DENY: "it drops traffic to every address",
    RuleAction.PASS: "only what both the rest of the tier and the tiers below allow passes",
}


def compile_findings(model: NetworkModel, wire: WireAddresses) -> Iterator[Diagnostic]:
    """Report where the kernel cannot enforce a policy, or cannot do it yet."""
    for policy in model.policies:
        for direction in Direction:
            for rule in policy.rules(direction) or ():
                if names := domain_names(rule):
                    yield Diagnostic(
                        "TW605",
                        f"{rule} names domains ({', '.join(f'`{name}`' for name in names)}), which the kernel does not"
                        f" know: {_BY_DOMAIN[rule.action]}",
                        rule.resource.position(rule.path),
                        reference=rule.policy,
                    )
    pods = sorted((pod for pod in model.pods if pod.under_policy), key=lambda pod: (pod.namespace, pod.name))
    bare = [str(pod) for pod in pods if not wire.addresses(pod)]
    if bare:
        shown = ", ".join(f"`{name}`" for name in bare[:_SHOWN]) + (", …" if len(bare) > _SHOWN else "")
        pods_have = "1 pod has" if len(bare) == 1 else f"{len(bare)} pods have"
        yield Diagnostic("TW606", f"{pods_have} no address, so nothing can be enforced there yet: {shown}")
    first: dict[int, Endpoint] = {}
    for pod in pods:
        for address in pod.addresses:
            other = first.setdefault(address, pod)
            if other is not pod:
                shared = format_address(address)
                message = f"pods `{other}` and `{pod}` have the same address {shared}; it is judged as `{other}`"
                yield Diagnostic("TW607", message)
