"""The classes of a snapshot as it is, refined by nothing, and their rows: checks and comparisons share them.

A world is compared with many edits of it, and an edit of a policy seldom changes which endpoints policies tell apart.
"""

from __future__ import annotations

from tierwall.network.model.model import network_model
from tierwall.network.model.rules import Direction
from tierwall.network.reach.classes import EndpointClasses, RelevantAttributes
from tierwall.network.reach.membership import Membership
from tierwall.network.reach.rows import Rows
from tierwall.resources.once import per_snapshot, provide
from tierwall.resources.snapshot import Snapshot


@per_snapshot
def relevant_attributes(snapshot: Snapshot) -> RelevantAttributes:
    """Return the attributes that the policies of a snapshot look at."""
    return RelevantAttributes(network_model(snapshot))


@per_snapshot
def own_rows(snapshot: Snapshot) -> tuple[Rows, Rows]:
    """Return the rows of a snapshot's own classes, brief and explained."""
    return _rows(EndpointClasses(network_model(snapshot), attributes=relevant_attributes(snapshot)))


def own_classes(snapshot: Snapshot) -> EndpointClasses:
    """Return a snapshot's own classes."""
    return own_rows(snapshot)[0].classes


def compute_own_rows(snapshot: Snapshot) -> None:
    """Compute every row of a snapshot ahead: the first edit that is compared with it needs most of them."""
    for rows in own_rows(snapshot):
        for endpoint_class in rows.classes.all:
            for direction in Direction:
                rows.row(endpoint_class, direction)


def provide_own_rows(before: Snapshot, after: Snapshot) -> None:
    """Derive the rows of a snapshot from those of an earlier one, if both have the same classes."""
    model = network_model(after)
    if network_model(before).endpoints is not model.endpoints:
        return
    old, new = relevant_attributes(before), relevant_attributes(after)
    if old.covers(new) and new.covers(old):
        rows = own_rows(before)
        classes = rows[0].classes.of_model(model)
        # What policies match is not kept with the earlier rows: these may be those of many comparisons.
        membership = Membership(classes)
        provide((rows[0].of_model(membership), rows[1].of_model(membership)), own_rows, after)


def provide_larger_classes(before: Snapshot, after: Snapshot) -> None:
    """Derive the classes of a snapshot from one that lacks some of its pods and namespaces and is otherwise the same.

    What policies look at of the other pods stays the same: no name of a new namespace is one of theirs.
    """
    model = network_model(after)
    attributes = relevant_attributes(before).of_larger_model(model)
    provide(attributes, relevant_attributes, after)
    classes = EndpointClasses(model, attributes=attributes, known=own_classes(before))
    provide(_rows(classes), own_rows, after)


def _rows(classes: EndpointClasses) -> tuple[Rows, Rows]:
    membership = Membership(classes)
    return Rows(classes, False, membership), Rows(classes, True, membership)
