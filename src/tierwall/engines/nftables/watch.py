"""Following files: when a manifest changes, the kernel is brought up with it; what is wrong leaves the last good table.

A change of pods alone becomes a change of elements; anything else is compiled and becomes one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.protocols import Report
from tierwall.engines.nftables.apply import Enforcer
from tierwall.engines.nftables.compile import Compiled, compile_snapshot
from tierwall.engines.nftables.cut import cut
from tierwall.engines.nftables.follow import PodChange
from tierwall.engines.nftables.netlink import NetlinkError
from tierwall.engines.nftables.options import Options
from tierwall.network.model.model import model
from tierwall.resources.load import Loaded, Loader
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# More pods at once than this, and compiling is no slower.
_MOST_PODS = 200


class Keeper:
    """Keeps the kernel up with manifests."""

    def __init__(self, options: Options, cuts: bool) -> None:
        self._options, self._cuts = options, cuts
        self._enforcer = Enforcer()
        self._snapshot: Snapshot | None = None
        self._compiled: Compiled | None = None

    def take(self, loaded: Loaded) -> Report:
        """Enforce what was loaded; InputError leaves the last good table in force."""
        if loaded.errors:
            raise InputError(loaded.errors)
        return self.enforce(loaded.snapshot)

    def enforce(self, snapshot: Snapshot) -> Report:
        """Enforce a snapshot's policies on its pods."""
        pods = _pod_changes(self._snapshot, snapshot) if self._snapshot is not None else None
        if pods == [] and self._compiled is not None:
            return Report("unchanged")
        if pods is not None and len(pods) <= _MOST_PODS and self._enforcer.follow(pods):
            self._snapshot = snapshot
            assert self._compiled is not None
            words = f"{len(pods)} pod{'s' if len(pods) > 1 else ''} followed"
            return self._cut(Report(words), snapshot, self._compiled)
        compiled = compile_snapshot(snapshot, self._options)
        changed = self._enforcer.put(compiled)
        self._snapshot, self._compiled = snapshot, compiled
        table = compiled.table
        words = f"{len(table.chains)} chains, {len(table.sets)} sets {'applied' if changed else 'in force already'}"
        return self._cut(Report(words, compiled.diagnostics), snapshot, compiled)

    def _cut(self, step: Report, snapshot: Snapshot, compiled: Compiled) -> Report:
        if not self._cuts:
            return step
        try:
            count = cut(model(snapshot), compiled.compiler)
        except NetlinkError as error:
            words = f"the table is in force, but open connections cannot be cut: {str(error.strerror).lower()}"
            problem = Diagnostic(
                "TW603", words, hint="the kernel needs CONFIG_NF_CT_NETLINK; --no-cut leaves them open"
            )
            return step._replace(diagnostics=(*step.diagnostics, problem))
        said = f"; {count} connection{'s' if count > 1 else ''} cut" if count else ""
        return step._replace(words=f"{step.words}{said}")


def follow(keeper: Keeper, loader: Loader, interval: float, stopped: Callable[[float], bool]) -> Iterator[Report]:
    """Look at the files again and again; a step that fails comes as a step with its diagnostics."""
    while True:
        loaded = loader.news()
        if loaded is not None:
            try:
                yield keeper.take(loaded)
            except InputError as error:
                yield Report("the last good table stays in force", error.diagnostics)
        if stopped(interval):
            return


def wait(seconds: float) -> bool:
    """Sleep, and keep following."""
    time.sleep(seconds)
    return False


def _pod_changes(old: Snapshot, new: Snapshot) -> list[PodChange] | None:
    """The pods that differ; None if anything else does."""
    out = []
    for one, other in new.changes(old):
        if one is not None and other is not None and _says(one) == _says(other):
            continue
        if any(it is not None and (it.group, it.kind) != ("", "Pod") for it in (one, other)):
            return None
        out.append(PodChange(one, other))
    return out


def _says(resource: Resource) -> tuple[str, str]:
    """What an object says, wherever it stands. In writing, because 1 and true are equal values and not the same."""
    return resource.version, repr(resource.value)
