"""The conditions of Gateways and ListenerSets of class `tierwall` (Gateway API, `GatewayStatus`, `ListenerSetStatus`).

`Programmed` is True only if every Envoy of the Gateway says that it holds the generation, and the Gateway has an
address. A Gateway with some listeners that are not served is accepted with reason `ListenersNotValid`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tierwall.attach.status import bounded_message
from tierwall.core.words import join_names
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.serve.controller.desired import INSECURE_FALLBACK, WantedCondition
from tierwall.serve.controller.fleet_state import ProgrammedReason, ProgrammedState
from tierwall.serve.controller.listener_statuses import JudgedListener, unprogrammed_words

Addresses = tuple[tuple[str, str], ...]
_ADDRESS_TYPES = ("IPAddress", "Hostname")


def gateway_conditions(
    gateway: Resource,
    refusal: Sequence[str],
    listeners: Sequence[JudgedListener],
    programmed: ProgrammedState | None,
    addresses: Addresses | None,
) -> tuple[WantedCondition, ...]:
    """Return the conditions of a Gateway; `refusal` says why it cannot be used as a whole, if so.

    `addresses` are None if somebody else runs its Envoys: then nobody here knows them.
    """
    accepted = _accepted(gateway, refusal, listeners)
    return accepted, _programmed(gateway, accepted, programmed, addresses), *_fallback(gateway)


def _accepted(gateway: Resource, refusal: Sequence[str], listeners: Sequence[JudgedListener]) -> WantedCondition:
    if refusal:
        return _false("Accepted", "Invalid", *refusal)
    if nested_map(gateway.spec, "infrastructure").get("parametersRef") is not None:
        message = "infrastructure.parametersRef is not supported; the Gateway is served without parameters"
        return _false("Accepted", "InvalidParameters", message)
    types = [str(address.get("type", "IPAddress")) for address in list_of_maps(gateway.spec.get("addresses"))]
    if unsupported := [kind for kind in types if kind not in _ADDRESS_TYPES]:
        return _false(
            "Accepted", "UnsupportedAddress", f"Addresses of type {join_names(unsupported)} are not supported"
        )
    return _with_listeners("Gateway", listeners)


def _with_listeners(kind: str, listeners: Sequence[JudgedListener]) -> WantedCondition:
    broken = [f"{judged.listener.name}: {judged.problem.message}" for judged in listeners if judged.problem is not None]
    if broken and len(broken) == len(listeners):
        return _false("Accepted", "ListenersNotValid", "No listener can be served", *broken)
    if broken:
        return _true("Accepted", "ListenersNotValid", "Some listeners cannot be served", *broken)
    return _true("Accepted", "Accepted", f"{kind} is accepted")


def _programmed(
    gateway: Resource, accepted: WantedCondition, programmed: ProgrammedState | None, addresses: Addresses | None
) -> WantedCondition:
    if accepted.status != "True":
        return _false("Programmed", "Invalid", accepted.message)
    if programmed is not None and programmed.reason is ProgrammedReason.ENGINE_REFUSED:
        return _false("Programmed", "Invalid", unprogrammed_words(programmed))
    if programmed is None or programmed.reason is not ProgrammedReason.PROGRAMMED:
        return _false("Programmed", "Pending", unprogrammed_words(programmed))
    if addresses is None:
        return _true("Programmed", "Programmed", "Every Envoy of the Gateway holds it")
    if not addresses:
        return _false("Programmed", "AddressNotAssigned", "The Gateway has no address yet")
    if missing := _missing(gateway, addresses):
        message = (
            f"The Gateway does not have {join_names(missing)}; it has {join_names([value for _, value in addresses])}"
        )
        return _false("Programmed", "AddressNotUsable", message)
    return _true("Programmed", "Programmed", "Every Envoy of the Gateway holds it")


def _missing(gateway: Resource, addresses: Collection[tuple[str, str]]) -> list[str]:
    """Return the addresses that a Gateway asks for and does not have."""
    wanted = (
        (address.get("type", "IPAddress"), address.get("value"))
        for address in list_of_maps(gateway.spec.get("addresses"))
    )
    return [str(value) for kind, value in wanted if value and (kind, value) not in addresses]


def _fallback(gateway: Resource) -> Iterator[WantedCondition]:
    """Yield the condition that warns of clients without a valid certificate."""
    frontend = nested_map(gateway.spec, "tls", "frontend")
    settings = [frontend.get("default"), *(entry.get("tls") for entry in list_of_maps(frontend.get("perPort")))]
    modes = [nested_map(each, "validation").get("mode") for each in settings if isinstance(each, dict)]
    if "AllowInsecureFallback" in modes:
        message = "Clients without a valid certificate are let in; they have no identity"
        yield _true(INSECURE_FALLBACK, "ConfigurationChanged", message)


def listener_set_conditions(
    gateway: WantedCondition,
    refusal: tuple[str, str] | None,
    listeners: Sequence[JudgedListener],
    programmed: ProgrammedState | None,
) -> tuple[WantedCondition, ...]:
    """Return the conditions of a ListenerSet; `gateway` is `Accepted` of its Gateway, `refusal` a reason and words."""
    if refusal is not None:
        return _false("Accepted", *refusal), _false("Programmed", *refusal)
    if gateway.status != "True":
        words = f"The Gateway is not accepted: {gateway.message}"
        return _false("Accepted", "ParentNotAccepted", words), _false("Programmed", "ParentNotProgrammed", words)
    accepted = _with_listeners("ListenerSet", listeners)
    if accepted.status != "True":
        return accepted, _false("Programmed", accepted.reason, accepted.message)
    if programmed is None or programmed.reason is not ProgrammedReason.PROGRAMMED:
        is_refused = programmed is not None and programmed.reason is ProgrammedReason.ENGINE_REFUSED
        return accepted, _false("Programmed", "Invalid" if is_refused else "Pending", unprogrammed_words(programmed))
    return accepted, _true("Programmed", "Programmed", "Every Envoy of the Gateway holds it")


def _true(kind: str, reason: str, *lines: str) -> WantedCondition:
    return WantedCondition(kind, "True", reason, bounded_message(lines))


def _false(kind: str, reason: str, *lines: str) -> WantedCondition:
    return WantedCondition(kind, "False", reason, bounded_message(lines))
