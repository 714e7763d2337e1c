"""Reads with selectors that a change opens: whether there may be one (docs/prove.md#changes).

A list or watch with selectors is allowed if the conditions allow every object that they select. If the conditions of
one side allow no object that those of the other side do not, then no selectors imply them there alone. So it is enough
to look for one object. A deletecollection is allowed like this, too, and otherwise object by object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from tierwall.api.algebra.request import READ_VERBS
from tierwall.api.question import ApiQuestion, ask, widest
from tierwall.core.labels import Requirement
from tierwall.core.verdict import Verdict
from tierwall.logic.circuit import FALSE
from tierwall.proofs.api.chain import ChainCircuit, CircuitVerdict
from tierwall.proofs.api.request import UnknownRequest
from tierwall.proofs.api.seen_object import SeenObjects
from tierwall.resources.snapshot import Snapshot


def opened_reads(
    request: UnknownRequest, chains: Sequence[ChainCircuit], verdicts: Sequence[CircuitVerdict]
) -> list[list[int]]:
    """Return literals that are all true of a read that the first chain may allow and the second one may not.

    Each list is one way in which that may be; where none is possible, the first allows nothing more.
    """
    any_of, all_of, choose = request.circuit.any_of, request.circuit.all_of, request.circuit.choose
    selects = any_of(verdict.selects for verdict in verdicts)
    if selects == FALSE:
        return []
    objects, is_read = SeenObjects(request), request.one_of("verb", READ_VERBS)
    by_selectors, one_by_one = [], []
    for chain, verdict in zip(chains, verdicts, strict=True):
        unopposed = all_of((chain.is_unopposed(objects.deleted), chain.shows(objects.named)))
        deleted = any_of((chain.shows(objects.deleted), unopposed))
        allowed = any_of((objects.nothing, choose(is_read, chain.shows(objects.read), deleted)))
        shown = all_of((verdict.may_allow, allowed))
        by_selectors.append(choose(verdict.selects, shown, verdict.allows))
        after_all = chain.shows(objects.deleted, is_strict=False)
        one_by_one.append(choose(verdict.selects, after_all, verdict.allows))
    return [
        [selects, by_selectors[0], -by_selectors[1]],
        [selects, -is_read, one_by_one[0], -one_by_one[1]],
    ]


def selecting_read(request: ApiQuestion, gained: Snapshot, kept: Snapshot) -> ApiQuestion | None:
    """Return a request like this one with selectors that one side allows and the other refuses, if there are any.

    Those that are as wide as one side allows are the likeliest.
    """
    bare = replace(
        request,
        label_selector=None,
        field_selector=None,
        operation=UNSET,
        object=UNSET,
        old_object=UNSET,
        options=UNSET,
        namespace_object=UNSET,
    )
    for selector in widest(gained, bare).selectors:
        asked = replace(
            bare, label_selector=_written(selector.labels) or None, field_selector=_written(selector.fields) or None
        )
        if ask(gained, asked).verdict is Verdict.ALLOW and ask(kept, asked).verdict is not Verdict.ALLOW:
            return asked
    return None


def _written(requirements: Iterable[Requirement]) -> list[dict[str, Any]]:
    return [
        {"key": each.key, "operator": each.operator, **({"values": list(each.values)} if each.values else {})}
        for each in requirements
    ]
