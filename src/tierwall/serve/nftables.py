"""nftables as an engine, and how it keeps the kernel up with policies and pods (docs/enforce-network.md).

A change of pods alone becomes a change of elements; anything else is compiled and becomes one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import Engine, Event, Reply, Report
from tierwall.core.question import Question
from tierwall.core.words import count
from tierwall.engines.nftables.kernel.apply import Enforcer
from tierwall.engines.nftables.kernel.audit import events
from tierwall.engines.nftables.kernel.conntrack import cut
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.probe.asking import Asker
from tierwall.engines.nftables.table.compile import Compiled, compile_snapshot
from tierwall.engines.nftables.table.options import Options
from tierwall.engines.nftables.table.pods import Step, pod_changes
from tierwall.network.model.model import model
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, Prepared, Source, until_signalled

if TYPE_CHECKING:
    import asyncio

# More pods at once than this, and compiling is no slower.
_MOST_PODS = 200


class Keeper(Follower[Compiled | Step]):
    """Keeps the kernel up with policies and pods. `cuts`: open connections that policies forbid are cut."""

    def __init__(self, options: Options, cuts: bool) -> None:
        super().__init__()
        self._options, self._cuts = options, cuts
        self._enforcer = Enforcer()
        self._compiled: Compiled | None = None
        # What the last load that came into force did to the kernel.
        self._done = Report("nothing yet")

    def prepare(self, snapshot: Snapshot) -> Prepared[Compiled | Step]:
        """The elements that change with pods where that is all that differs from what is in force, or else a table."""
        pods = pod_changes(self.good.snapshot, snapshot) if self.good is not None else None
        if pods is not None and len(pods) <= _MOST_PODS and (step := self._enforcer.step(pods)) is not None:
            return Prepared(step)
        compiled = compile_snapshot(snapshot, self._options)
        return Prepared(compiled, compiled.diagnostics)

    def enforce(self, load: Load[Compiled | Step]) -> bool:
        """Bring the kernel up with a load, in one transaction; InputError leaves the last good table in force."""
        state = load.state
        assert state is not None
        if isinstance(state, Step):
            if not state.pods:
                self._done = Report("unchanged")
                return False
            self._enforcer.take(state)
            self._done = self._cut(Report(f"{count(state.pods, 'pod')} followed"), load.snapshot)
            return True
        changed = self._enforcer.put(state)
        self._compiled = state
        table = state.table
        words = f"{len(table.chains)} chains, {len(table.sets)} sets {'applied' if changed else 'in force already'}"
        self._done = self._cut(Report(words, load.diagnostics), load.snapshot)
        return changed

    def report(self, load: Load[Compiled | Step]) -> Report:
        """What became of the load that was accepted last."""
        if load.errors:
            return Report("the last good table stays in force", load.diagnostics, load.loaded)
        return replace(self._done, read=load.loaded)

    def _cut(self, done: Report, snapshot: Snapshot) -> Report:
        if not self._cuts:
            return done
        assert self._compiled is not None
        try:
            connections = cut(model(snapshot), self._compiled.compiler)
        except NetlinkError as error:
            words = f"the table is in force, but open connections cannot be cut: {str(error.strerror).lower()}"
            hint = "the kernel needs CONFIG_NF_CT_NETLINK; --no-cut leaves them open"
            return replace(done, diagnostics=(*done.diagnostics, Diagnostic("TW603", words, hint=hint)))
        return replace(done, words=f"{done.words}; {count(connections, 'connection')} cut") if connections else done


class Nftables(Engine[Snapshot, Source, Compiled]):
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
        keeper = Keeper(self._options, self._cuts)
        return keeper.report(keeper.begin(source))

    def follow(self, source: Source, tell: Callable[[Report], None]) -> None:
        """Keep the kernel up with a source until SIGINT or SIGTERM; InputError if it cannot begin.

        The table stays in force.
        """
        keeper = Keeper(self._options, self._cuts)

        async def main(stop: asyncio.Event) -> None:
            async for load in keeper.follow(source, stop):
                tell(keeper.report(load))

        until_signalled(main)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[Reply]:
        """Send real packets between network namespaces; InputError if that is not possible here."""
        return self._asker.ask(snapshot, questions)

    def audit(self, seconds: float | None = None) -> Iterator[Event]:
        """What the table logs from now on; InputError says why the log cannot be read."""
        return events(self._options.group, seconds)

    def close(self) -> None:
        """Let go of the namespaces that questions were asked in; they also go with the process."""
        self._asker.close()
