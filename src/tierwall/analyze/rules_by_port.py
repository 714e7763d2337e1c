"""Finds the rules of many policies that may match a port, without a look at every rule."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from tierwall.network.model.endpoints import LAST_PORT
from tierwall.network.model.rules import Direction, NamedPort, NetworkRule, PortRange, TieredPolicy


class RulesByPort:
    """The rules of some policies for one direction, kept up to date as policies come and go."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._next = count()
        self._numbers: dict[TieredPolicy, list[int]] = {}
        self._rules: dict[int, tuple[TieredPolicy, NetworkRule]] = {}
        # The numbers of rules by their ports, some of rules that are gone; and those that are asked at every port.
        self._spans: dict[str, list[tuple[int, int, int]]] = {}
        self._others: dict[int, None] = {}
        self._is_sorted = True

    def add(self, policy: TieredPolicy) -> None:
        """Add the rules of a policy."""
        numbers = self._numbers[policy] = []
        for rule in policy.rules(self._direction) or ():
            number = next(self._next)
            numbers.append(number)
            self._rules[number] = policy, rule
            if rule.ports is None or any(isinstance(port, NamedPort) for port in rule.ports):
                self._others[number] = None
            for port in rule.ports or ():
                if isinstance(port, PortRange):
                    self._spans.setdefault(port.protocol, []).append((port.first, port.last, number))
        self._is_sorted = False

    def remove(self, policy: TieredPolicy) -> None:
        """Remove the rules of a policy."""
        for number in self._numbers.pop(policy):
            del self._rules[number]
            self._others.pop(number, None)
        self._is_sorted = False

    def at(self, port: PortRange) -> Iterator[tuple[TieredPolicy, NetworkRule]]:
        """Yield the rules that match a port, or may match it for some destination, each with its policy."""
        if not self._is_sorted:
            self._spans = {
                protocol: sorted(span for span in spans if span[2] in self._rules)
                for protocol, spans in self._spans.items()
            }
            self._is_sorted = True
        spans, wanted = self._spans.get(port.protocol, []), port.first
        end = bisect_right(spans, (wanted, LAST_PORT + 1, 0))
        numbers = dict.fromkeys(self._others)
        numbers |= dict.fromkeys([number for _, last, number in spans[:end] if last >= wanted])
        return map(self._rules.__getitem__, numbers)
