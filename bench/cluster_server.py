"""A simulated API server for `bench cluster`: its pages are packed in advance, so it costs next to nothing.

`python -m bench.cluster_server PODS RATE` says on standard error where it listens. A watch of pods gets RATE changes a
second, each to another pod. Half of them are changes to labels. The others are changes that nobody reads, such as the
reports of kubelets.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from bench.loading import pod

PAGE, NODES, PODS_OF_NAMESPACE = 500, 100, 10
TIERS = ("web", "api", "db")
# The paths of lists, with the kind of their objects.
KINDS = {
    "/api/v1/pods": "Pod",
    "/api/v1/namespaces": "Namespace",
    "/api/v1/services": "Service",
    "/api/v1/nodes": "Node",
    "/apis/apps/v1/deployments": "Deployment",
    "/apis/apps/v1/replicasets": "ReplicaSet",
    "/apis/networking.k8s.io/v1/networkpolicies": "NetworkPolicy",
}
_WITHOUT_NAMESPACE = ("Namespace", "Node")
# What the managers of a pod have set: a third of its text.
_FIELDS: dict[str, Any] = {f"f:field-{number}": {".": {}, "f:name": {}, "f:value": {}} for number in range(14)}

Object = dict[str, Any]


def objects(kind: str, pods: int) -> Iterator[Object]:
    """Yield the objects of a kind: 10 pods, 3 policies, 3 Services and 3 Deployments a namespace."""
    namespaces = pods // PODS_OF_NAMESPACE
    if kind == "Pod":
        yield from (live_pod(number, namespaces) for number in range(pods))
    elif kind == "Node":
        for number in range(NODES):
            addresses = [{"type": "InternalIP", "address": f"192.0.2.{number}"}]
            yield {"metadata": _metadata(f"node-{number}", ""), "status": {"addresses": addresses}}
    elif kind == "Namespace":
        for number in range(namespaces):
            labels = {"kubernetes.io/metadata.name": f"shop-{number}", "team": f"team-{number % 20}"}
            yield {"metadata": _metadata(f"shop-{number}", "") | {"labels": labels}}
    else:
        for number in range(3 * namespaces):
            tier = TIERS[number // namespaces]
            metadata = _metadata(tier, f"shop-{number % namespaces}") | {"labels": {"app": "web", "tier": tier}}
            yield {"metadata": metadata, "spec": _spec(kind, tier, number)}


def live_pod(number: int, namespaces: int, changes: int = 0) -> Object:
    """Return a pod of 5.5 kB, as an API server lists it."""
    value = pod(number)
    tier = TIERS[number // namespaces % 3]
    name, namespace, labels = f"{tier}-{number}", f"shop-{number % namespaces}", value["metadata"]["labels"]
    metadata = value["metadata"] | _metadata(name, namespace)
    metadata["labels"] = {**labels, "tier": tier} | ({"turn": str(changes)} if changes % 2 else {})
    metadata["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": tier, "uid": _uid(tier, namespace), "controller": True}
    ]
    metadata["managedFields"] = [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": {f"f:{part}": _FIELDS}}
        for manager, part in (("kube-controller-manager", "metadata"), ("kubelet", "spec"), ("kubelet", "status"))
    ]
    address = value["status"]["podIP"]
    status = {"podIPs": [{"ip": address}], "hostIP": "192.0.2.1", "observed": changes, "qosClass": "Burstable"}
    return {"metadata": metadata, "spec": value["spec"], "status": value["status"] | status}


def _metadata(name: str, namespace: str) -> Object:
    metadata = {"name": name, "uid": _uid(name, namespace), "resourceVersion": "1000"}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return metadata | ({"namespace": namespace} if namespace else {})


def _uid(name: str, namespace: str) -> str:
    return f"{hash((name, namespace)) & (1 << 64) - 1:016x}-{hash(namespace) & 0xFFFF:04x}"


def _spec(kind: str, tier: str, number: int) -> Object:
    selector = {"matchLabels": {"tier": tier}}
    if kind == "Service":
        return {"selector": {"tier": tier}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    if kind != "NetworkPolicy":
        return {"replicas": 3, "selector": selector, "template": {"metadata": {"labels": {"tier": tier}}}}
    neighbour = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": f"shop-{number // 3 * 2}"}}}
    peers = [{"podSelector": {"matchLabels": {"tier": TIERS[number % 3]}}}, neighbour]
    away = {"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": 443}]}
    return {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers, "ports": [{"port": 8080}]}],
        "egress": [{"to": peers}, away, {"ports": [{"protocol": "UDP", "port": 53}]}],
    }


class SimulatedServer:
    """Answers discovery, lists in pages and watches."""

    def __init__(self, pods: int, rate: int) -> None:
        self._pods, self._rate = pods, rate
        # Discovery, and the pages of each list, packed.
        self._packed = {path: [gzip.compress(json.dumps(self._discovery(path)).encode())] for path in ("/api", "/apis")}
        for path, kind in KINDS.items():
            self._packed[path] = list(self._pages(kind))
        changed = (live_pod(number * 7 % pods, pods // PODS_OF_NAMESPACE, number) for number in range(min(pods, 5_000)))
        self._changes = [value | {"apiVersion": "v1", "kind": "Pod"} for value in changed] if rate else []

    def _pages(self, kind: str) -> Iterator[bytes]:
        # Not all pods at once: they are large.
        source, count = objects(kind, self._pods), sum(1 for _ in objects(kind, self._pods))
        for start in range(0, count, PAGE):
            page = list(islice(source, PAGE))
            metadata: Object = {"resourceVersion": "1000"}
            if start + PAGE < count:
                metadata |= {"continue": str(start // PAGE + 1), "remainingItemCount": count - start - PAGE}
            body = {"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": page}
            yield gzip.compress(msgspec.json.encode(body), 1)

    def _discovery(self, start: str) -> Object:
        groups: dict[str, list[Object]] = {}
        for path, kind in KINDS.items():
            if path.split("/")[1] == start[1:]:
                scope = "Cluster" if kind in _WITHOUT_NAMESPACE else "Namespaced"
                entry = {"resource": path.split("/")[-1], "responseKind": {"kind": kind}, "scope": scope}
                groups.setdefault(path.split("/")[2] if start == "/apis" else "", []).append(
                    entry | {"verbs": ["list", "watch"]}
                )
        return {
            "kind": "APIGroupDiscoveryList",
            "items": [
                {"metadata": {"name": group}, "versions": [{"version": "v1", "resources": resources}]}
                for group, resources in groups.items()
            ],
        }

    async def serve(self) -> None:
        """Listen until killed."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                url = urlsplit(head.split(b" ", 2)[1].decode())
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                if query.get("watch") == "true":
                    return await self._watch(url.path, query, writer)
                kind = "application/json"
                if url.path in ("/api", "/apis"):
                    kind += ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                body = self._packed[url.path][int(query.get("continue", "0"))] if url.path in self._packed else b""
                coding = "content-encoding: gzip\r\n" if body else ""
                writer.write(
                    f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{coding}content-length: {len(body)}\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _watch(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if "sendInitialEvents" in query:
            for packed in self._packed[path]:
                for item in json.loads(gzip.decompress(packed))["items"]:
                    await _event(writer, "ADDED", item | {"apiVersion": "v1", "kind": KINDS[path]})
            annotations = {"k8s.io/initial-events-end": "true"}
            await _event(writer, "BOOKMARK", {"metadata": {"resourceVersion": "1000", "annotations": annotations}})
        version, started = 1000, asyncio.get_running_loop().time()
        while True:
            # At even intervals, whatever the timer's precision.
            due = int((asyncio.get_running_loop().time() - started) * self._rate)
            while path == "/api/v1/pods" and version - 1000 < due:
                value = self._changes[version % len(self._changes)]
                version += 1
                value["metadata"]["resourceVersion"] = str(version)
                await _event(writer, "MODIFIED", value)
            await asyncio.sleep(0.001 if path == "/api/v1/pods" and self._rate else 60)


async def _event(writer: asyncio.StreamWriter, kind: str, value: Object) -> None:
    data = msgspec.json.encode({"type": kind, "object": value}) + b"\n"
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


if __name__ == "__main__":
    asyncio.run(SimulatedServer(int(sys.argv[1]), int(sys.argv[2])).serve())
