"""The connections of a path: from a pod to the pods of a Gateway, and from those to the pods of a backend.

docs/path.md#the-hops. A connection whose ends are not known is not judged. Its hop is NotApplicable, and the answer
names it as not considered.
"""

from __future__ import annotations

from msgspec import structs

from tierwall.attach.listener import Listener
from tierwall.core.answer import DEFAULT, Answer, Omission, Reason, Step
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict
from tierwall.core.words import join_names
from tierwall.network.ends import AskedEndpoints, EndFinder
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.model.ways import GATEWAY_LABEL
from tierwall.network.question import NetworkQuestion, ask_between
from tierwall.path.backend_endpoint import TCP, BackendEndpoint
from tierwall.path.gateway_pods import listening_pods
from tierwall.resources.gaps import unknown_because
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


class PathConnections:
    """The two connections of a path: from the pod to the Gateway, and from the Gateway to the backend."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: str,
        gateway: Resource,
        listener: Listener | None,
        pods: tuple[Endpoint, ...],
        end: BackendEndpoint,
    ) -> None:
        self._snapshot = snapshot
        self._source = source
        self._gateway = gateway
        self._listener = listener
        self._pods = pods
        self._end = end

    def to_gateway(self) -> Answer:
        """Ask whether the pod can reach the Gateway's pods on the port of the listener."""
        name, listener = str(self._gateway.reference), self._listener
        what = f"{self._source} can reach {name}"
        if not self._pods:
            return self._without_pods(what)
        if listener is None or not listener.port:
            return self._not_judged(what, f"{name} has no listener with a port", self._gateway)
        protocol = "UDP" if listener.protocol == "UDP" else TCP
        listening = listening_pods(self._snapshot, self._pods, listener.port, protocol)

        def ends(network: NetworkModel) -> tuple[AskedEndpoints, AskedEndpoints]:
            finder = EndFinder(self._snapshot, network, [])
            source = finder.find(self._source, "from", protocol, 0)
            assert source is not None, "it was found before"
            return source, finder.pods(name, listening)

        return ask_between(self._snapshot, ends, protocol, listener.port)

    def to_backend(self, backend: Reference) -> Answer:
        """Ask whether the Gateway's pods can reach those of the backend."""
        name, end = str(self._gateway.reference), self._end
        what = f"{name} can reach {end.service or end.host or backend}"
        if not self._pods:
            return self._without_pods(what)
        problems: list[Diagnostic] = []
        if not end.problem:
            self._backend(EndFinder(self._snapshot, network_model(self._snapshot), problems))
        if end.problem or problems:
            why = end.problem or "; ".join(problem.message for problem in problems)
            return self._not_judged(what, why, self._snapshot.find(end.service or backend), backend)

        def ends(network: NetworkModel) -> tuple[AskedEndpoints, AskedEndpoints]:
            finder = EndFinder(self._snapshot, network, [])
            return finder.pods(name, ((pod, None) for pod in self._pods)), self._backend(finder)

        port = end.ports[0] if len(end.ports) == 1 else join_names([str(number) for number in end.ports], None)
        return ask_between(self._snapshot, ends, TCP, port)

    def _backend(self, finder: EndFinder) -> AskedEndpoints:
        """Return the pods behind all ports of the backend, or the addresses that it may have."""
        end = self._end
        named = [(asked, port) for port in end.ports if (asked := finder.find(end.to, "to", TCP, port)) is not None]
        notes = dict.fromkeys(note for asked, _ in named for note in asked.notes)
        if end.host:
            notes[f"only DNS knows the address of {end.host}: it may be any address outside the cluster"] = None
        return AskedEndpoints(
            end.host or next((asked.name for asked, _ in named), ""),
            tuple(structs.replace(group, port=group.port or port) for asked, port in named for group in asked.groups),
            several=True,
            notes=tuple(notes),
        )

    def _without_pods(self, what: str) -> Answer:
        label = f"{GATEWAY_LABEL}: {self._gateway.name}"
        namespace = self._gateway.namespace
        why = f"no pod in namespace {namespace} carries the label {label} (`gatewayPods` can name them)"
        if because := unknown_because(self._snapshot, (("", "Pod"),), namespace):
            why = f"the pods of {self._gateway.reference} are not known: {because}"
        return self._not_judged(what, why, self._gateway)

    def _not_judged(self, what: str, why: str, cause: Resource | None, missing: Reference | None = None) -> Answer:
        """Return the hop of a connection that cannot be judged, and say so in what was not considered."""
        reference = cause.reference if cause is not None else missing
        assert reference is not None
        omission = Omission(
            reason="network",
            kind=reference.kind,
            group=cause.group if cause is not None else None,
            count=1,
            examples=(reference,),
            at=cause.position() if cause is not None else None,
            effect=f"{why}, so connections to it and from it are not judged",
        )
        step = Step(tier="NotApplicable", verdict=StepVerdict.NOT_APPLICABLE, reason=Reason.NOT_UNDER_POLICY, note=why)
        return Answer(
            plane=NetworkQuestion.plane,
            verdict=StepVerdict.NOT_APPLICABLE,
            sentence=f"whether {what} is not judged: {why}",
            decided_by=(DEFAULT,),
            steps=(step,),
            not_considered=(omission,),
        )
