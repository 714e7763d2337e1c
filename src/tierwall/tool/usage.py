"""Calls of tools in a decision log, against what callers may call (docs/tool.md#who-used-what).

The log is that of `tierwall run`: one JSON object per line. Only calls of tools count. Lines that are not decisions
about calls are skipped: programs write other lines to the same stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tierwall.core.answer import Omission
from tierwall.core.verdict import Verdict
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import Permit, ToolRow, grants
from tierwall.tool.model import model
from tierwall.tool.possible import OTHER
from tierwall.tool.protocol import CALL
from tierwall.tool.rules import is_spiffe_id

# A decision is far shorter; a longer line is not read.
MAX_LINE = 1 << 16


class LoggedWay(NamedTuple):
    """A way that a call took: the names of the Gateway and the listener, and the backend's reference."""

    gateway: str
    listener: str
    backend: str


class _Line(Struct, frozen=True):
    """The part of a line that counts."""

    time: str
    verdict: str
    method: str
    tool: str
    gateway: str
    listener: str
    backend: str
    plane: str = "tool"
    caller: str | None = None


class CalledTool(Struct, frozen=True, kw_only=True):
    """How often a caller called a tool on a way, and whether it may do so now; `permit` is None if there is no way."""

    caller: str | None
    tool: str
    allowed: int = 0
    denied: int = 0
    last: str = ""
    permit: Permit | None = None

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return self.allowed + self.denied


class CalledWay(Struct, frozen=True, kw_only=True):
    """The use of a way: tools that callers called or may call, and those of them that nobody called."""

    way: LoggedWay
    uses: tuple[CalledTool, ...]
    uncalled: tuple[str, ...]


class CallReport(Struct, frozen=True, kw_only=True):
    """The use of all ways, and what was read: how many calls, from when until when, and how many other lines."""

    ways: tuple[CalledWay, ...]
    calls: int = 0
    skipped: int = 0
    first: str = ""
    last: str = ""
    not_considered: tuple[Omission, ...] = ()


class CallLog:
    """Counts the calls of a log."""

    def __init__(self) -> None:
        self.allowed: Counter[tuple[LoggedWay, str | None, str]] = Counter()
        self.denied: Counter[tuple[LoggedWay, str | None, str]] = Counter()
        self.last_times: dict[tuple[LoggedWay, str | None, str], str] = {}
        self.skipped = 0
        self.first = self.last = ""
        self._decoder = msgspec.json.Decoder(_Line)

    def read(self, lines: Iterable[bytes]) -> None:
        """Count the calls of some lines."""
        for line in lines:
            try:
                call = self._decoder.decode(line) if len(line) <= MAX_LINE else None
            except (msgspec.DecodeError, RecursionError):
                call = None
            if call is None or (call.plane, call.method) != ("tool", CALL):
                self.skipped += 1
                continue
            key = LoggedWay(call.gateway, call.listener, call.backend), call.caller, call.tool
            (self.allowed if call.verdict == "Allow" else self.denied)[key] += 1
            self.last_times[key] = max(self.last_times.get(key, ""), call.time)
            self.first, self.last = min(self.first or call.time, call.time), max(self.last, call.time)


def usage(
    snapshot: Snapshot, log: CallLog, caller: Any = None, gateway: str | None = None, backend: str | None = None
) -> CallReport:
    """Compare the calls of a log with what callers may call now: one caller, or those of the log and of rules."""
    calls = log.allowed + log.denied
    called: dict[str | None, set[str]] = {}
    for _, who, tool in calls:
        called.setdefault(who, set()).add(tool)
    # What is wrong with the question is said here.
    asked = grants(snapshot, caller, gateway, backend)
    callers = {*called, *_named_callers(snapshot)} if caller is None else {asked.caller}
    rows: dict[LoggedWay, dict[tuple[str | None, str], ToolRow]] = {}
    for who in callers:
        # A certificate may have any URI. One that is not a SPIFFE id is the source of no rule.
        spiffe = who if who is None or is_spiffe_id(who) else None
        for row in grants(snapshot, spiffe, gateway, backend, called.get(who, ())).rows:
            way = LoggedWay(f"{row.gateway.namespace}/{row.gateway.name}", row.listener, str(row.backend))
            rows.setdefault(way, {})[who, row.tool] = row
    # Calls on ways that are there no more count, too, unless ways are selected.
    is_any_way = gateway is None and backend is None
    gone = {way for way, who, _ in calls if is_any_way and who in callers}
    ways = tuple(_way(way, rows.get(way, {}), log, callers) for way in sorted({*rows, *gone}))
    return CallReport(
        ways=ways,
        calls=sum(calls.values()),
        skipped=log.skipped,
        first=log.first,
        last=log.last,
        not_considered=asked.not_considered,
    )


def _named_callers(snapshot: Snapshot) -> Iterator[str]:
    policies = model(snapshot)
    return (who for resource in policies.resources for who in policies.policy(resource).allows.callers())


def _way(
    way: LoggedWay, rows: dict[tuple[str | None, str], ToolRow], log: CallLog, callers: set[str | None]
) -> CalledWay:
    keys = {(who, tool) for place, who, tool in log.last_times if place == way and who in callers}
    may = {key for key, row in rows.items() if row.tool != OTHER and row.verdict is not Verdict.DENY}
    uses = tuple(
        CalledTool(
            caller=who,
            tool=tool,
            allowed=log.allowed[way, who, tool],
            denied=log.denied[way, who, tool],
            last=log.last_times.get((way, who, tool), ""),
            permit=rows.get((who, tool)),
        )
        for who, tool in sorted(keys | may, key=lambda key: (key[0] is None, key[0] or "", key[1]))
    )
    called = {tool for place, _, tool in log.last_times if place == way}
    return CalledWay(way=way, uses=uses, uncalled=tuple(sorted({tool for _, tool in may} - called)))
