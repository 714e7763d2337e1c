"""The kernel kept up with policies and pods: how a load becomes a change of its table (`follower`).

A change of pods alone becomes a change of elements; anything else is compiled and becomes one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tierwall.core.diagnostics import Diagnostic, in_order
from tierwall.core.protocols import Report
from tierwall.engines.nftables.kernel.apply import Enforcer
from tierwall.engines.nftables.kernel.conntrack import cut
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.table.compile import Compiled, compile_snapshot
from tierwall.engines.nftables.table.options import Options
from tierwall.engines.nftables.table.pods import PodChange, pod_changes
from tierwall.network.model.model import model
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, Prepared, Source, until_signalled

if TYPE_CHECKING:
    import asyncio

# More pods at once than this, and compiling is no slower.
_MOST_PODS = 200


class Keeper(Follower[Compiled | list[PodChange]]):
    """Keeps the kernel up with policies and pods. `cuts`: open connections that policies forbid are cut."""

    def __init__(self, options: Options, cuts: bool) -> None:
        super().__init__()
        self._options, self._cuts = options, cuts
        self._enforcer = Enforcer()
        self._compiled: Compiled | None = None
        # What the last load that came into force did to the kernel.
        self._done = Report("nothing yet")

    def prepare(self, snapshot: Snapshot) -> Prepared[Compiled | list[PodChange]]:
        """The pods that differ from those in force, or else a table."""
        pods = pod_changes(self.good.snapshot, snapshot) if self.good is not None else None
        if pods is not None and len(pods) <= _MOST_PODS:
            return Prepared(pods)
        compiled = compile_snapshot(snapshot, self._options)
        return Prepared(compiled, compiled.diagnostics)

    def enforce(self, load: Load[Compiled | list[PodChange]]) -> bool:
        """Bring the kernel up with a load, in one transaction; InputError leaves the last good table in force."""
        state = load.state
        if isinstance(state, list):
            if not state:
                self._done = Report("unchanged")
                return False
            if self._enforcer.follow(state):
                words = f"{len(state)} pod{'s' if len(state) > 1 else ''} followed"
                self._done = self._cut(Report(words), load.snapshot)
                return True
            state = compile_snapshot(load.snapshot, self._options)
        assert state is not None
        changed = self._enforcer.put(state)
        self._compiled = state
        table = state.table
        words = f"{len(table.chains)} chains, {len(table.sets)} sets {'applied' if changed else 'in force already'}"
        self._done = self._cut(Report(words, in_order((*load.diagnostics, *state.diagnostics))), load.snapshot)
        return changed

    def report(self, load: Load[Compiled | list[PodChange]]) -> Report:
        """What became of the load that was accepted last."""
        if load.errors:
            return Report("the last good table stays in force", load.diagnostics, load.loaded)
        return self._done._replace(read=load.loaded)

    def keep(self, source: Source, tell: Callable[[Report], None]) -> None:
        """Follow a source until SIGINT or SIGTERM; InputError if nothing of it can come into force."""

        async def main(stop: asyncio.Event) -> None:
            async for load in self.follow(source, stop):
                tell(self.report(load))

        until_signalled(main)

    def _cut(self, done: Report, snapshot: Snapshot) -> Report:
        if not self._cuts:
            return done
        assert self._compiled is not None
        try:
            count = cut(model(snapshot), self._compiled.compiler)
        except NetlinkError as error:
            words = f"the table is in force, but open connections cannot be cut: {str(error.strerror).lower()}"
            hint = "the kernel needs CONFIG_NF_CT_NETLINK; --no-cut leaves them open"
            return done._replace(diagnostics=(*done.diagnostics, Diagnostic("TW603", words, hint=hint)))
        said = f"; {count} connection{'s' if count > 1 else ''} cut" if count else ""
        return done._replace(words=f"{done.words}{said}")
