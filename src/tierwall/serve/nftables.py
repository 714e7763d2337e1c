"""nftables as an engine, and how it keeps the kernel in step with policies and pods (docs/enforce-network.md).

A change of pods alone becomes a change of set elements. Anything else is compiled and becomes one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import DecisionEvent, Engine, EngineReply, EngineReport
from tierwall.core.question import Question
from tierwall.core.words import count_noun
from tierwall.engines.nftables.kernel.apply import Enforcer
from tierwall.engines.nftables.kernel.audit import events
from tierwall.engines.nftables.kernel.conntrack import cut
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.probe.asking import PacketProbe
from tierwall.engines.nftables.table.compile import CompiledTable, compile_snapshot
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.engines.nftables.table.pods import PodStep, pod_changes
from tierwall.network.model.model import network_model
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, ObjectSource, PreparedState, until_signalled

if TYPE_CHECKING:
    import asyncio

# With more changed pods than this, compiling is as fast.
_MAX_CHANGED_PODS = 200


class KernelFollower(Follower[CompiledTable | PodStep]):
    """Keeps the kernel in step with policies and pods. `cuts`: cut open connections that the policies forbid."""

    def __init__(self, options: TableOptions, cuts: bool) -> None:
        super().__init__()
        self._options, self._cuts = options, cuts
        self._enforcer = Enforcer()
        self._compiled: CompiledTable | None = None
        # The report on the last load that came into force.
        self._last_report = EngineReport("nothing yet")

    def prepare(self, snapshot: Snapshot) -> PreparedState[CompiledTable | PodStep]:
        """Prepare a change of elements if only pods differ from the load in force, or else compile the table."""
        pods = pod_changes(self.in_force.snapshot, snapshot) if self.in_force is not None else None
        if pods is not None and len(pods) <= _MAX_CHANGED_PODS and (step := self._enforcer.step(pods)) is not None:
            return PreparedState(step)
        compiled = compile_snapshot(snapshot, self._options)
        return PreparedState(compiled, compiled.diagnostics)

    def enforce(self, load: Load[CompiledTable | PodStep]) -> bool:
        """Bring the kernel to a load in one transaction. After an InputError, the last good table is in force."""
        state = load.state
        assert state is not None
        if isinstance(state, PodStep):
            if not state.pods:
                self._last_report = EngineReport("unchanged")
                return False
            self._enforcer.take(state)
            self._last_report = self._cut(EngineReport(f"{count_noun(state.pods, 'pod')} followed"), load.snapshot)
            return True
        changed = self._enforcer.put(state)
        self._compiled = state
        table = state.table
        message = f"{len(table.chains)} chains, {len(table.sets)} sets {'applied' if changed else 'in force already'}"
        self._last_report = self._cut(EngineReport(message, load.diagnostics), load.snapshot)
        return changed

    def report(self, load: Load[CompiledTable | PodStep]) -> EngineReport:
        """Return the report on the load that was accepted last."""
        if load.refusal:
            return EngineReport("the last good table stays in force", load.diagnostics, load.loaded)
        return replace(self._last_report, read=load.loaded)

    def _cut(self, report: EngineReport, snapshot: Snapshot) -> EngineReport:
        if not self._cuts:
            return report
        assert self._compiled is not None
        try:
            connections = cut(network_model(snapshot), self._compiled.compiler)
        except NetlinkError as error:
            message = f"the table is in force, but open connections cannot be cut: {str(error.strerror).lower()}"
            hint = "use a kernel with CONFIG_NF_CT_NETLINK, or leave them open with --no-cut"
            return replace(report, diagnostics=(*report.diagnostics, Diagnostic("TW603", message, hint=hint)))
        if not connections:
            return report
        return replace(report, summary=f"{report.summary}; {count_noun(connections, 'connection')} cut")


class Nftables(Engine[Snapshot, ObjectSource, CompiledTable]):
    """The kernel of this machine: the network namespace in which its methods are called."""

    planes: ClassVar[tuple[str, ...]] = ("network",)

    def __init__(self, options: TableOptions | None = None, *, cuts: bool = True) -> None:
        """`cuts`: cut open connections that the policies forbid."""
        self._options = options or TableOptions()
        self._cuts = cuts
        self._asker = PacketProbe()

    def compile(self, snapshot: Snapshot) -> CompiledTable:
        """Compile the table that enforces the policies."""
        return compile_snapshot(snapshot, self._options)

    def apply(self, source: ObjectSource) -> EngineReport:
        """Apply the table in one transaction. After an InputError, the last good one is in force."""
        keeper = KernelFollower(self._options, self._cuts)
        return keeper.report(keeper.begin(source))

    def follow(self, source: ObjectSource, send_report: Callable[[EngineReport], None]) -> None:
        """Keep the kernel in step with a source until SIGINT or SIGTERM; InputError if it cannot begin.

        The table stays in force afterwards.
        """
        keeper = KernelFollower(self._options, self._cuts)

        async def main(stop: asyncio.Event) -> None:
            async for load in keeper.follow(source, stop):
                send_report(keeper.report(load))

        until_signalled(main)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Send real packets between network namespaces; InputError if that is not possible here."""
        return self._asker.ask(snapshot, questions)

    def audit(self, seconds: float | None = None) -> Iterator[DecisionEvent]:
        """Yield what the table logs from now on; InputError says why the log cannot be read."""
        return events(self._options.group, seconds)

    def close(self) -> None:
        """Release the namespaces in which questions were asked; they also end with the process."""
        self._asker.close()
