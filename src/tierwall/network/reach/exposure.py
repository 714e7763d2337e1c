"""Exposure: what pods that do not exist yet could reach each workload, and be reached by it, said by label.

The stand-ins of `hypothetical` are asked as if they were there; their rows and columns of the matrix are the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.network.hypothetical import with_stand_ins
from tierwall.network.model.model import model
from tierwall.network.reach.classes import Classes, bits, mask_of
from tierwall.network.reach.listing import Entry, Flows
from tierwall.network.reach.matrix import matrix
from tierwall.network.reach.naming import Named, Names
from tierwall.resources.snapshot import Snapshot


def exposure(snapshot: Snapshot, why: bool = False) -> Iterator[Entry]:
    """Connections between the pods that exist and sorts of pods that may come, both ways."""
    hypothetical = with_stand_ins(snapshot)
    sorts = hypothetical.sorts
    this = model(hypothetical.snapshot)
    classes = Classes(this, lambda end: sorts.get((end.namespace, end.name)))
    stand_ins = {
        one.bit: sort for one in classes.all if (sort := sorts.get((one.one.namespace, one.one.name))) is not None
    }
    to_come = mask_of(sorted(stand_ins))
    real = classes.under_policy & ~to_come
    names = Names(classes)

    def named(mask: int) -> Named:
        some = mask & to_come
        return Named((), (), tuple(str(stand_ins[bit]) for bit in bits(some))) if some else names.spelled(mask)

    for sources, destinations in ((to_come, real), (real, to_come)):
        found = matrix(classes, why=why, sources=sources, destinations=destinations)
        flows = Flows(found.ports, why)
        for group in found.groups:
            for those, passages in group.sources:
                yield Entry(named(those), named(group.destinations), flows.of(passages))
