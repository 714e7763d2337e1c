"""nftables as an engine: what compiles, applies, follows, asks and audits, put together (docs/enforce-network.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from tierwall.core.event import Event
from tierwall.core.protocols import Engine, Reply, Report
from tierwall.core.question import Question
from tierwall.engines.nftables.asking import Asker
from tierwall.engines.nftables.audit import events
from tierwall.engines.nftables.compile import Compiled, compile_snapshot
from tierwall.engines.nftables.options import Options
from tierwall.engines.nftables.watch import Keeper, follow, wait
from tierwall.resources.load import Loader
from tierwall.resources.snapshot import Snapshot


class Nftables(Engine[Snapshot, Loader, Compiled]):
    """The kernel of this machine, or rather of the network namespace that its methods are called in."""

    planes: ClassVar[tuple[str, ...]] = ("network",)

    def __init__(self, options: Options | None = None, *, cuts: bool = True, interval: float = 0.5) -> None:
        """`cuts`: open connections that policies forbid are cut. `interval`: seconds between looks at files."""
        self._options = options or Options()
        self._interval = interval
        self._keeper = Keeper(self._options, cuts)
        self._asker = Asker()

    def compile(self, snapshot: Snapshot) -> Compiled:
        """The table that enforces the policies."""
        return compile_snapshot(snapshot, self._options)

    def apply(self, snapshot: Snapshot) -> Report:
        """Put the table into the kernel in one transaction; InputError leaves the last good one in force."""
        return self._keeper.enforce(snapshot)

    def follow(self, loader: Loader, tell: Callable[[Report], None]) -> None:
        """Keep the kernel up with files; ends with KeyboardInterrupt, and the table stays in force."""
        for step in follow(self._keeper, loader, self._interval, wait):
            tell(step)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[Reply]:
        """Send real packets between network namespaces; InputError if that is not possible here."""
        return self._asker.ask(snapshot, questions)

    def audit(self, seconds: float | None = None) -> Iterator[Event]:
        """What the table logs from now on; InputError says why the log cannot be read."""
        return events(self._options.group, seconds)

    def close(self) -> None:
        """Let go of the namespaces that questions were asked in; they also go with the process."""
        self._asker.close()
