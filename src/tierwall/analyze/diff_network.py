"""Compares the network plane: every group of connections that two snapshots decide differently.

docs/compare.md#what-is-compared.

A group is one difference. Its question is about two endpoints of the group and its lowest port. If no pods were given,
the endpoints are hypothetical pods, so that changed policies are not taken for no change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from tierwall.analyze.difference import OF_CONNECTIONS, Difference, SettledVerdict
from tierwall.analyze.future_pods import lacks_pods, uncompared, with_future_pods
from tierwall.analyze.rollout import replaced_workloads
from tierwall.core.answer import Omission
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel, network_model
from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.compare import ChangedConnections, differences
from tierwall.network.reach.naming import EndpointNames
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import Address, free_addresses, parse_address

_VERBS = {"opens": "can now reach", "closes": "can no longer reach", "alters": "can reach, by other domain names,"}


def network_differences(old: Snapshot, new: Snapshot) -> Iterator[Difference | Omission]:
    """Yield every group of connections that opens, closes or depends on other domain names."""
    future = with_future_pods(old, new) if lacks_pods(old, new) else None
    if future is not None:
        yield from future.limits()
        old, new = future.before, future.after
    models = network_model(old), network_model(new)
    taken = {address for model in models for end in (*model.pods, *model.nodes) for address in end.addresses}
    names: dict[EndpointClasses, EndpointNames] = {}
    alike: dict[EndpointClasses, Collection[Reference]] = {}
    replaced = replaced_workloads(old, new)
    is_changed = False
    for changed in differences(old, new):
        classes = changed.side.classes
        pair = _pair(changed, taken)
        if pair is None:
            continue  # every address of the group belongs to a pod or a node
        if classes not in names:
            names[classes], alike[classes] = EndpointNames(classes), _alike(classes, replaced)
        sources, destinations = (
            str(names[classes].describe(mask) if future is None else future.ends(classes, mask, names[classes]).named)
            for mask in (changed.sources, changed.destinations)
        )
        source, destination = _written_pair(pair, alike[classes])
        change = OF_CONNECTIONS[changed.change]
        is_changed = True
        for flow in changed.flows:
            protocol, port, _ = flow.ranges[0]
            before, after = (_settled(model, pair, protocol, port) for model in models)
            yield Difference(
                plane="network",
                change=change,
                question={"from": source, "to": destination, "protocol": protocol, "port": port},
                before=before,
                after=after,
                words=(f"{sources} {_VERBS[change]} {destinations} on", str(flow), ""),
                covers={"from": sources, "to": destinations, "ports": flow.ports},
            )
    if future is None and not is_changed:
        yield from uncompared(old, new)


def _pair(changed: ChangedConnections, taken: Collection[Address]) -> tuple[Endpoint, Endpoint] | None:
    """Return a source and a destination of a group that are not the same endpoint."""
    classes = changed.side.classes
    for destination in _ends(classes.members(changed.destinations), taken):
        for source in _ends(classes.members(changed.sources), taken):
            if str(source) != str(destination):
                return source, destination
    return None


def _ends(classes: Iterator[EndpointClass], taken: Collection[Address]) -> Iterator[Endpoint]:
    """Yield up to two endpoints of each class; addresses that belong to a pod or a node are not outside."""
    for endpoint_class in classes:
        if not endpoint_class.spans:
            yield from endpoint_class.members[:2]
            continue
        yield from map(address_endpoint, islice(free_addresses(endpoint_class.spans, taken), 2))


def _written_pair(pair: tuple[Endpoint, Endpoint], alike: Collection[Reference]) -> tuple[Any, Any]:
    """Return two endpoints as a question writes them: pods of workloads that are `alike` by their workload."""
    workloads = [end.workload if end.workload in alike else None for end in pair]
    if workloads[0] == workloads[1]:
        return _written(pair[0]), _written(pair[1])
    source, destination = (
        str(workload) if workload is not None else _written(end) for end, workload in zip(pair, workloads, strict=True)
    )
    return source, destination


def _alike(classes: EndpointClasses, replaced: Collection[Reference]) -> Collection[Reference]:
    """Return the workloads that a file replaces and whose pods are all alike.

    Their pods have other names afterwards. A question about the workload is one that both sides can answer.
    """
    bits: dict[Reference, set[int]] = {}
    for pod in classes.model.pods if replaced else ():
        if pod.workload is not None and pod.workload in replaced:
            bits.setdefault(pod.workload, set()).add(classes.of(pod).bit)
    return [workload for workload, numbers in bits.items() if len(numbers) == 1]


def _written(end: Endpoint) -> Any:
    """Return an endpoint as a question writes it."""
    if end.kind == "pod":
        return f"{end.namespace}/{end.name}"
    return {"node": end.name} if end.kind == "node" else {"ip": end.name}


def _settled(model: NetworkModel, pair: tuple[Endpoint, Endpoint], protocol: str, port: int) -> SettledVerdict | None:
    """Return the decision about a connection, or None if an endpoint does not exist here."""
    ends = [_counterpart(model, end) for end in pair]
    source, destination = ends
    if source is None or destination is None:
        return None
    detail = decide(model, source, destination, protocol, port)
    domains = detail.domains if detail.verdict is Verdict.CONDITIONAL else ()
    return SettledVerdict(detail.verdict, detail.decided_by, domains)


def _counterpart(model: NetworkModel, end: Endpoint) -> Endpoint | None:
    if end.kind == "pod":
        return model.pod(end.namespace, end.name)
    if end.kind == "node":
        return model.node(end.name)
    address = parse_address(end.name)
    return None if address is None else address_endpoint(address)
