"""The statuses of listeners of Gateways and ListenerSets (Gateway API, `ListenerStatus`).

A listener that Envoy is not given is not `Programmed`, whatever the reason. `Accepted` says whether its own
configuration could be used, `ResolvedRefs` whether its certificates and route kinds can, and `Conflicted` whether
another listener has its port or host name. Which listener wins is what Envoy is given, not a second decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tierwall.attach.listener import Listener, listeners, narrower_hostname
from tierwall.attach.status import bounded_message
from tierwall.core.words import join_names
from tierwall.engines.envoy.config.listener_problem import (
    CONFLICTS,
    INVALID_AUTHORITY,
    INVALID_CERTIFICATE,
    PORT_UNAVAILABLE,
    UNSUPPORTED_PROTOCOL,
    UNSUPPORTED_VALUE,
    ListenerProblem,
    listener_key,
    served_kinds,
)
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.serve.controller.compiled_gateways import GATEWAY_API, CompiledGateway, refusal_words
from tierwall.serve.controller.desired import WantedCondition, WantedListener
from tierwall.serve.controller.fleet_state import ProgrammedReason, ProgrammedState


class JudgedListener(NamedTuple):
    """A listener, why it is not served, the kinds of routes that it takes and names in vain, and other remarks."""

    listener: Listener
    problem: ListenerProblem | None
    kinds: tuple[KindKey, ...]
    unknown_kinds: tuple[str, ...]
    overlapping: tuple[str, ...]
    # Whether nobody has read its certificates, because no Envoy is served.
    is_unread: bool = False

    def known_by(self, programmed: ProgrammedState | None) -> JudgedListener:
        """Return it as far as it is known: certificates are read only for Gateways that are served here."""
        if programmed is None and self.problem is not None and self.problem.reason in _UNREAD:
            return self._replace(problem=None, is_unread=True)
        return self

    def status(self, attached: int, programmed: ProgrammedState | None) -> WantedListener:
        """Return its status; `programmed` is that of the Gateway or ListenerSet which it belongs to."""
        conditions = (
            self._accepted(),
            _programmed(self.problem, programmed),
            self._resolved(),
            self._conflicted(),
            *self._overlap(),
        )
        return WantedListener(self.listener.name, attached, self.kinds, conditions)

    def _accepted(self) -> WantedCondition:
        problem = self.problem
        if problem is not None and problem.is_authority:
            return _condition("Accepted", False, "NoValidCACertificate", problem.message)
        if problem is not None and (problem.reason in CONFLICTS or problem.reason in _NOT_ACCEPTED):
            return _condition("Accepted", False, problem.reason, problem.message)
        refs = len(list(list_of_maps(nested_map(self.listener.value, "tls").get("certificateRefs"))))
        words = f"; of its {refs} certificates only the first is used" if refs > 1 else ""
        return _condition("Accepted", True, "Accepted", f"Listener is accepted{words}")

    def _resolved(self) -> WantedCondition:
        problem = self.problem
        if problem is not None and problem.reason not in CONFLICTS and problem.reason not in _NOT_ACCEPTED:
            return _condition("ResolvedRefs", False, problem.reason, problem.message)
        if self.is_unread:
            words = "The certificates are not read: this controller does not serve the Gateway"
            return WantedCondition("ResolvedRefs", "Unknown", "Pending", words)
        if self.unknown_kinds:
            message = f"Routes of kind {join_names(self.unknown_kinds)} are not served here"
            return _condition("ResolvedRefs", False, "InvalidRouteKinds", message)
        return _condition("ResolvedRefs", True, "ResolvedRefs", "All references are resolved")

    def _conflicted(self) -> WantedCondition:
        if self.problem is not None and self.problem.reason in CONFLICTS:
            return _condition("Conflicted", True, self.problem.reason, self.problem.message)
        return _condition("Conflicted", False, "NoConflicts", "No conflicts")

    def _overlap(self) -> Iterator[WantedCondition]:
        if self.overlapping:
            message = (
                f"Host names overlap with those of {join_names(self.overlapping)}: a client may send requests for one "
                "of them over a connection that it opened for the other"
            )
            yield _condition("OverlappingTLSConfig", True, "OverlappingHostnames", message)


# Problems with the data of Secrets and ConfigMaps.
_UNREAD = (INVALID_CERTIFICATE, INVALID_AUTHORITY)
_NOT_ACCEPTED = (UNSUPPORTED_PROTOCOL, PORT_UNAVAILABLE, UNSUPPORTED_VALUE)


def _programmed(problem: ListenerProblem | None, programmed: ProgrammedState | None) -> WantedCondition:
    if problem is not None:
        reason = problem.reason if problem.reason in CONFLICTS else "Invalid"
        return _condition("Programmed", False, reason, problem.message)
    if programmed is not None and programmed.reason is ProgrammedReason.PROGRAMMED:
        return _condition("Programmed", True, "Programmed", "Every Envoy of the Gateway holds the listener")
    return _condition("Programmed", False, "Pending", unprogrammed_words(programmed))


def unprogrammed_words(programmed: ProgrammedState | None) -> str:
    """Return why a Gateway is not programmed."""
    if programmed is None:
        return "No Envoy has said yet that it serves the Gateway"
    return programmed.message or "Envoys do not hold the Gateway yet"


def judge_listeners(
    objects: Snapshot, compiled: CompiledGateway, owner: Resource, rivals: Sequence[Listener]
) -> tuple[JudgedListener, ...]:
    """Judge the listeners of a Gateway or ListenerSet; `rivals` are all listeners of the Gateway, its own too."""
    return tuple(_judge(objects, compiled, listener, rivals) for listener in listeners(owner))


def _judge(
    objects: Snapshot, compiled: CompiledGateway, listener: Listener, rivals: Iterable[Listener]
) -> JudgedListener:
    kinds, unknown = _kinds(listener)
    problem = _problem(objects, compiled, listener)
    overlapping = tuple(str(other) for other in rivals if _overlap(listener, other))
    return JudgedListener(listener, problem, kinds, unknown, overlapping)


def _problem(objects: Snapshot, compiled: CompiledGateway, listener: Listener) -> ListenerProblem | None:
    key = listener_key(listener)
    if key in compiled.served.listeners_in_force:
        return None
    if (known := compiled.served.unserved.get(key)) is not None:
        return known
    words = refusal_words(objects, compiled.refused, listener.owner)
    return ListenerProblem(UNSUPPORTED_VALUE, bounded_message(words or ["It cannot be compiled for Envoy"]))


def _kinds(listener: Listener) -> tuple[tuple[KindKey, ...], tuple[str, ...]]:
    """Return the kinds of routes that a listener takes, and those that it names but Envoy does not serve there."""
    served = served_kinds(listener)
    named = [
        (str(kind.get("group", GATEWAY_API)), str(kind.get("kind")))
        for kind in list_of_maps(nested_map(listener.value, "allowedRoutes").get("kinds"))
    ]
    if not named:
        return served, ()
    return tuple(key for key in served if key in named), tuple(
        kind for group, kind in named if (group, kind) not in served
    )


def _overlap(listener: Listener, other: Listener) -> bool:
    """Whether two HTTPS listeners on one port have different host names that overlap."""
    if listener.port != other.port or {listener.protocol, other.protocol} != {"HTTPS"}:
        return False
    if listener.hostname.lower() == other.hostname.lower():
        return False
    return (
        not listener.hostname or not other.hostname or narrower_hostname(listener.hostname, other.hostname) is not None
    )


def _condition(kind: str, status: bool, reason: str, message: str) -> WantedCondition:
    return WantedCondition(kind, str(status), reason, bounded_message([message]))
