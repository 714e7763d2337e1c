"""nftables as an engine: what it compiles, enforces, asks and reports (docs/enforce-network.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, ClassVar

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import DecisionEvent, Engine, EngineReply, EngineReport
from tierwall.core.question import Question
from tierwall.engines.nftables.kernel.audit import events
from tierwall.engines.nftables.kernel.interfaces import InterfaceFinder, InterfaceLookup
from tierwall.engines.nftables.probe.asking import PacketProbe
from tierwall.engines.nftables.table.compile import CompiledTable, compile_snapshot
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import ObjectSource, until_signalled
from tierwall.serve.kernel_follower import KernelFollower
from tierwall.serve.node_report import NodeReport

if TYPE_CHECKING:
    import asyncio


class Nftables(Engine[Snapshot, ObjectSource, CompiledTable]):
    """The kernel of this machine: the network namespace in which its methods are called."""

    planes: ClassVar[tuple[str, ...]] = ("network",)

    def __init__(
        self, options: TableOptions | None = None, *, cuts: bool = True, lookup: InterfaceLookup | None = None
    ) -> None:
        """`cuts`: cut open connections that the policies forbid. `lookup`: who knows the interfaces of pods."""
        self._options = options or TableOptions()
        self._cuts, self._lookup = cuts, lookup
        self._asker = PacketProbe()

    def compile(self, snapshot: Snapshot) -> CompiledTable:
        """Compile the table that enforces the policies."""
        return compile_snapshot(snapshot, self._options)

    def apply(self, source: ObjectSource) -> EngineReport:
        """Apply the table in one transaction. After an InputError, the last good one is in force."""
        with closing(self.follower()) as keeper:
            return keeper.report(keeper.begin(source))

    def follower(self) -> KernelFollower:
        """Return a follower with the options of this engine."""
        return KernelFollower(self._options, self._cuts, InterfaceFinder(self._lookup, self._options.pod_interfaces))

    def follow(
        self,
        source: ObjectSource,
        send_report: Callable[[EngineReport], None],
        send_node_report: Callable[[NodeReport], None] | None = None,
        http: tuple[str, int] | None = None,
    ) -> None:
        """Keep the kernel in step with a source until SIGINT or SIGTERM; InputError if it cannot begin.

        The table stays in force afterwards. `send_node_report` gets what is in force on the node after each load; it
        must not wait for anything. `http` is the address of the pages of health and metrics.
        """
        node = self._options.node or ""
        with closing(self.follower()) as keeper:

            async def main(stop: asyncio.Event) -> None:
                from asyncio import create_task

                async with AsyncExitStack() as ending:
                    count = None
                    if http is not None:
                        from tierwall.serve.kernel_pages import kernel_pages

                        pages, count = kernel_pages(keeper, source)
                        ending.push_async_callback(pages.stop)
                        port = await pages.start(*http)
                        send_report(EngineReport(f"health and metrics on http://{http[0]}:{port}"))

                    def say(report: EngineReport) -> None:
                        send_report(report)
                        if send_node_report is not None and (held := keeper.node_report(node)) is not None:
                            send_node_report(held)

                    kernel = create_task(keeper.follow_kernel(say))
                    ending.callback(kernel.cancel)
                    async for load in keeper.follow(source, stop):
                        if count is not None:
                            count(load)
                        say(keeper.report(load))

            until_signalled(main)

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Send real packets between network namespaces; InputError if that is not possible here."""
        return self._asker.ask(snapshot, questions)

    def limits(self, snapshot: Snapshot) -> Iterable[Diagnostic]:
        """Return the rules that name domains, and the policies that cannot be compiled."""
        return [problem for problem in self.compile(snapshot).diagnostics if problem.reference is not None]

    def audit(self, seconds: float | None = None) -> Iterator[DecisionEvent]:
        """Yield what the table logs from now on; InputError says why the log cannot be read."""
        return events(self._options.group, seconds)

    def close(self) -> None:
        """Release the namespaces in which questions were asked; they also end with the process."""
        self._asker.close()
