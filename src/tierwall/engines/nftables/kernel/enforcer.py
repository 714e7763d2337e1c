"""Keeps the table in the kernel as it was applied: in step with policies, pods and interfaces, whoever else writes it.

A program that loads its own rules often begins with `flush ruleset`, which removes all tables. Nothing of ours would
decide any more, and nobody would notice. So an enforcer that watches hears of every change of the table. As long as
only its own are heard of, it knows what the kernel holds and need not read it before each transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from tierwall.engines.nftables.kernel.apply import apply, replace
from tierwall.engines.nftables.kernel.elements import send
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.table_watch import TableChanges, TableWatch
from tierwall.engines.nftables.table.compile import CompiledTable
from tierwall.engines.nftables.table.interfaces import InterfaceCompiler, KnownInterfaces, guard_changes
from tierwall.engines.nftables.table.pods import FollowedTable, PodChange, PodStep
from tierwall.engines.nftables.table.table import ElementChange, Table
from tierwall.network.model.endpoints import Endpoint


class TableState(Enum):
    """What is known about the table in the kernel."""

    AS_APPLIED = auto()
    # Nobody watches, or the kernel lost messages: the table must be read before it is changed.
    UNKNOWN = auto()
    # Somebody else has changed it.
    CHANGED = auto()


class Enforcer:
    """Keeps the kernel in step with policies, pods and their interfaces, and remembers the table it applied."""

    def __init__(self) -> None:
        self._table: FollowedTable | None = None
        self._guard: InterfaceCompiler | None = None
        # The interfaces that the table in the kernel knows; None if it has no guard.
        self._known: KnownInterfaces | None = None
        self._watch: TableWatch | None = None
        self._state = TableState.UNKNOWN

    def watch(self) -> int:
        """Hear of changes by others from now on; return the file descriptor that becomes readable then."""
        if self._watch is None:
            try:
                self._watch = TableWatch()
            except OSError:
                # Without it everything else works, only that others go unnoticed.
                return -1
        return self._watch.fileno()

    def close(self) -> None:
        """Stop hearing of changes. The table stays in force."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    @property
    def is_as_applied(self) -> bool:
        """Whether the kernel still holds what was applied, as far as anybody has told."""
        return self._watch is None or self._table is None or self._state is TableState.AS_APPLIED

    def judged_pods(self, step: PodStep | None = None) -> Iterable[Endpoint]:
        """Return the pods that the table judges, after a step of it if one is given."""
        return self._table.judged_pods(step) if self._table is not None else ()

    @property
    def closes_unknown_pods(self) -> bool:
        """Whether pod interfaces without a known pod are closed."""
        return self._known is not None and self._guard is not None and self._guard.closed

    def put(self, compiled: CompiledTable, known: KnownInterfaces | None = None) -> bool:
        """Enforce a compiled table; False if the kernel held it already. With `known`, interfaces are guarded."""
        guard = InterfaceCompiler(compiled.compiler) if known is not None else None
        with self._writing():
            changed = self._bring(_whole(compiled.table, guard, known))
        self._table, self._guard, self._known = FollowedTable(compiled), guard, known
        return changed

    def restore(self) -> bool:
        """Bring the kernel back to the table that was applied; False if it holds it after all.

        After an InputError the kernel is as others have left it.
        """
        assert self._table is not None, "nothing was applied"
        with self._writing():
            return self._bring(_whole(self._table.table, self._guard, self._known))

    def step(self, pods: list[PodChange]) -> PodStep | None:
        """Work out the effect of changed pods, without applying it; None if the table must be compiled anew."""
        return self._table.step(pods) if self._table is not None else None

    def take(self, step: PodStep, known: KnownInterfaces | None = None) -> None:
        """Follow changed pods by elements alone. After an InputError, the last good table is in force."""
        assert self._table is not None, "there is no step without a table"
        self._change(step.elements, step.table, known)
        self._table.take(step)

    def bind(self, known: KnownInterfaces | None) -> bool:
        """Follow changed interfaces; False if they are the same. After an InputError, nothing has changed."""
        assert self._table is not None, "interfaces are followed only after a first table"
        if known == self._known:
            return False
        self._change([], self._table.table, known)
        return True

    def _change(self, elements: list[tuple[str, ElementChange]], table: Table, known: KnownInterfaces | None) -> None:
        """Change elements of policies and of the guard in one transaction."""
        assert self._table is not None
        guard = self._guard
        if known is not None and guard is None:
            guard = InterfaceCompiler(self._table.compiler)
        with self._writing():
            if self._state is TableState.CHANGED or (known is None) is not (self._known is None):
                self._bring(_whole(table, guard, known))
            else:
                more = guard_changes(self._known, known) if known is not None and self._known is not None else ()
                try:
                    send([*elements, *more])
                except NetlinkError:
                    # The kernel does not hold the table that was applied. Reading it back and applying every
                    # difference repairs it.
                    self._state = TableState.UNKNOWN
                    self._bring(_whole(table, guard, known))
        self._guard, self._known = guard, known

    def _bring(self, table: Table) -> bool:
        """Bring the kernel to a table; False if it held it already."""
        if self._state is TableState.CHANGED:
            # Chains are named by their content, so reading would not find rules that others have changed.
            replace(table)
            has_changed = True
        else:
            held = None
            if self._state is TableState.AS_APPLIED and self._table is not None:
                held = _whole(self._table.table, self._guard, self._known)
            has_changed = apply(table, held)
        self._state = TableState.AS_APPLIED if self._watch is not None else TableState.UNKNOWN
        return has_changed

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Tell a write of our own, which is at most one transaction, from those of others."""
        self.hear()
        yield
        changes = self._changes()
        self._note(TableChanges(max(0, changes.number - 1), changes.is_uncertain))

    def hear(self) -> None:
        """Note what others have done since the last time."""
        self._note(self._changes())

    def _changes(self) -> TableChanges:
        return self._watch.changes() if self._watch is not None else TableChanges()

    def _note(self, changes: TableChanges) -> None:
        if changes.number and self._table is not None:
            self._state = TableState.CHANGED
        elif changes.is_uncertain and self._state is TableState.AS_APPLIED:
            self._state = TableState.UNKNOWN


def _whole(table: Table, guard: InterfaceCompiler | None, known: KnownInterfaces | None) -> Table:
    return guard.table(table, known) if guard is not None and known is not None else table
