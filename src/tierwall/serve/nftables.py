"""nftables as an engine: what compiles, applies, follows, asks and audits, put together (docs/enforce-network.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from tierwall.core.event import Event
from tierwall.core.protocols import Engine, Reply, Report
from tierwall.core.question import Question
from tierwall.engines.nftables.kernel.audit import events
from tierwall.engines.nftables.probe.asking import Asker
from tierwall.engines.nftables.table.compile import Compiled, compile_snapshot
from tierwall.engines.nftables.table.options import Options
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.serve.follower import Source


class Nftables(Engine[Snapshot, "Source", Compiled]):
    """The kernel of this machine, or rather of the network namespace that its methods are called in."""

    planes: ClassVar[tuple[str, ...]] = ("network",)

    def __init__(self, options: Options | None = None, *, cuts: bool = True) -> None:
        """`cuts`: open connections that policies forbid are cut."""
        self._options = options or Options()
        self._cuts = cuts
        self._asker = Asker()

    def compile(self, snapshot: Snapshot) -> Compiled:
        """The table that enforces the policies."""
        return compile_snapshot(snapshot, self._options)

    def apply(self, source: Source) -> Report:
        """Put the table into the kernel in one transaction; InputError leaves the last good one in force."""
        from tierwall.serve.keeper import Keeper

        keeper = Keeper(self._options, self._cuts)
        return keeper.report(keeper.begin(source))

    def follow(self, source: Source, tell: Callable[[Report], None]) -> None:
        """Keep the kernel up with a source until SIGINT or SIGTERM; InputError if it cannot begin.

        The table stays in force.
        """
        from tierwall.serve.keeper import Keeper

        Keeper(self._options, self._cuts).keep(source, tell)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[Reply]:
        """Send real packets between network namespaces; InputError if that is not possible here."""
        return self._asker.ask(snapshot, questions)

    def audit(self, seconds: float | None = None) -> Iterator[Event]:
        """What the table logs from now on; InputError says why the log cannot be read."""
        return events(self._options.group, seconds)

    def close(self) -> None:
        """Let go of the namespaces that questions were asked in; they also go with the process."""
        self._asker.close()
