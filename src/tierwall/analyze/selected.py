"""Finds what the selectors of network policies select: classes of a model, or pods of a followed cluster.

A model tells the pods apart that any policy tells apart, which takes long where policies look at hundreds of labels. To
know what one policy selects of a followed cluster takes a few operations on sets of pods for each of its selectors.
"""

from __future__ import annotations

from collections.abc import Collection

from tierwall.analyze.network_index import NetworkIndex
from tierwall.core.labels import Selector
from tierwall.network.model.endpoints import Endpoint, namespace_labels
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import NamedPort, Peer, PodPeer, Related, TieredPolicy
from tierwall.network.reach.endpoint_sets import EndpointSets
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.pod_index import PodIndex
from tierwall.network.reach.spaces import union


class SelectedClasses:
    """The classes of a model that selectors select."""

    def __init__(self, model: NetworkModel, membership: Membership) -> None:
        self._model, self._membership = model, membership
        self._classes = membership.classes
        self.namespaces = model.namespaces
        self.populated = {pod.namespace for pod in model.pods}
        self.has_nodes = bool(model.nodes)
        self.under_policy = self._classes.under_policy

    def subjects(self, policy: TieredPolicy) -> int:
        """Return the classes of pods that a policy selects."""
        return self._membership.subjects(policy.namespaces, policy.pods)

    def matching(self, peer: Peer, subjects: int) -> int:
        """Return the classes that a peer of a rule selects for some of its subjects."""
        if not (isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related)):
            # Any subject stands for all of them.
            subjects &= -subjects
        members = self._classes.members(subjects)
        return union(self._membership.matching(peer, member.representative) for member in members)

    def namespaces_selected(self, selector: Selector) -> Collection[str]:
        """Return the namespaces that a selector selects."""
        return list(self._model.namespaces_selected(selector))

    def have_port(self, pods: int, port: NamedPort) -> bool:
        """Whether one of some classes has a port by a name that policies mention."""
        return any(_has(member.representative, port) for member in self._classes.members(pods))

    def port_names(self, pods: int) -> frozenset[str]:
        """Return the names of all ports of pods. Pods of one class may differ in names that no policy mentions."""
        members = self._classes.members(pods)
        return frozenset(name for member in members for pod in member.members for name in pod.named_ports)


class SelectedPods:
    """The pods of a followed cluster that selectors of one policy select."""

    def __init__(self, index: NetworkIndex, policy: TieredPolicy) -> None:
        self._pods = index.pods
        self._sets = EndpointSets(index.pods, PodIndex(), index.blocks((policy,)))
        self.namespaces = index.pods.namespaces
        home = policy.resource.namespace
        if home and home not in self.namespaces:
            self.namespaces = {**self.namespaces, home: namespace_labels(home, None)}
        self.populated = index.pods.populated
        self.has_nodes = bool(index.pods.nodes)
        self.under_policy = index.pods.under_policy
        self._known_homes: dict[int, frozenset[str]] = {}

    def subjects(self, policy: TieredPolicy) -> int:
        """Return the pods that a policy selects."""
        return self._sets.subjects(policy)

    def matching(self, peer: Peer, subjects: int) -> int:
        """Return the ends that a peer of a rule selects for some of its subjects."""
        return self._sets.selected_by(peer, self._homes(subjects))

    def _homes(self, pods: int) -> frozenset[str]:
        """Return the namespaces of some pods."""
        known = self._known_homes.get(pods)
        if known is None:
            inside = (name for name in self.populated if pods & self._pods.inside((name,)))
            known = self._known_homes[pods] = frozenset(inside)
        return known

    def namespaces_selected(self, selector: Selector) -> Collection[str]:
        """Return the namespaces that a selector selects."""
        if self.namespaces is self._pods.namespaces:
            return self._pods.names(selector)
        return [name for name, labels in self.namespaces.items() if selector.matches(labels)]

    def have_port(self, pods: int, port: NamedPort) -> bool:
        """Whether one of some pods has a port by a name."""
        return bool(pods & self._pods.having_named_port(port.name, port.protocol))

    def port_names(self, pods: int) -> frozenset[str]:
        """Return the names of all ports of some pods."""
        return self._pods.port_names(pods)


def _has(pod: Endpoint, port: NamedPort) -> bool:
    return any(port.protocol in ("", protocol) for protocol, _ in pod.named_ports.get(port.name, ()))
