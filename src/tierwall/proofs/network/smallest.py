"""Narrows what a solver found to the one smallest connection that refutes a claim, whichever solver found it.

Fewest new objects first, then what exists by name, then the fewest and shortest labels. A choice is kept where
something still refutes the claim beside those before it, so the result depends on questions alone. Pods have an address
where one refutes the claim with an address, too: "Deny 0.0.0.0/0" does not stop a pod that has none yet, which is true
and rarely what people ask about. An address that makes no difference is left out in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.solver import CircuitSolver
from tierwall.network.model.endpoints import LAST_PORT, NAMESPACE_NAME
from tierwall.network.model.rules import PortRange
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.end import End, Family
from tierwall.proofs.network.vocabulary import ABSENT, OTHER, AddressPieces
from tierwall.values.addresses import Span, parse_cidr

# Ports and addresses that readers expect to see in examples.
_USUAL_PORTS = (80, 443, 8080)
INSIDE: tuple[Span, ...] = tuple(span for text in ("10.0.0.0/8", "fd00::/8") if (span := parse_cidr(text)))
OUTSIDE: tuple[Span, ...] = tuple(span for text in ("203.0.113.0/24", "2001:db8::/32") if (span := parse_cidr(text)))


def usual_ranges(sort: str) -> tuple[Span, ...]:
    """Return the addresses that readers expect of an end: those for examples outside, private ones inside."""
    return OUTSIDE if sort == "outside" else INSIDE


class ChosenEnd(Struct, frozen=True):
    """One end: the number of a group of what exists, or something new, with atoms of labels."""

    # `pod`, `host pod`, `node` or `outside`; `existing` with the number of its group.
    sort: str
    group: int | None
    namespace: str
    namespace_labels: dict[str, str]
    labels: dict[str, str]
    node_labels: dict[str, str]
    pieces: tuple[int, ...]
    # The group of the node that a host-network pod runs on.
    on_node: int | None
    port_names: tuple[str, ...]


class ChosenConnection(Struct, frozen=True):
    """The smallest connection. `equal` are the keys of namespaces that have the same value, other than named ones."""

    source: ChosenEnd
    to: ChosenEnd
    port: PortRange
    same_namespace: bool
    same_pod: bool
    equal: frozenset[str]
    # Whether a pod has no address because with one the claim would hold.
    needs_no_address: bool


class _Choices:
    """The literals that were chosen so far, and a model that has all of them: the solver's last one.

    Nothing is added to the circuit here, so that a solver keeps what follows from the choices before.
    """

    def __init__(self, solver: CircuitSolver, chosen: Sequence[int]) -> None:
        self._solver = solver
        self.chosen = list(chosen)
        if not solver.possible(self.chosen):
            raise ValueError("only what is possible has a smallest model")

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the model."""
        return self._solver.is_true(literal)

    def prefer(self, literal: int) -> bool:
        """Choose a literal if that is possible, else its opposite; return which."""
        possible = self.prefer_all((literal,))
        if not possible:
            self.chosen.append(-literal)
        return possible

    def prefer_all(self, literals: Sequence[int]) -> bool:
        """Choose literals if they are possible together; return whether they are."""
        chosen = [*self.chosen, *literals]
        possible = all(map(self.is_true, literals)) or bool(self._solver.possible(chosen))
        if possible:
            self.chosen = chosen
        return possible

    def first(self, options: Sequence[int]) -> int:
        """Choose the first possible one of some options, of which just one is true, by halving; return its place."""
        low, high = 0, self._place(options)
        while low < high:
            middle = (low + high) // 2
            # It is one of the first ones if it is none of the others.
            others = [-option for option in reversed(options[middle + 1 :])]
            if self._solver.possible([*self.chosen, *others]):
                high = self._place(options)
            else:
                low = middle + 1
        self.chosen.append(options[low])
        return low

    def replace(self, literals: Sequence[int]) -> bool:
        """Choose some literals in place of all before if they are possible; return whether they are."""
        possible = bool(self._solver.possible(literals))
        if possible:
            self.chosen = list(literals)
        return possible

    def _place(self, options: Sequence[int]) -> int:
        """Return which option is true in the model."""
        return next(place for place, option in enumerate(options) if self.is_true(option))


def smallest(connection: SymbolicConnection, solver: CircuitSolver, goal: Sequence[int]) -> ChosenConnection:
    """Return the smallest connection that meets a goal, which must be possible."""
    circuit, ends = connection.circuit, (connection.source, connection.to)
    has_address = [circuit.any_of((-end.may_get_address, end.has_new_address)) for end in ends]
    limits = list(_object_limits(connection))
    solver.know([*has_address, *limits])
    choices = _Choices(solver, goal)
    begin = len(choices.chosen)
    addressed = list(map(choices.prefer, has_address))
    after = len(choices.chosen)
    for limit in limits:
        if choices.prefer(limit):
            break
    sorts = [_choose_sort(choices, end) for end in ends]
    same_pod = not choices.prefer(-connection.same_pod)
    names = [_choose_label(choices, end, "namespaces", NAMESPACE_NAME) for end in ends]
    same_namespace = choices.prefer(connection.same_namespace)
    namespace_labels = [_choose_labels(choices, end, "namespaces") for end in ends]
    equal = frozenset(key for key, literal in connection.other_equal.items() if not choices.prefer(-literal))
    labels = [_choose_labels(choices, end, "pods") for end in ends]
    nodes = [
        _choose_labels(choices, end, "nodes") if sort in ("node", "host pod") else {}
        for end, (sort, _) in zip(ends, sorts, strict=True)
    ]
    port = _choose_port(choices, connection)
    port_names = tuple(name for name, literal in connection.to.new_name.items() if not choices.prefer(-literal))
    needs_none = _drop_addresses(choices, ends, begin, after) and not all(addressed)
    chosen = []
    for number, end in enumerate(ends):
        sort, group = sorts[number]
        pieces = _choose_pieces(choices, connection.vocabulary.addresses, end, sort)
        on_node = next((place for place, literal in end.on_node.items() if choices.is_true(literal)), None)
        chosen.append(
            ChosenEnd(
                sort,
                group,
                names[number],
                namespace_labels[number],
                labels[number],
                nodes[number],
                pieces,
                on_node if sort == "host pod" else None,
                port_names if end is connection.to else (),
            )
        )
    return ChosenConnection(chosen[0], chosen[1], port, same_namespace, same_pod, equal, needs_none)


def _object_limits(connection: SymbolicConnection) -> Iterable[int]:
    """Yield literals that say that at most none, one, two … objects are new."""
    circuit, ends = connection.circuit, (connection.source, connection.to)
    new = [-circuit.any_of([end.outside, *end.group]) for end in ends]
    labelled = []
    for end in ends:
        absent = [atoms[ABSENT] for key, atoms in end.labels["namespaces"].items() if key != NAMESPACE_NAME]
        is_pod = end.is_pod(True)
        labelled.append(circuit.all_of((is_pod, -end.declared, -circuit.all_of(absent))))
    objects = [*new, labelled[0], circuit.all_of((labelled[1], -connection.same_namespace))]
    for limit in range(len(objects)):
        at_least = [TRUE, *[FALSE] * (limit + 1)]
        for literal in objects:
            for number in range(limit + 1, 0, -1):
                more = circuit.all_of((at_least[number - 1], literal))
                at_least[number] = circuit.any_of((at_least[number], more))
        yield -at_least[limit + 1]


def _choose_sort(choices: _Choices, end: End) -> tuple[str, int | None]:
    pods = [number for number, group in enumerate(end.groups) if group.kind == "pod"]
    nodes = [number for number, group in enumerate(end.groups) if group.kind != "pod"]
    sorts: list[tuple[str, int | None]] = [
        *(("existing", number) for number in pods),
        ("outside", None),
        *(("existing", number) for number in nodes),
        ("pod", None),
        ("node", None),
        ("host pod", None),
    ]
    literals = {"outside": end.outside, "pod": end.new_pod, "node": end.new_node, "host pod": end.new_host_pod}
    options = [literals[sort] if number is None else end.group[number] for sort, number in sorts]
    return sorts[choices.first(options)]


def _choose_labels(choices: _Choices, end: End, family: Family) -> dict[str, str]:
    """Choose the labels of a family, and return those that are present."""
    chosen = {key: _choose_label(choices, end, family, key) for key in end.labels[family] if key != NAMESPACE_NAME}
    return {key: value for key, value in chosen.items() if value != ABSENT}


def _choose_label(choices: _Choices, end: End, family: Family, key: str) -> str:
    atoms = end.labels[family][key]
    order = list(atoms)
    if key == NAMESPACE_NAME:
        order = [*(name for name in order if name != OTHER), OTHER]
    return order[choices.first([atoms[value] for value in order])]


def _choose_port(choices: _Choices, connection: SymbolicConnection) -> PortRange:
    """Choose a protocol in the usual order, then a port that is named alone, a usual port, or any."""
    ranges = [next(connection.vocabulary.ports.ranges(1 << piece)) for piece in range(len(connection.ports))]
    protocols = {ports.protocol: None for ports in ranges}

    def preference(piece: int) -> tuple[int, int, int]:
        protocol, first, last = ranges[piece]
        usual = next((place for place, port in enumerate(_USUAL_PORTS) if first <= port <= last), len(_USUAL_PORTS))
        return list(protocols).index(protocol), 0 if first == last else 1, usual

    order = sorted(range(len(ranges)), key=preference)
    protocol, first, last = ranges[order[choices.first([connection.ports[piece] for piece in order])]]
    port = next((usual for usual in _USUAL_PORTS if first <= usual <= last), min(first, LAST_PORT))
    return PortRange(protocol, port, port)


def _drop_addresses(choices: _Choices, ends: Sequence[End], begin: int, after: int) -> bool:
    """Leave out the addresses of pods that make no difference; return whether some pod has none in the end."""
    wished = choices.chosen[begin:after]
    for without in ((0, 1), (0,), (1,)):
        rest = [literal for number, literal in enumerate(wished) if number not in without]
        none = [-ends[number].has_new_address for number in without if not choices.is_true(ends[number].outside)]
        literals = [*choices.chosen[:begin], *rest, *choices.chosen[after:], *none]
        if choices.replace(literals):
            return True
    return False


def _choose_pieces(choices: _Choices, addresses: AddressPieces, end: End, sort: str) -> tuple[int, ...]:
    """Choose the pieces of new addresses: the fewest, usual ranges first, IPv4 before IPv6."""
    usual = usual_ranges(sort)

    def preference(piece: int) -> tuple[bool, bool, Span]:
        spans = addresses.spans[piece]
        is_usual = any(span.low <= high and low <= span.high for low, high in usual for span in spans)
        return addresses.is_ipv6[piece], not is_usual, spans[0]

    order = sorted(range(len(addresses.spans)), key=preference)
    if sort == "node":
        return tuple(piece for piece in reversed(order) if not choices.prefer(-end.node_address[piece]))
    chosen = []
    for ipv6 in (True, False):
        pieces = [piece for piece in order if addresses.is_ipv6[piece] is ipv6]
        literals = [end.new_address[piece] for piece in pieces]
        if not choices.prefer_all([-literal for literal in literals]):
            chosen.append(pieces[choices.first(literals)])
    return tuple(chosen)
