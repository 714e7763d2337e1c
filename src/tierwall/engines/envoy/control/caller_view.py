"""The view of a caller: what it may use on a way, by one state of the policies, and whether two states differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.answer import Reason
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.engines.envoy.config.clause_scope import clause_scope
from tierwall.engines.envoy.control.cpu_limit import CpuLimit
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.decide import decide
from tierwall.tool.possible import name_grants, possible
from tierwall.tool.protocol import BY_URI
from tierwall.tool.request import ToolRequest, tool_request
from tierwall.tool.ways import GuardedWay, find_way

# What expressions say about names, by way, caller and method: clients ask for the same lists again and again.
DecidedNames = dict[tuple[GuardedWay, str | None, str, str], bool]
# The most names to remember, and the longest one, in characters.
MOST_NAMES, LONGEST_NAME = 100_000, 200
# The most CPU, in seconds, for the expressions of one list: all lists share one process. What comes after that is not
# shown; another request for the list begins with the names that are remembered.
MOST_SECONDS = 0.5


class CallerView(Struct, frozen=True, eq=False):
    """The permissions of a caller on a way, by one state of the policies."""

    way: GuardedWay
    caller: str | None
    decided: DecidedNames

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self.way.listener.port if self.way.listener is not None else 0

    def shown(self, method: str) -> Callable[[str], bool]:
        """Return whether some request of this method with a name may pass, for all names of a list."""
        request = self._request(method)
        partial = [grant for grant in name_grants(self.way.stack, request) if not grant.everything]
        # What is cheap comes first.
        partial.sort(key=lambda grant: bool(grant.conditions))
        limit = CpuLimit(MOST_SECONDS)

        def is_shown(name: str) -> bool:
            for grant in partial:
                if name not in grant.names:
                    return bool(grant.conditions) and decided(name)
            return True

        def decided(name: str) -> bool:
            key = self.way, self.caller, method, name
            known = self.decided.get(key)
            if known is not None:
                return known
            if limit.is_reached:
                return False
            known = all(name in grant.names or grant.may_hold(request, name) for grant in partial)
            if len(self.decided) >= MOST_NAMES:
                self.decided.clear()
            if len(name) <= LONGEST_NAME:
                self.decided[key] = known
            return known

        return is_shown

    def may(self, method: str, name: str) -> bool:
        """Whether some request of this method with this name may pass."""
        return possible(self.way.stack, self._request(method, name)).verdict is not Verdict.DENY

    def _request(self, method: str, name: str | None = None) -> ToolRequest:
        tool, uri = (None, name) if method in BY_URI else (name, None)
        return tool_request(self.way.backend, self.caller, method, tool, uri, port=self.port)

    def grants(self, method: str) -> object:
        """Return a value that differs from an earlier one if the names differ that this method may be used with.

        It holds what the rules about the caller say of the method, in any order. Rules that ask an authorizer have no
        part in it: what an authorizer may permit is shown.
        """
        return [
            bool(policy.closed)
            or {
                (rule.http, clause)
                for rule in policy.allows.of(self.caller)
                for clause in rule.clauses
                if clause_scope(clause).has(method)
            }
            for tier in self.way.stack
            for policy in tier.policies
        ]

    def asked_about(self, request: ToolRequest) -> frozenset[Reference] | None:
        """Return the policies that ask an authorizer about a request; None if it may not pass, whatever they answer."""
        policies = (policy.reference for tier in self.way.stack for policy in tier.policies)
        decision = decide(self.way.stack, request, dict.fromkeys(policies, Verdict.ALLOW))
        if decision.verdict is not Verdict.ALLOW:
            return None
        asked = (each for each in decision.evaluated if each.reason is Reason.AUTHORIZER_ALLOWED)
        return frozenset(each.policy.reference for each in asked)


# Returns the view of a caller at a place (`gateway`, `listenerSet`, `listener`, `backend`); None without such a place.
ViewOf = Callable[[Mapping[str, Any], str | None], CallerView | None]


def view_of(snapshot: Snapshot, place: Mapping[str, Any], caller: str | None) -> CallerView | None:
    """Return the view of a caller at a place; None if there is no such place."""
    problems: list[Diagnostic] = []
    names = place.get("gateway"), place.get("listener"), place.get("backend")
    way = find_way(snapshot, *names, problems, place.get("listenerSet"))
    return None if way is None or problems else CallerView(way, caller, _decided_names(snapshot))


@per_snapshot
def _decided_names(snapshot: Snapshot) -> DecidedNames:
    return {}
