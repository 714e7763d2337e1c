"""Classes of two models that line up: the endpoints of a class are alike both before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import PortRange
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.spaces import mask_of


def aligned(before: NetworkModel, after: NetworkModel) -> tuple[EndpointClasses, EndpointClasses]:
    """Return classes of two models that line up: two endpoints are alike if and only if their counterparts are."""
    old_attributes, new_attributes = RelevantAttributes(before), RelevantAttributes(after)
    names = old_attributes.named_ports | new_attributes.named_ports
    ports = old_attributes.port_ranges | new_attributes.port_ranges
    for pod in (*before.pods, *after.pods) if names else ():
        for name in names.intersection(pod.named_ports):
            ports |= {PortRange(protocol, number, number) for protocol, number in pod.named_ports[name]}
    blocks = [*old_attributes.blocks, *new_attributes.blocks]
    plain = EndpointClasses(after, None, blocks, ports, new_attributes)
    if before.endpoints is after.endpoints and new_attributes.covers_labels(old_attributes):
        return plain.of_model(before), plain
    old = EndpointClasses(
        before, lambda endpoint: _bit(plain, counterpart(after, endpoint)), blocks, ports, old_attributes
    )
    new = EndpointClasses(
        after, lambda endpoint: _bit(old, counterpart(before, endpoint)), blocks, ports, new_attributes
    )
    return old, new


def counterpart(other: NetworkModel, endpoint: Endpoint) -> Endpoint | None:
    """Return the endpoint of another model with the same name, or None."""
    if endpoint.kind == "pod":
        return other.pod(endpoint.namespace, endpoint.name)
    return other.node(endpoint.name) if endpoint.kind == "node" else None


def _bit(classes: EndpointClasses, endpoint: Endpoint | None) -> int | None:
    return None if endpoint is None else classes.of(endpoint).bit


class ClassTranslator:
    """Maps each class of one side to its counterpart on the other, by number; some classes are on one side only."""

    def __init__(self, old: EndpointClasses, new: EndpointClasses) -> None:
        outside = {new_class.spans: new_class.bit for new_class in new.all if new_class.spans}
        self.after: dict[int, int] = {}
        for old_class in old.all:
            spans = old_class.spans
            number = outside.get(spans) if spans else _bit(new, counterpart(new.model, old_class.representative))
            if number is not None:
                self.after[old_class.bit] = number
        self.before = {number: bit for bit, number in self.after.items()}
        # The classes that are on both sides, in numbers of the old one.
        self.common = mask_of(self.after)
        self.in_new = _translator(self.after.items())
        self.in_old = _translator(self.before.items())


def _translator(numbers: Iterable[tuple[int, int]]) -> Callable[[int], int]:
    """Return a function that gives the members of a set other numbers; members without one are left out."""
    runs = list(_runs(sorted(numbers)))
    known: dict[int, int] = {}

    def translate(mask: int) -> int:
        translated = known.get(mask)
        if translated is None:
            translated = 0
            for begin, length, target in runs:
                translated |= (mask >> begin & length) << target
            known[mask] = translated
        return translated

    return translate


def _runs(numbers: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield numbers that follow each other on both sides: the first, as many ones as there are, and the other first."""
    begin = target = count = 0
    for number, other in numbers:
        if count and (number, other) == (begin + count, target + count):
            count += 1
            continue
        if count:
            yield begin, (1 << count) - 1, target
        begin, target, count = number, other, 1
    if count:
        yield begin, (1 << count) - 1, target


def touched(old: EndpointClasses, new: EndpointClasses) -> tuple[int, int]:
    """Return the classes, of either side, of which some member is not on the other side as it is on this one."""
    return _changed(old, new.model), _changed(new, old.model)


def _changed(classes: EndpointClasses, other: NetworkModel) -> int:
    return mask_of(
        each.bit
        for each in classes.all
        if not each.spans and any(_is_changed(member, counterpart(other, member)) for member in each.members)
    )


def _is_changed(endpoint: Endpoint, other: Endpoint | None) -> bool:
    return other is None or (
        endpoint is not other
        and (
            endpoint.labels != other.labels
            or endpoint.namespace_labels != other.namespace_labels
            or endpoint.named_ports != other.named_ports
            or endpoint.addresses != other.addresses
            or endpoint.under_policy != other.under_policy
        )
    )
