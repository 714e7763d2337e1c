"""An API server of any objects, for tests: discovery, lists in pages, watches, users who may not list everything.

    with serving("tests/…/manifests", forbidden={"alice": {"networkpolicies": ["shop"]}}) as cluster:
        run("list", "--cluster", "--kubeconfig", cluster.kubeconfig)
        run("list", "--context", "alice", "--kubeconfig", cluster.kubeconfig)

The kubeconfig has the context `root` (the current one), and one for each user of `forbidden`. It answers over plain
HTTP; tests/labs/control_plane.py starts the real API server.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import tierwall
from tierwall.resources.kinds.registry import all_kinds

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
# Kinds of every cluster that Tierwall has no definition of: group, version, kind, plural, whether namespaced.
_OTHERS = (
    ("", "v1", "ServiceAccount", "serviceaccounts", True),
    ("", "v1", "Secret", "secrets", True),
    ("", "v1", "ConfigMap", "configmaps", True),
    ("", "v1", "ResourceQuota", "resourcequotas", True),
    ("", "v1", "LimitRange", "limitranges", True),
    ("", "v1", "PersistentVolume", "persistentvolumes", False),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", True),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", False),
    ("apiregistration.k8s.io", "v1", "APIService", "apiservices", False),
    *(
        ("admissionregistration.k8s.io", "v1", kind, f"{kind.lower().removesuffix('y')}{ending}", False)
        for kind, ending in (
            ("ValidatingAdmissionPolicy", "ies"),
            ("ValidatingAdmissionPolicyBinding", "s"),
            ("ValidatingWebhookConfiguration", "s"),
            ("MutatingWebhookConfiguration", "s"),
        )
    ),
)
_NATIVE = ("", "apps", "batch", "networking.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io")

# Group, version and plural.
Place = tuple[str, str, str]


class ServedObjects:
    """The kinds that are served, and their objects, with every change since the start."""

    def __init__(self, objects: Iterable[Mapping[str, Any]]) -> None:
        self.kinds: dict[Place, tuple[str, bool]] = {}
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}
        self._values: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
        self.version = 1
        # Version, type, group, plural, and the object as it was.
        self.log: list[tuple[int, str, str, str, dict[str, Any]]] = []
        self.news = threading.Condition()
        for kind in all_kinds():
            if kind.group in _NATIVE and kind.served and kind.scope != "None":
                self._serve(kind.group, kind.version, kind.kind, kind.plural, kind.scope == "Namespaced")
        for group, version, name, plural, namespaced in _OTHERS:
            self._serve(group, version, name, plural, namespaced)
        values = [dict(value) for value in objects]
        for value in values:
            if value.get("kind") == "CustomResourceDefinition":
                self._define(value["spec"])
        for value in values:
            self._serve_kind_of(value)
        for namespace in sorted({value["metadata"].get("namespace") or "default" for value in values}):
            labels = {"kubernetes.io/metadata.name": namespace}
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
        for value in values:
            self.put(value)

    def put(self, value: Mapping[str, Any]) -> None:
        """Create or change an object."""
        self._serve_kind_of(value)
        group = value["apiVersion"].rpartition("/")[0]
        plural, namespaced = self._plurals[group, value["kind"]]
        metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", **value["metadata"]}
        metadata.setdefault("uid", f"{value['kind']}-{metadata.get('namespace', '')}-{metadata['name']}")
        if namespaced:
            metadata.setdefault("namespace", "default")
        with self.news:
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            metadata["managedFields"] = [{"manager": "test", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
            objects = self._values.setdefault((group, plural), {})
            name = metadata.get("namespace", "") if namespaced else "", metadata["name"]
            event = "MODIFIED" if name in objects else "ADDED"
            objects[name] = {**value, "metadata": metadata}
            self.log.append((self.version, event, group, plural, objects[name]))
            self.news.notify_all()

    def delete(self, kind: str, namespace: str, name: str, group: str = "") -> None:
        """Delete an object."""
        plural, _ = self._plurals[group, kind]
        with self.news:
            self.version += 1
            value = self._values[group, plural].pop((namespace, name))
            gone = {**value, "metadata": {**value["metadata"], "resourceVersion": str(self.version)}}
            self.log.append((self.version, "DELETED", group, plural, gone))
            self.news.notify_all()

    def of(self, place: Place, namespace: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, of one namespace or of all, by name, as a version shows them."""
        objects = self._values.get((place[0], place[2]), {})
        return [self.shown(objects[name], place) for name in sorted(objects) if namespace in ("", name[0])]

    def shown(self, value: dict[str, Any], place: Place) -> dict[str, Any]:
        """Return an object as a list or watch of a version shows it."""
        group, version, _ = place
        return {**value, "apiVersion": f"{group}/{version}" if group else version, "kind": self.kinds[place][0]}

    def _serve(self, group: str, version: str, kind: str, plural: str, namespaced: bool) -> None:
        self.kinds[group, version, plural] = kind, namespaced
        self._plurals[group, kind] = plural, namespaced

    def _define(self, spec: Mapping[str, Any]) -> None:
        for version in spec["versions"]:
            if version.get("served", True):
                names = spec["names"]
                self._serve(spec["group"], version["name"], names["kind"], names["plural"], spec["scope"] != "Cluster")

    def _serve_kind_of(self, value: Mapping[str, Any]) -> None:
        """Serve the kind of an object of which no definition is there."""
        group, _, version = value["apiVersion"].rpartition("/")
        kind = value["kind"]
        if (group, kind) in self._plurals:
            return
        known = next((known for known in all_kinds() if (known.group, known.kind) == (group, kind)), None)
        plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
        namespaced = "namespace" in value["metadata"] if known is None else known.scope == "Namespaced"
        self._serve(group, version, kind, known.plural if known else plural, namespaced)


class ServedCluster:
    """The server, its kubeconfig, and the requests that it has seen.

    `forbidden` has, for each user, the plurals that this user may not list, with the namespaces in which that is
    allowed all the same. The groups of `stale` are served by an aggregated server that is down. `failing` has the
    status that the lists of a plural end with. A user of `unauthorized` is not known.
    """

    def __init__(
        self,
        objects: ServedObjects,
        kubeconfig: str,
        forbidden: Mapping[str, Mapping[str, Sequence[str]]],
        stale: Iterable[str],
        failing: Mapping[str, int],
        unauthorized: Iterable[str],
    ) -> None:
        self.objects, self.kubeconfig = objects, kubeconfig
        self.forbidden, self.stale, self.failing = dict(forbidden), set(stale), dict(failing)
        self.unauthorized = set(unauthorized)
        self.requests: list[str] = []
        self.page = 500
        self.is_closing = False
        # So many of the next pages answer that the mark where they go on has expired.
        self.expiring = 0
        # Whether `/readyz` says that the server has just been started.
        self.is_starting = False
        # The most lists that were being answered at once.
        self.busiest = self._busy = 0
        self._lock = threading.Lock()

    @cached_property
    def server(self) -> ThreadingHTTPServer:
        """The HTTP server."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        return server

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def put(self, value: Mapping[str, Any]) -> None:
        """Create or change an object while the server runs."""
        self.objects.put(value)

    def delete(self, kind: str, namespace: str, name: str, group: str = "") -> None:
        """Delete an object while the server runs."""
        self.objects.delete(kind, namespace, name, group)

    @contextlib.contextmanager
    def answering(self, target: str) -> Iterator[None]:
        """Note a request while it is being answered."""
        with self._lock:
            self.requests.append(target)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def discovery(self, path: str) -> dict[str, Any]:
        """Return the aggregated discovery of `/api` or `/apis`."""
        groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for (group, version, plural), (kind, namespaced) in self.objects.kinds.items():
            if (group == "") == (path == "/api"):
                resources = groups.setdefault(group, {}).setdefault(version, [])
                scope = "Namespaced" if namespaced else "Cluster"
                entry = {"resource": plural, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["list", "watch"]}
                resources.append(entry)
        items = [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {"version": version, "freshness": "Stale"}
                    if group in self.stale
                    else {"version": version, "freshness": "Current", "resources": resources}
                    for version, resources in versions.items()
                ],
            }
            for group, versions in groups.items()
        ]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}

    def refusal(self, user: str, plural: str, group: str, namespace: str) -> tuple[int, str] | None:
        """Return why a list fails, or None."""
        if group in self.stale:
            return 503, "service unavailable"
        if plural in self.failing:
            return self.failing[plural], "it does not work today"
        allowed = self.forbidden.get(user, {}).get(plural)
        if allowed is None or namespace in allowed:
            return None
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        return 403, (
            f'{plural} is forbidden: User "{user}" cannot list resource "{plural}" in API group "{group}" {where}'
        )


def _handler(cluster: ServedCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with cluster.answering(self.path):
                self._answer()

        def _answer(self) -> None:
            url = urlsplit(self.path)
            user = self.headers.get("Impersonate-User", "root")
            if user in cluster.unauthorized:
                self._fail(401, "Unauthorized", "Unauthorized")
            elif url.path in ("/api", "/apis"):
                self._send(200, cluster.discovery(url.path), AGGREGATED)
            elif url.path == "/version":
                self._send(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
            elif url.path == "/readyz":
                self._send_bytes(500 if cluster.is_starting else 200, b"ok", "text/plain")
            else:
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                self._answer_list(unquote(url.path), query, user)

        def _answer_list(self, path: str, query: Mapping[str, str], user: str) -> None:
            parts = path.strip("/").split("/")
            (group, version), rest = (("", parts[1]), parts[2:]) if parts[0] == "api" else (parts[1:3], parts[3:])
            namespace = rest[1] if len(rest) > 2 and rest[0] == "namespaces" else ""
            place = group, version, rest[-1] if rest else ""
            if len(rest) == 2 and rest[0] == "namespaces":
                self._get_namespace(rest[1], user)
                return
            failure = cluster.refusal(user, place[2], group, namespace)
            if failure is not None and failure[0] == 503:
                self._send_bytes(503, failure[1].encode(), "text/plain")
            elif failure is not None:
                self._fail(failure[0], "Forbidden" if failure[0] == 403 else "InternalError", failure[1])
            elif place not in cluster.objects.kinds:
                self._send_bytes(404, b"404 page not found\n", "text/plain")
            elif query.get("watch") == "true":
                self._watch(place, namespace, query)
            else:
                self._list(place, namespace, query)

        def _get_namespace(self, name: str, user: str) -> None:
            """Answer with a Namespace: who may list something in it may get it."""
            place = "", "v1", "namespaces"
            namespaces = [value for value in cluster.objects.of(place, "") if value["metadata"]["name"] == name]
            allowed = cluster.forbidden.get(user, {}).get("namespaces")
            if allowed is not None and name not in allowed:
                self._fail(403, "Forbidden", f'namespaces "{name}" is forbidden: User "{user}" cannot get it')
            elif not namespaces:
                self._fail(404, "NotFound", f'namespaces "{name}" not found')
            else:
                self._send(200, namespaces[0])

        def _list(self, place: Place, namespace: str, query: Mapping[str, str]) -> None:
            if "continue" in query and cluster.expiring > 0:
                cluster.expiring -= 1
                self._fail(410, "Expired", "The provided continue parameter is too old")
                return
            with cluster.objects.news:
                objects, version = cluster.objects.of(place, namespace), cluster.objects.version
            start = int(query.get("continue", "0"))
            end = start + min(int(query["limit"]), cluster.page) if "limit" in query else len(objects)
            metadata: dict[str, Any] = {"resourceVersion": str(version)}
            if end < len(objects):
                metadata |= {"continue": str(end), "remainingItemCount": len(objects) - end}
            items = objects[start:end]
            if place[0] in _NATIVE:
                items = [{key: item[key] for key in item if key not in ("apiVersion", "kind")} for item in items]
            api_version = f"{place[0]}/{place[1]}" if place[0] else place[1]
            kind = f"{cluster.objects.kinds[place][0]}List"
            self._send(200, {"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})

        def _watch(self, place: Place, namespace: str, query: Mapping[str, str]) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            end = time.monotonic() + float(query.get("timeoutSeconds", "300"))
            version, objects = int(query.get("resourceVersion", "0")), cluster.objects
            with contextlib.suppress(OSError):
                while time.monotonic() < end and not cluster.is_closing:
                    with objects.news:
                        if objects.version <= version:
                            objects.news.wait(timeout=0.5)
                        events = [event for event in objects.log if event[0] > version]
                        version = objects.version
                    for _, kind, group, plural, value in events:
                        if (group, plural) == (place[0], place[2]) and namespace in (
                            "",
                            value["metadata"].get("namespace", ""),
                        ):
                            self._chunk(json.dumps({"type": kind, "object": objects.shown(value, place)}))
                self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, text: str) -> None:
            data = text.encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def _fail(self, code: int, reason: str, message: str) -> None:
            self._send(
                code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
            )

        def _send(self, status: int, body: Mapping[str, Any], content_type: str = "application/json") -> None:
            # The keys of custom resources are in order, as API servers write them.
            self._send_bytes(status, json.dumps(body, sort_keys=True).encode(), content_type)

        def _send_bytes(self, status: int, data: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving(
    source: str | Path | Iterable[Mapping[str, Any]] = (),
    *,
    forbidden: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    stale: Iterable[str] = (),
    failing: Mapping[str, int] | None = None,
    unauthorized: Iterable[str] = (),
    namespace: str = "",
) -> Iterator[ServedCluster]:
    """Serve the objects of a file or folder, or plain ones. `namespace` is that of all contexts."""
    if isinstance(source, str | Path):
        objects = ServedObjects(resource.value for resource in tierwall.load(source).objects())
    else:
        objects = ServedObjects(source)
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder, "kubeconfig")
        cluster = ServedCluster(
            objects, str(kubeconfig), forbidden or {}, stale, failing or {}, unauthorized := set(unauthorized)
        )
        kubeconfig.write_text(json.dumps(_kubeconfig(cluster.url, [*(forbidden or {}), *unauthorized], namespace)))
        thread = threading.Thread(target=cluster.server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield cluster
        finally:
            cluster.is_closing = True
            with objects.news:
                objects.news.notify_all()
            cluster.server.shutdown()
            cluster.server.server_close()
            thread.join()


def _kubeconfig(server: str, users: Iterable[str], namespace: str) -> dict[str, Any]:
    names = dict.fromkeys(("root", *users))
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "root",
        "clusters": [{"name": "served", "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"as": name}} for name in names],
        "contexts": [
            {"name": name, "context": {"cluster": "served", "user": name, "namespace": namespace}} for name in names
        ],
    }
