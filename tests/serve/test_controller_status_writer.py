"""Writing statuses to a server that refuses, conflicts and is written by others: one object never holds up another."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from tests.labs.waiting import PATIENCE_S
from tierwall.cluster.access import ClusterAccess
from tierwall.core.protocols import EngineReport
from tierwall.resources.resource import Identity, Resource
from tierwall.serve.controller.desired import CONTROLLER_NAME, DesiredStatus, WantedAncestor, WantedCondition, WantedRef
from tierwall.serve.controller.leadership import NotLeadingError
from tierwall.serve.controller.state import ControllerContext
from tierwall.serve.controller.status_writer import BURST, RATE, StatusWriter

Object = dict[str, Any]
GROUPS = {
    "adminnetworkpolicies": ("policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy", False),
    "xaccesspolicies": ("agentic.networking.x-k8s.io", "v1alpha1", "XAccessPolicy", True),
}


class StatusServer(ThreadingHTTPServer):
    """An API server for statuses of two kinds. `fault` may answer in its place: it gets the method and the name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        self.fault: Callable[[str, str], int] = lambda method, name: 0
        self.requests: Counter[tuple[str, str]] = Counter()
        self.bodies: list[Object] = []

    def put(self, name: str, kind: str, generation: int = 1, **parts: Any) -> None:
        version = int(self.objects.get(name, {}).get("metadata", {}).get("resourceVersion", 0)) + 1
        metadata = {"name": name, "uid": f"u-{name}", "generation": generation, "resourceVersion": str(version)}
        self.objects[name] = {"kind": kind, "metadata": metadata, **parts}

    def overwrite(self, name: str, status: Object) -> None:
        stored = self.objects[name]
        self.put(name, stored["kind"], stored["metadata"]["generation"], status=status)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StatusServer

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if len(parts) <= 3 and parts[0] in ("api", "apis"):
            self._send(200, self._discovery(parts[0]))
            return
        name = parts[-2] if parts[-1] == "status" else parts[-1]
        self.server.requests[self.command, name] += 1
        code = self.server.fault(self.command, name)
        stored = self.server.objects.get(name)
        if code:
            self._send(code, {"kind": "Status", "code": code, "message": "no", "reason": "No"})
        elif stored is None:
            self._send(404, {"kind": "Status", "code": 404, "message": f'"{name}" not found', "reason": "NotFound"})
        elif self.command == "GET":
            self._send(200, stored)
        else:
            body = json.loads(content)
            self.server.bodies.append(body)
            if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
                self._send(409, {"kind": "Status", "code": 409, "message": "old", "reason": "Conflict"})
                return
            self.server.overwrite(name, body["status"])
            self._send(200, self.server.objects[name])

    def _discovery(self, root: str) -> Object:
        items = [
            {
                "metadata": {"name": group},
                "versions": [
                    {
                        "version": version,
                        "resources": [
                            {
                                "resource": plural,
                                "responseKind": {"kind": kind},
                                "scope": "Namespaced" if namespaced else "Cluster",
                                "verbs": ["get", "list", "watch"],
                            }
                        ],
                    }
                ],
            }
            for plural, (group, version, kind, namespaced) in GROUPS.items()
        ]
        return {"items": items if root == "apis" else []}

    def _send(self, status: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        is_discovery = "items" in body
        form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        self.send_header("Content-Type", form if is_discovery else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_PATCH = _answer  # noqa: N815 -- the names that http.server looks for

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class Leader:
    """Leads in one term for as long as a test wants."""

    may_write, term = True, 1

    def check(self, term: int) -> None:
        if not self.may_write or term != self.term:
            raise NotLeadingError("no")

    @asynccontextmanager
    async def writing(self, term: int) -> AsyncIterator[None]:
        self.check(term)
        yield


class Desk:
    """A writer, with the server that it writes to and a clock that a test moves."""

    def __init__(self, server: StatusServer) -> None:
        self.server, self.leader, self.now = server, Leader(), 0.0
        self.said: list[str] = []
        self.results: Counter[str] = Counter()
        self.told: list[tuple[Any, DesiredStatus]] = []
        access = ClusterAccess("test", f"http://127.0.0.1:{server.server_port}", "default")

        def send_report(report: EngineReport) -> None:
            self.said.append(report.summary)

        context = ControllerContext(access, 10, "ns", "me", self.leader, CollectorRegistry(), send_report)  # type: ignore[arg-type]
        self.writer = StatusWriter(
            context,
            lambda before, desired: self.told.append((before, desired)),
            lambda result: self.results.update([result]),
            lambda: self.now,
        )

    def put(self, *wanted: DesiredStatus) -> None:
        self.writer.put(1, {desired.identity: (desired, self.followed(desired.identity)) for desired in wanted})

    def followed(self, identity: Identity) -> Resource:
        group, kind, namespace, name = identity
        return Resource(group, "v1alpha1", kind, namespace, name, self.server.objects.get(name, {}))

    async def result(self, result: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.results[result] < times:
                await asyncio.sleep(0.005)

    async def after(self, seconds: float) -> None:
        """Let time pass for the writer."""
        self.now += seconds
        self.writer._news.set()
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[StatusServer]:
    with StatusServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(server: StatusServer, steps: Callable[[Desk], Any]) -> Desk:
    async def main() -> Desk:
        desk, stop = Desk(server), asyncio.Event()
        task = asyncio.create_task(desk.writer.run(stop))
        try:
            await steps(desk)
        finally:
            stop.set()
            await task
        return desk

    return asyncio.run(main())


ACCEPTED = WantedCondition("Accepted", "True", "Accepted", "m")


def access_policy(name: str, message: str = "m", generation: int = 1, uid: str = "") -> DesiredStatus:
    condition = WantedCondition("Accepted", "True", "Accepted", message)
    ancestor = WantedAncestor(WantedRef("g", "Gateway", "shop", "gw"), (condition,))
    identity = (GROUPS["xaccesspolicies"][0], "XAccessPolicy", "shop", name)
    return DesiredStatus(
        identity=identity, version="v1alpha1", uid=uid or f"u-{name}", generation=generation, ancestors=(ancestor,)
    )


def admin_policy(name: str) -> DesiredStatus:
    identity = (GROUPS["adminnetworkpolicies"][0], "AdminNetworkPolicy", "", name)
    conditions = (WantedCondition("tierwall.io/Accepted", "True", "Accepted", "m"),)
    return DesiredStatus(identity=identity, version="v1alpha1", uid=f"u-{name}", generation=1, conditions=conditions)


def foreign(name: str = "x/y") -> Object:
    return {"ancestorRef": {"name": name}, "controllerName": name, "conditions": []}


def test_conditions_are_applied_and_lists_are_put(server: StatusServer) -> None:
    server.put("a", "AdminNetworkPolicy", status={"conditions": [{"type": "Ready", "status": "True"}]})
    server.put("b", "XAccessPolicy", status={"ancestors": [foreign()], "more": 1})

    async def steps(desk: Desk) -> None:
        desk.put(admin_policy("a"), access_policy("b"))
        await desk.result("written", 2)

    desk = run(server, steps)
    assert server.requests == {("GET", "a"): 1, ("PATCH", "a"): 1, ("GET", "b"): 1, ("PUT", "b"): 1}
    by_name = {body["metadata"]["name"]: body for body in server.bodies}
    assert [each["type"] for each in by_name["a"]["status"]["conditions"]] == ["tierwall.io/Accepted"]
    assert [entry["controllerName"] for entry in by_name["b"]["status"]["ancestors"]] == ["x/y", CONTROLLER_NAME]
    assert by_name["b"]["status"]["more"] == 1
    assert by_name["b"]["metadata"] == {"name": "b", "namespace": "shop", "uid": "u-b", "resourceVersion": "1"}
    assert sorted(desired.identity[3] for _, desired in desk.told) == ["a", "b"]


def test_nothing_is_written_that_is_there_or_that_was_written(server: StatusServer) -> None:
    server.put("b", "XAccessPolicy")

    async def steps(desk: Desk) -> None:
        followed = desk.followed(access_policy("b").identity)
        desk.put(access_policy("b"))
        await desk.result("written")
        # Whoever follows the cluster has not heard of it yet, then has.
        desk.writer.put(1, {followed.identity: (access_policy("b"), followed)})
        desk.put(access_policy("b"))
        assert desk.writer.is_idle

    run(server, steps)
    assert server.requests["PUT", "b"] == server.requests["GET", "b"] == 1


@pytest.mark.parametrize(
    ("desired", "status", "result"),
    [
        (access_policy("b", uid="another"), {}, "superseded"),
        (access_policy("b", generation=2), {}, "superseded"),
        (access_policy("none"), {}, "gone"),
        (
            access_policy("b"),
            {
                "ancestors": [
                    {
                        "ancestorRef": {},
                        "controllerName": CONTROLLER_NAME,
                        "conditions": [{"type": "Accepted", "observedGeneration": 7}],
                    }
                ]
            },
            "superseded",
        ),
    ],
)
def test_nothing_is_written_on_an_object_in_another_state(
    server: StatusServer, desired: DesiredStatus, status: Object, result: str
) -> None:
    server.put("b", "XAccessPolicy", status=status)

    async def steps(desk: Desk) -> None:
        desk.put(desired)
        await desk.result(result)

    run(server, steps)
    assert not server.bodies


def test_somebody_who_was_faster_is_not_overwritten(server: StatusServer) -> None:
    server.put("b", "XAccessPolicy")
    others = [foreign(str(number)) for number in range(3)]

    def fault(method: str, name: str) -> int:
        if method == "PUT" and len(server.objects["b"].get("status", {}).get("ancestors", ())) < 3:
            status = server.objects["b"].get("status", {"ancestors": []})
            server.overwrite("b", {"ancestors": [*status["ancestors"], others[len(status["ancestors"])]]})
        return 0

    server.fault = fault

    async def steps(desk: Desk) -> None:
        desk.put(access_policy("b"))
        await desk.result("written")

    run(server, steps)
    ancestors = server.objects["b"]["status"]["ancestors"]
    assert ancestors[:3] == others
    assert ancestors[3]["controllerName"] == CONTROLLER_NAME
    assert server.requests["PUT", "b"] == 4


@pytest.mark.parametrize("code", [403, 422, 429, 503])
def test_an_object_that_is_refused_waits_alone(server: StatusServer, code: int) -> None:
    for name in "abc":
        server.put(name, "XAccessPolicy")
    server.fault = lambda method, name: code if method == "PUT" and name != "c" else 0
    result = "failed" if code == 503 else "refused"

    async def steps(desk: Desk) -> None:
        desk.put(*map(access_policy, "abc"))
        await desk.result(result, 2)
        await desk.result("written")
        waited = [1, 2, 4]
        for number, seconds in enumerate(waited, 2):
            await desk.after(seconds - 0.01)
            desk.put(*map(access_policy, "abc"))
            assert desk.results[result] == 2 * (number - 1), "its turn has not come"
            await desk.after(0.01)
            await desk.result(result, 2 * number)
        server.fault = lambda method, name: 0
        await desk.after(8)
        await desk.result("written", 3)

    desk = run(server, steps)
    (words,) = desk.said
    assert words.startswith("the status of XAccessPolicy/shop/")
    assert words.endswith(" cannot be written: no")


def test_whoever_changes_our_entry_again_and_again_has_the_last_word_for_longer_and_longer(
    server: StatusServer,
) -> None:
    server.put("b", "XAccessPolicy")

    async def steps(desk: Desk) -> None:
        desk.put(access_policy("b"))
        await desk.result("written")
        for number in range(1, 6):
            server.overwrite("b", {"ancestors": [foreign(f"x/{number}")]})
            desk.put(access_policy("b"))
            await desk.result("delayed", number)
            assert desk.results["written"] == number
            await desk.after(2.0 ** (number - 1))
            await desk.result("written", number + 1)

    desk = run(server, steps)
    assert len(desk.said) == 1
    assert "is changed by somebody again and again" in desk.said[0]


def test_writes_are_limited(server: StatusServer) -> None:
    names = [f"p{number}" for number in range(BURST + 10)]
    for name in names:
        server.put(name, "XAccessPolicy")

    async def steps(desk: Desk) -> None:
        desk.put(*map(access_policy, names))
        await desk.result("written", BURST)
        await asyncio.sleep(0.1)
        assert desk.results["written"] == BURST
        desk.now += 5 / RATE
        await desk.result("written", BURST + 5)
        desk.now += 5 / RATE
        await desk.result("written", BURST + 10)

    run(server, steps)


def test_a_term_that_is_over_writes_nothing(server: StatusServer) -> None:
    server.put("b", "XAccessPolicy")

    async def steps(desk: Desk) -> None:
        desk.leader.term = 2
        desk.put(access_policy("b"))
        async with asyncio.timeout(PATIENCE_S):
            while not desk.writer.is_idle:
                await asyncio.sleep(0.005)

    run(server, steps)
    assert server.requests["PUT", "b"] == 0


def test_only_the_newest_status_of_an_object_is_written(server: StatusServer) -> None:
    names = [f"p{number}" for number in range(BURST)]
    for name in (*names, "b"):
        server.put(name, "XAccessPolicy")

    async def steps(desk: Desk) -> None:
        every = list(map(access_policy, names))
        desk.put(*every)
        await desk.result("written", BURST)
        for number in range(20):
            desk.put(access_policy("b", f"message {number}"))
        desk.now += 10
        await desk.result("written", BURST + 1)
        desk.put()
        assert desk.writer.is_idle

    run(server, steps)
    assert server.requests["PUT", "b"] == 1
    assert server.objects["b"]["status"]["ancestors"][0]["conditions"][0]["message"] == "message 19"


def test_a_crowd_of_one_namespace_holds_up_no_other(server: StatusServer) -> None:
    """Nor does it hold up itself, although some of its policies change all the time."""
    crowd = [f"p{number}" for number in range(BURST + 40)]
    for name in (*crowd, "b"):
        server.put(name, "XAccessPolicy")
    server.put("a", "AdminNetworkPolicy")

    async def steps(desk: Desk) -> None:
        every = list(map(access_policy, crowd))
        desk.put(*every)
        await desk.result("written", BURST)
        in_shop = access_policy("b")
        elsewhere = replace(in_shop, identity=(*in_shop.identity[:2], "other", "b"))
        for number in range(3):
            # The first of those that still wait changes; what has come later stays behind it.
            changed = access_policy(crowd[BURST], f"message {number}")
            desk.put(*every[:BURST], changed, *every[BURST + 1 :], elsewhere, admin_policy("a"))
        desk.now += 3 / RATE
        await desk.result("written", BURST + 3)
        desk.put()

    desk = run(server, steps)
    told = {desired.identity[3] for _, desired in desk.told}
    assert told - set(crowd[:BURST]) == {crowd[BURST], "b", "a"}
