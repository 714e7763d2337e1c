"""Finds pods that a change opens to addresses outside the cluster (TW217).

Only NetworkPolicies of these pods matter: rules of administrators' policies cannot match connections from outside. Of
what the policy lets in to a pod, whatever was let in before is taken away. The answer holds for all pods that have
fewer of the rules that let it in anyway, or more of them: so thousands of policies that differ take few looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from tierwall.analyze.network_cells import TooManyCells
from tierwall.analyze.network_index import NetworkIndex, is_large, kind_of_change
from tierwall.analyze.outside_rules import Box, OutsideRange, OutsideRule, OutsideSpace, outside_rules, without
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.words import join_names
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.policies import NETWORK_POLICY, is_shadow, read_policy
from tierwall.network.model.rules import NamedPort, PortRange, TieredPolicy
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.naming import OUTSIDE, EndpointNames
from tierwall.network.reach.pod_index import PodIndex
from tierwall.network.reach.spaces import mask_of, union
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Block, Span

OPENED = "TW217"
EVERYTHING = (OutsideRule(),)
# So many parts of what is opened of a pod are told.
MAX_BOXES = 100


class _Permitted(NamedTuple):
    """Rules that let something in to some pods."""

    pods: int
    rules: tuple[OutsideRule, ...]


class _Opened(NamedTuple):
    """A pod that is opened, and the ports and addresses that reach it now."""

    space: OutsideSpace
    boxes: Sequence[Box]


def opened_by_change(
    index: NetworkIndex, old: Resource | None, new: Resource | None, until: float = inf
) -> Iterator[Diagnostic]:
    """Find pods that a change of a NetworkPolicy opens to the outside.

    The search ends at `until` (`time.thread_time`). TooManyCells if nothing was found by then, or if the policy was too
    large to look at.
    """
    changed = new or old
    if changed is None or kind_of_change(old, new) != NETWORK_POLICY:
        return
    before, after = (_version(index, resource) for resource in (old, new))
    if after is not None and is_large(after):
        # Whoever compares it with others says so.
        return
    if before is not None and is_large(before):
        raise TooManyCells
    search = OpenedSearch(index, changed.namespace, before, after, until)
    search.search()
    if search.opened:
        yield _finding(index.pods, search, changed)
    elif not search.is_whole:
        raise TooManyCells


def _version(index: NetworkIndex, resource: Resource | None) -> TieredPolicy | None:
    """Return a version of the policy as far as it counts for connections from outside."""
    if resource is None or is_shadow(resource):
        return None
    policy = read_policy(index.snapshot, resource)
    return policy if policy.ingress is not None else None


class OpenedSearch:
    """The search for pods that one change opens."""

    def __init__(
        self, index: NetworkIndex, namespace: str, before: TieredPolicy | None, after: TieredPolicy | None, until: float
    ) -> None:
        self._index, self._pods, self._until = index, index.pods, until
        self._old, self._new = self._permitted(before), self._permitted(after)
        touched = self._old.pods | self._new.pods
        changed = {policy.reference for policy in (before, after) if policy is not None}
        self._others = [
            _Permitted(pods, index.outside_rules(other))
            for reference, other in index.local.get(namespace, {}).items()
            if reference not in changed and other.ingress is not None
            if (pods := self._pods.labelled(other.pods) & touched)
        ]
        # The pods that are opened, and what it opens of the first one.
        self.opened = 0
        self.example: _Opened | None = None
        # Whether there was time for all pods.
        self.is_whole = True

    def _permitted(self, policy: TieredPolicy | None) -> _Permitted:
        if policy is None:
            return _Permitted(0, ())
        return _Permitted(self._pods.selected(policy.namespaces, policy.pods), outside_rules(policy))

    def search(self) -> None:
        """Look at all pods that may be opened."""
        isolated = union(other.pods for other in self._others)
        # Nothing isolates them any more.
        self._compare(self._old.pods & ~(self._new.pods | isolated), EVERYTHING, [self._old])
        # A pod that is isolated for the first time is not opened by what is still let in.
        candidates = self._new.pods & (self._old.pods | isolated)
        if {rule.facts for rule in self._new.rules} <= {rule.facts for rule in self._old.rules}:
            candidates &= ~self._old.pods
        self._compare(candidates, self._new.rules, [self._old, *self._others])

    def _compare(self, pods: int, wanted: Sequence[OutsideRule], known: Iterable[_Permitted]) -> None:
        """Find out which of some pods let in more than they did: `known` is what was let in."""
        if not pods or not wanted:
            return
        wide = OutsideRange(wanted)
        known = [
            _Permitted(other.pods & pods, rules)
            for other in known
            if other.pods & pods and (rules := tuple(filter(wide.meets, other.rules)))
        ]
        every = [*wanted, *(rule for group in known for rule in group.rules)]
        numbers = (PortRange(*pair, pair[1]) for name in _names(every) for pair in self._pods.numbers_of(name))
        space = OutsideSpace(every, numbers)
        while pods:
            first = (pods & -pods).bit_length() - 1
            here = [group for group in known if group.pods >> first & 1]
            boxes = self._left(space, first, wanted, here)
            if boxes is None:
                self.is_whole = False
                return
            alike = pods
            for name in _names([*wanted, *(rule for group in here for rule in group.rules)]):
                alike &= self._pods.alike_by_port(name, first)
            if boxes:
                # Pods that have fewer of these rules are opened, too.
                alike &= ~union(group.pods for group in known if not group.pods >> first & 1)
                self.opened |= alike
                self.example = self.example or _Opened(space, boxes)
            else:
                for group in here:
                    alike &= group.pods
            pods &= ~alike

    def _left(
        self, space: OutsideSpace, pod: int, wanted: Sequence[OutsideRule], known: Iterable[_Permitted]
    ) -> list[Box] | None:
        """Return what rules let in to a pod and others do not; None if the time is over."""
        if time.thread_time() > self._until:
            return None
        endpoint = self._pods.endpoint(pod)
        boxes: list[Box] = []
        for rule in wanted:
            more = [space.box(rule, endpoint)]
            for box in boxes:
                more = list(without(more, box))
            boxes += more
        boxes = [box for box in boxes if all(box)]
        for group in known:
            if time.thread_time() > self._until:
                return None
            for rule in group.rules:
                if boxes:
                    boxes = list(without(boxes, space.box(rule, endpoint)))
        return boxes


def _names(rules: Iterable[OutsideRule]) -> set[str]:
    """Return the names of ports that rules mention."""
    return {port.name for rule in rules for port in rule.ports or () if isinstance(port, NamedPort)}


def _finding(pods: PodIndex, search: OpenedSearch, changed: Resource) -> Diagnostic:
    """Return the finding, with the widest part of what is opened of one pod."""
    assert search.example is not None
    space, boxes = search.example
    # The addresses that a set of ports is opened to.
    parts = [(0, space.addresses.everything)]
    for ports, addresses in boxes[:MAX_BOXES]:
        parts = [
            part
            for known, whom in parts
            for part in ((known | ports, whom & addresses), (known, whom & ~addresses))
            if part[1]
        ]
    widest = max((ports for ports, _ in parts), key=int.bit_count)
    spans = space.addresses.spans(union(addresses for ports, addresses in parts if ports == widest))
    shown = space.ports.show(widest)
    names = join_names([f"{namespace}/{name}" for namespace, name in pods.names_of(search.opened)], 2)
    if not search.is_whole:
        names = f"at least {names}"
    message = f"{changed.reference} opens {names} to {_where(spans)} on {'all ports' if shown == 'all' else shown}"
    return changed.diagnostic(OPENED, message, ("spec",), places=("ingress",))


def _where(spans: Sequence[Span]) -> str:
    """Name addresses outside the cluster."""
    classes = EndpointClasses(NetworkModel(Snapshot({}), policies=()), blocks=map(Block, spans))
    inside = (each.bit for each in classes.all if classes.space.signature(each.spans[0].low))
    addresses = str(EndpointNames(classes).spelled(mask_of(inside)))
    kind, _, rest = addresses.partition(" ")
    return f"{rest} addresses outside the cluster".strip() if kind == OUTSIDE else f"{addresses}, outside the cluster,"
