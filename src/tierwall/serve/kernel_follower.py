"""How a kernel is kept in step with policies and pods (docs/enforce-network.md).

A change of pods or interfaces alone becomes a change of set elements. Anything else is compiled and becomes one
transaction. What others change in the table is undone, as often as they do it, but not ever faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tierwall.core.diagnostics import Diagnostic, InputError, sorted_diagnostics
from tierwall.core.protocols import EngineReport
from tierwall.core.reference import Reference
from tierwall.core.words import count_noun
from tierwall.engines.nftables.kernel.conntrack import cut
from tierwall.engines.nftables.kernel.enforcer import Enforcer
from tierwall.engines.nftables.kernel.interfaces import InterfaceFinder
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.refusal import is_refusal, refused_policies
from tierwall.engines.nftables.table.compile import CompiledTable, compile_snapshot
from tierwall.engines.nftables.table.interfaces import KnownInterfaces, guarded
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.engines.nftables.table.pods import PodStep, content_of, pod_changes
from tierwall.engines.nftables.table.refusal import unenforced_policies
from tierwall.engines.nftables.table.table import Table, rules_digest
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model, network_model_with_shadow
from tierwall.network.model.policies import without_shadow_policies
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, PreparedState, unexpected
from tierwall.serve.generations import policy_versions
from tierwall.serve.node_report import KernelTable, NodeReport, empty_report, node_report

if TYPE_CHECKING:
    pass

# With more changed pods than this, compiling is as fast.
_MAX_CHANGED_PODS = 200
# How long to wait for further changes of interfaces, and when to look again without one.
_QUIET_SECONDS, _LOOK_AGAIN_SECONDS = 0.01, 1.0
# How long to search for policies that the kernel refuses.
_SEARCH_SECONDS = 60.0
# Somebody who changes the table again and again is undone after so long, doubled each time, up to so long.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0


class KernelFollower(Follower[CompiledTable | PodStep]):
    """Keeps the kernel in step with policies and pods. `cuts`: cut open connections that the policies forbid."""

    def __init__(self, options: TableOptions, cuts: bool, finder: InterfaceFinder | None = None) -> None:
        """Without a `finder`, the kernel's routes tell the interfaces of pods."""
        super().__init__()
        self._options, self._cuts = options, cuts
        self._finder = finder or InterfaceFinder(patterns=options.pod_interfaces)
        self._enforcer = Enforcer()
        self._compiled: CompiledTable | None = None
        # The policies that the kernel refused, each with its content at that time and the kernel's words.
        self._refused: dict[Reference, tuple[object, str]] = {}
        # The report on the last load that came into force.
        self._last_report = EngineReport("nothing yet")
        # The table in the kernel; None before the first load.
        self._in_kernel: KernelTable | None = None
        # What was last reported about interfaces.
        self._said: tuple[Diagnostic, ...] = ()
        # Why what others have done to the table is not undone yet.
        self._not_restored: tuple[Diagnostic, ...] = ()
        # From when on it may be undone, and how long to wait after that.
        self._restore_at, self._restore_wait = -math.inf, 0.0

    @property
    def _spoiled(self) -> tuple[Diagnostic, ...]:
        """The reasons why the kernel does not hold what was applied, while it does not."""
        return () if self._enforcer.is_as_applied else self._not_restored

    @property
    def refusal(self) -> tuple[Diagnostic, ...]:
        """The reasons why something that must be in force may not be."""
        return (*self._spoiled, *super().refusal)

    def prepare(self, snapshot: Snapshot) -> PreparedState[CompiledTable | PodStep]:
        """Prepare a change of elements if only pods differ from the load in force, or else compile the table."""
        pods = pod_changes(self.in_force.snapshot, snapshot) if self.in_force is not None else None
        if pods is not None and len(pods) <= _MAX_CHANGED_PODS and (step := self._enforcer.step(pods)) is not None:
            return PreparedState(step)
        compiled = self._compile(snapshot)
        return PreparedState(compiled, compiled.diagnostics)

    def _compile(self, snapshot: Snapshot) -> CompiledTable:
        """Compile a snapshot. A policy that the kernel refused stays closed until its object changes."""
        refused = {}
        for policy in network_model_with_shadow(snapshot).policies if self._refused else ():
            content, words = self._refused.get(policy.reference, (None, ""))
            if content == content_of(policy.resource):
                refused[policy.reference] = words
        return compile_snapshot(snapshot, self._options, refused)

    def enforce(self, load: Load[CompiledTable | PodStep]) -> bool:
        """Bring the kernel to a load in one transaction. After an InputError, the last good table is in force."""
        state = load.state
        assert state is not None
        if isinstance(state, PodStep):
            if not state.pods:
                self._last_report = EngineReport("unchanged")
                return False
            pods = list(self._enforcer.judged_pods(state))
            try:
                self._enforcer.take(state, self._known(pods))
            except InputError as error:
                if not is_refusal(error):
                    raise
                return self._put(load, self._compile(load.snapshot))
            if self._in_kernel is not None:
                self._in_kernel = replace(self._in_kernel, pods=len(pods))
            report = EngineReport(f"{count_noun(state.pods, 'pod')} followed", tuple(self._about_interfaces()))
            self._last_report = self._cut(report, load.snapshot)
            return True
        return self._put(load, state)

    def _put(self, load: Load[CompiledTable | PodStep], compiled: CompiledTable) -> bool:
        """Bring a compiled table into force; close policies that the kernel refuses, and nothing else."""
        until = time.monotonic() + _SEARCH_SECONDS
        while True:
            try:
                changed = self._enforcer.put(compiled, self.known_interfaces(compiled))
                break
            except InputError as error:
                more = (
                    refused_policies(load.snapshot, self._options, compiled)
                    if is_refusal(error) and time.monotonic() < until
                    else {}
                )
                if not more:
                    raise
                for policy in compiled.compiler.model.policies:
                    if policy.reference in more:
                        self._refused[policy.reference] = content_of(policy.resource), more[policy.reference]
                compiled = self._compile(load.snapshot)
                new = (diagnostic for diagnostic in compiled.diagnostics if diagnostic not in load.diagnostics)
                load.diagnostics = sorted_diagnostics((*load.diagnostics, *new))
        self._compiled = compiled
        self._in_kernel = self._table_in_kernel(load.snapshot, compiled)
        table = compiled.table
        message = f"{len(table.chains)} chains, {len(table.sets)} sets {'applied' if changed else 'in force already'}"
        self._said = ()
        diagnostics = (*load.diagnostics, *self._about_interfaces())
        self._last_report = self._cut(EngineReport(message, diagnostics), load.snapshot)
        return changed

    def _table_in_kernel(self, snapshot: Snapshot, compiled: CompiledTable) -> KernelTable:
        """Return what the kernel has accepted just now."""
        compiler = compiled.compiler
        table = KernelTable(
            rules_digest(compiled.table),
            _wall_time(),
            sum(map(compiler.is_judged, compiler.model.pods)),
            policy_versions(snapshot),
            unenforced_policies(compiler.model, compiled.diagnostics),
        )
        before = self._in_kernel
        if before is not None and (before.hash, before.in_force) == (table.hash, table.in_force):
            return replace(table, loaded_at=before.loaded_at)
        return table

    def node_report(self, node: str) -> NodeReport | None:
        """Return what is in force, and what of the newest load is not; None before the first load."""
        table, newest = self._in_kernel, self.newest
        if table is None or newest is None:
            return None
        if self._spoiled:
            return empty_report(node, "; ".join(problem.message for problem in self.refusal))
        is_other = newest is not self.in_force and newest.loaded is not None
        read = policy_versions(newest.snapshot) if is_other else table.policies
        return node_report(node, table, read, "; ".join(problem.message for problem in self.refusal))

    def known_interfaces(self, compiled: CompiledTable) -> KnownInterfaces | None:
        """Return the interfaces of the pods that a table judges; None if there is nothing to guard."""
        compiler = compiled.compiler
        pods = [pod for pod in compiler.model.pods if compiler.is_judged(pod)]
        return self._finder.find(pods, compiler.model.nodes, wait=self.in_force is None)

    def whole_table(self, load: Load[CompiledTable | PodStep]) -> Table:
        """Return the table that the first load would bring into force."""
        assert isinstance(load.state, CompiledTable), "only a later load can be a mere change of pods"
        known = self.known_interfaces(load.state)
        return guarded(load.state, known)

    def close(self) -> None:
        """Stop looking at the kernel. The table stays in force."""
        self._finder.close()
        self._enforcer.close()

    async def follow_kernel(self, send_report: Callable[[EngineReport], None]) -> None:
        """Follow interfaces as they come and go, and undo what others do to the table, until cancelled."""
        import asyncio

        changed, loop = asyncio.Event(), asyncio.get_running_loop()

        def hear() -> None:
            self._enforcer.hear()
            if not self._enforcer.is_as_applied:
                changed.set()

        self._finder.watch()
        readers = dict.fromkeys(self._finder.filenos(), changed.set) | {self._enforcer.watch(): hear}
        for descriptor, reader in readers.items():
            if descriptor >= 0:
                loop.add_reader(descriptor, reader)
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _LOOK_AGAIN_SECONDS)
                if not changed.is_set() and not self._finder.is_incomplete and self._enforcer.is_as_applied:
                    continue
                # Interfaces, routes and addresses of one pod come in a row.
                await asyncio.sleep(_QUIET_SECONDS)
                changed.clear()
                for report in (self._restore(), self._rebind()):
                    if report is not None:
                        send_report(report)
        finally:
            for descriptor in readers:
                if descriptor >= 0:
                    loop.remove_reader(descriptor)

    def _restore(self) -> EngineReport | None:
        """Undo what others have done to the table; return a report if they have."""
        load, now = self.in_force, time.monotonic()
        if load is None or self._enforcer.is_as_applied:
            return None
        message = "the table in the kernel was changed by somebody else"
        if now < self._restore_at:
            if self._not_restored:
                return None
            waiting = f"{message} again, and is brought back in {self._restore_at - now:.0f} s"
            self._not_restored = (Diagnostic("TW612", waiting),)
            return EngineReport("the table is not in force", self._not_restored)
        is_quiet = now - self._restore_at > 2 * _LONGEST_WAIT
        self._restore_wait = _FIRST_WAIT if is_quiet else min(2 * self._restore_wait, _LONGEST_WAIT)
        self._restore_at = now + self._restore_wait
        try:
            has_changed = self._enforcer.restore()
        except Exception as error:
            reasons = tuple(error.diagnostics) if isinstance(error, InputError) else (unexpected(error),)
            self._not_restored = (Diagnostic("TW612", f"{message} and cannot be brought back"), *reasons)
            return EngineReport("the table is not in force", self._not_restored)
        self._not_restored = ()
        if not has_changed:
            # The kernel could not tell everything, and nothing had happened.
            self._restore_at = now
            return None
        if self._in_kernel is not None:
            self._in_kernel = replace(self._in_kernel, loaded_at=_wall_time())
        return self._cut(EngineReport("brought back", (Diagnostic("TW612", message),)), load.snapshot)

    def _rebind(self) -> EngineReport | None:
        """Bring the kernel to the interfaces as they are now; return a report if anything is worth saying."""
        if self.in_force is None:
            return None
        try:
            bound = self._enforcer.bind(self._known(self._enforcer.judged_pods()))
        except InputError as error:
            return EngineReport("the last good table stays in force", tuple(error.diagnostics))
        except Exception as error:
            # Without this, one error would end the following of interfaces for good, and nobody would notice.
            return EngineReport("the last good table stays in force", (unexpected(error),))
        said = self._about_interfaces()
        return EngineReport("interfaces followed", said) if bound or said else None

    def _known(self, pods: Iterable[Endpoint]) -> KnownInterfaces | None:
        assert self._compiled is not None
        return self._finder.find(pods, self._compiled.compiler.model.nodes)

    def _about_interfaces(self) -> tuple[Diagnostic, ...]:
        """Return what is to be said about interfaces, if it is not what was said last."""
        said = tuple(self._finder.diagnostics(self._enforcer.closes_unknown_pods))
        if said == self._said:
            return ()
        self._said = said
        return said

    def report(self, load: Load[CompiledTable | PodStep]) -> EngineReport:
        """Return the report on the load that was accepted last."""
        if load.refusal:
            return EngineReport("the last good table stays in force", load.unreported, load.loaded)
        # A change of pods alone compiles nothing, and what is wrong with files and objects is reported all the same.
        known = frozenset(load.diagnostics)
        others = (diagnostic for diagnostic in self._last_report.diagnostics if diagnostic not in known)
        return replace(self._last_report, diagnostics=(*load.unreported, *others), read=load.loaded)

    def _cut(self, report: EngineReport, snapshot: Snapshot) -> EngineReport:
        if not self._cuts:
            return report
        assert self._compiled is not None
        refused = self._compiled.refused
        model = NetworkModel(without_shadow_policies(snapshot), refused) if refused else network_model(snapshot)
        try:
            connections = cut(model, self._compiled.compiler)
        except NetlinkError as error:
            message = f"the table is in force, but open connections cannot be cut: {str(error.strerror).lower()}"
            hint = "use a kernel with CONFIG_NF_CT_NETLINK, or leave them open with --no-cut"
            return replace(report, diagnostics=(*report.diagnostics, Diagnostic("TW603", message, hint=hint)))
        if not connections:
            return report
        return replace(report, summary=f"{report.summary}; {count_noun(connections, 'connection')} cut")


def _wall_time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
