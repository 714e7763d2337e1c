"""The ends of a question: what `from` and `to` name, and the endpoints that they stand for.

docs/network.md#ask-about-workloads-services-and-the-outside. A pod, an address or a node is a single endpoint. A
workload stands for its pods, a Service for the pods behind one of its ports, and `outside` for every address that no
pod and no node has. Endpoints that no policy tells apart form one `AlikeEndpoints`, so that a question about a thousand
pods costs few decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.core.diagnostics import NO_SUCH_NAME, Diagnostic, near_miss
from tierwall.core.reference import Reference
from tierwall.core.words import as_given, join_names
from tierwall.network.model.endpoints import Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.resources.gaps import missing, unknown_because
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.workloads import WORKLOADS, controller
from tierwall.values.addresses import Span, free_addresses, parse_address
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.network.reach.classes import EndpointClasses

OUTSIDE = "outside"
KINDS = tuple(dict.fromkeys(kind for _, kind in WORKLOADS))
_PODS = (("", "Pod"),)
# What stands between a workload and its pods.
_BETWEEN = {"Deployment": ("apps", "ReplicaSet"), "CronJob": ("batch", "Job")}
FORMS = "`namespace/pod`, a workload such as `Deployment/namespace/name`, `outside`, {ip: …} or {node: …}"
DESTINATIONS = FORMS.replace("`outside`", "`Service/namespace/name`, `outside`")
_LIKE_IPV4 = pattern(r"\d+(?:\.\d+){3}")


class AlikeEndpoints(Struct, frozen=True, eq=False):
    """Endpoints that no policy tells apart: pods, or addresses in spans with one of them as the only member."""

    members: tuple[Endpoint, ...]
    spans: tuple[Span, ...] = ()
    # The port of these pods that a Service leads to.
    port: int | None = None


class AskedEndpoints(Struct, frozen=True, eq=False):
    """One end of a question: its name, and the endpoints that it stands for, sorted into those that are alike."""

    name: str
    groups: tuple[AlikeEndpoints, ...]
    # Whether the end is a workload, a Service or `outside`, and so may stand for several endpoints.
    several: bool = False
    notes: tuple[str, ...] = ()


def plain_pod(network: NetworkModel, value: object) -> Endpoint | None:
    """Return the pod of an end that is written as `namespace/pod`, as most are; None for all other ends."""
    if type(value) is not str:
        return None
    namespace, _, name = value.partition("/")
    return network.pod(namespace, name)


class EndFinder:
    """Finds the endpoints that the ends of a question name. Everything wrong with them is added to `problems`."""

    def __init__(self, snapshot: Snapshot, network: NetworkModel, problems: list[Diagnostic]) -> None:
        self._snapshot = snapshot
        self._network = network
        self._problems = problems

    def find(self, value: object, key: str, protocol: str, port: int | str) -> AskedEndpoints | None:
        """Return what `from` or `to` names, or None after adding a problem; a Service needs protocol and port."""
        if isinstance(value, Mapping) and len(value) == 1 and ("ip" in value or "node" in value):
            return self._single(self._by_address_or_node(value, key))
        if value == OUTSIDE:
            return AskedEndpoints(OUTSIDE, tuple(self._outside()), several=True)
        parts = value.split("/") if isinstance(value, str) else []
        if len(parts) == 2 and all(parts):
            return self._by_name(*parts)
        if len(parts) == 3 and all(parts):
            return self._by_reference(Reference(*parts), key, protocol, port)
        forms = DESTINATIONS if key == "to" else FORMS
        return self._refuse(f"expected {forms} as `{key}`, found {as_given(value)}")

    def pods(self, name: str, pods: Iterable[tuple[Endpoint, int | None]]) -> AskedEndpoints:
        """Return some pods of the policies in force as an end with a name of its own, each with the port asked about.

        Every pod is one of the model that has not ended.
        """
        same = ((pod, port) for given, port in pods if (pod := self._same(given)) is not None)
        return AskedEndpoints(name, self._sorted(same), several=True)

    def _refuse(self, message: str, hint: str = "", code: str = "TW703") -> AskedEndpoints | None:
        """Add a problem, and return None: the end names nothing."""
        self._problems.append(Diagnostic(code, message, hint=hint))
        return None

    def _single(self, endpoint: Endpoint | None) -> AskedEndpoints | None:
        return None if endpoint is None else AskedEndpoints(str(endpoint), (AlikeEndpoints((endpoint,)),))

    def _by_address_or_node(self, value: Mapping[str, object], key: str) -> Endpoint | None:
        network = self._network
        if "node" in value:
            name = value["node"]
            if not isinstance(name, str):
                hint = "put it in quotes" if isinstance(name, bool | int | float) else ""
                self._refuse(f"expected the name of a node in `{key}`, found {as_given(name)}", hint)
                return None
            node = network.node(name)
            if node is None:
                self._missing(f"node `{name}`", near_miss(name, (node.name for node in network.nodes)), (("", "Node"),))
            return node
        address = parse_address(value["ip"])
        if address is not None:
            return network.pod_at(address) or address_endpoint(address)
        self._refuse(f"expected an IP address in `{key}`, found {as_given(value['ip'])}")
        return None

    def _by_name(self, namespace: str, name: str) -> AskedEndpoints | None:
        """Return a pod, or the only workload of this name."""
        pod = self._pod(namespace, name)
        if pod is not None:
            return self._single(pod)
        workloads = [
            workload
            for group, kind in WORKLOADS
            if (workload := self._snapshot.get(group, kind, namespace, name)) is not None
        ]
        if len(workloads) == 1:
            return self._workload(workloads[0])
        if workloads:
            names = join_names([str(workload.reference) for workload in workloads], None)
            return self._refuse(f"`{namespace}/{name}` names several workloads: {names}", "write the kind as well")
        return self._unknown(namespace, name)

    def _by_reference(self, reference: Reference, key: str, protocol: str, port: int | str) -> AskedEndpoints | None:
        kind, namespace, name = reference[:3]
        if kind == "Pod":
            pod = self._pod(namespace, name)
            return self._unknown(namespace, name) if pod is None else self._single(pod)
        if kind == "Service":
            if key == "from":
                return self._refuse(
                    f"{reference} opens no connections", "ask about the workload or a pod behind the Service"
                )
            return self._service(reference, protocol, port)
        if kind not in KINDS:
            known = ("Pod", *KINDS, "Service") if key == "to" else ("Pod", *KINDS)
            message = f"expected one of {join_names(known, None)} as the kind of `{reference}` in `{key}`"
            return self._refuse(message, near_miss(kind, known))
        for group in (group for group, known_kind in WORKLOADS if known_kind == kind):
            workload = self._snapshot.get(group, kind, namespace, name)
            if workload is not None:
                return self._workload(workload)
        return self._unknown_object(reference, [(group, known) for group, known in WORKLOADS if known == kind])

    def _pod(self, namespace: str, name: str) -> Endpoint | None:
        return self._network.pod(namespace, name) or self._network.ended_pod(namespace, name)

    def _workload(self, workload: Resource) -> AskedEndpoints | None:
        reference = workload.reference
        pods = self._network.pods_of(reference) or tuple(self._created_by(workload))
        if pods:
            return AskedEndpoints(str(reference), self._sorted((pod, None) for pod in pods), several=True)
        kinds = (*_PODS, _BETWEEN[workload.kind]) if workload.kind in _BETWEEN else _PODS
        because = unknown_because(self._snapshot, kinds, workload.namespace)
        if because:
            return self._refuse(f"the pods of {reference} are not known: {because}")
        owner = controller(self._snapshot, workload)
        hint = f"ask about {owner.reference}, which owns it" if owner is not None else ""
        return self._refuse(f"{reference} has no running pod", hint)

    def _created_by(self, workload: Resource) -> Iterator[Endpoint]:
        """Yield the pods of a workload that another workload owns: such pods count as the owner's."""
        for resource in self._snapshot.in_namespace("", "Pod", workload.namespace):
            pod = self._network.pod(resource.namespace, resource.name)
            if pod is not None and controller(self._snapshot, resource) is workload:
                yield pod

    def _service(self, reference: Reference, protocol: str, port: int | str) -> AskedEndpoints | None:
        from tierwall.network.model.services import service_targets

        service = self._snapshot.get("", "Service", reference.namespace, reference.name)
        if service is None:
            return self._unknown_object(reference, [("", "Service")])
        targets = service_targets(self._snapshot, service)
        if targets.problem:
            # Ports are read only if the Service has a selector.
            because = unknown_because(self._snapshot, _PODS, reference.namespace)
            if because and targets.ports and not targets.pods:
                return self._refuse(f"the pods behind {reference} are not known: {because}")
            return self._refuse(targets.problem)
        wanted, notes = targets.port(port, protocol), []
        if service.spec.get("clusterIP") == "None" and isinstance(port, int):
            # Clients of a headless Service connect to its pods themselves, and no port is translated.
            asked = [(pod, port) for pod in targets.pods]
            if wanted is not None and wanted.target != port:
                notes.append(f"{reference} is headless, so port {port} is not translated to {wanted.target}")
        elif wanted is None:
            shown = f"port `{port}`" if isinstance(port, str) else f"port {port}"
            ports = join_names([str(port) for port in targets.ports], None)
            return self._refuse(f"{reference} has no {protocol} {shown}; it has {ports}")
        else:
            asked = [(pod, number) for number, pods in wanted.pods.items() for pod in pods]
            lacking = join_names([str(pod) for pod in wanted.lacking])
            if not asked:
                return self._refuse(f"no pod of {reference} has a {protocol} port named `{wanted.target}`")
            if lacking:
                notes.append(f"{reference} does not lead to {lacking}: no port there is named `{wanted.target}`")
        # The pods of a Service are those of the policies in force; a model with shadow policies has its own.
        pods = [(pod, number) for asked_pod, number in asked if (pod := self._same(asked_pod)) is not None]
        return AskedEndpoints(str(reference), self._sorted(pods), several=True, notes=tuple(notes))

    def _same(self, pod: Endpoint) -> Endpoint | None:
        return self._network.pod(pod.namespace, pod.name)

    def _sorted(self, pods: Iterable[tuple[Endpoint, int | None]]) -> tuple[AlikeEndpoints, ...]:
        """Sort pods into those that no policy tells apart."""
        classes = _classes(self._snapshot, self._network)
        alike: dict[tuple[int, int | None], list[Endpoint]] = {}
        for pod, port in sorted(pods, key=lambda asked: (asked[0].namespace, asked[0].name)):
            alike.setdefault((classes.of(pod).bit, port), []).append(pod)
        return tuple(AlikeEndpoints(tuple(members), port=port) for (_, port), members in alike.items())

    def _outside(self) -> Iterator[AlikeEndpoints]:
        """Yield the addresses outside the cluster, by those that no policy tells apart."""
        network = self._network
        taken = {address for endpoint in (*network.pods, *network.nodes) for address in endpoint.addresses}
        for endpoint_class in _classes(self._snapshot, network).all:
            address = next(free_addresses(endpoint_class.spans, taken), None)
            if address is not None:
                yield AlikeEndpoints((address_endpoint(address),), endpoint_class.spans)

    def _unknown(self, namespace: str, name: str) -> AskedEndpoints | None:
        siblings = [pod for pod in self._network.pods if pod.namespace == namespace]
        pods_unknown = unknown_because(self._snapshot, _PODS, namespace)
        if siblings or pods_unknown:
            names = {pod.name for pod in siblings} | {pod.workload.name for pod in siblings if pod.workload is not None}
            what = f"pod `{name}` in namespace `{namespace}`"
            # The name may be that of a workload that could not be read. If pods could not be read, that says enough.
            hint = near_miss(name, names) or (
                "" if pods_unknown else unknown_because(self._snapshot, WORKLOADS, namespace)
            )
            return self._missing(what, hint, _PODS, namespace)
        populated = {pod.namespace for pod in self._network.pods}
        hint = near_miss(namespace, populated) or _address_hint(namespace, name)
        return self._missing(f"pod in namespace `{namespace}`", hint, _PODS, namespace)

    def _unknown_object(self, reference: Reference, kinds: Sequence[tuple[str, str]]) -> AskedEndpoints | None:
        known = [str(resource.reference) for kind in kinds for resource in self._snapshot.of_kind(*kind)]
        return self._missing(str(reference), near_miss(str(reference), known), kinds, reference.namespace)

    def _missing(
        self, what: str, hint: str, kinds: Sequence[tuple[str, str]], namespace: str = ""
    ) -> AskedEndpoints | None:
        return self._refuse(*missing(self._snapshot, what, hint, kinds, namespace), NO_SUCH_NAME)


def _address_hint(namespace: str, name: str) -> str:
    """Return a hint for a name that is perhaps meant as an address."""
    if _LIKE_IPV4.fullmatch(name) or ":" in name:
        return f"`{name}` is not an IP address"
    if name.isdecimal() and (_LIKE_IPV4.fullmatch(namespace) or ":" in namespace):
        return "ask about one address; blocks are not endpoints"
    return ""


@per_snapshot
def _classes(snapshot: Snapshot, network: NetworkModel) -> EndpointClasses:
    from tierwall.network.reach.classes import EndpointClasses

    return EndpointClasses(network)
