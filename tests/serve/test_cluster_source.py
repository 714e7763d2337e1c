"""A followed cluster as a source of loads, with files over it (docs/clusters.md#following)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tests.labs.fake_api_server import FakeApiServer, FakeKind
from tests.labs.waiting import PATIENCE_S
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.changes import ClusterChanges, LostKind
from tierwall.cluster.reflector import Timing
from tierwall.cluster.wanted import followed_kinds
from tierwall.core.diagnostics import InputError
from tierwall.core.source import ClusterPosition
from tierwall.resources import validity
from tierwall.resources.admission import admit
from tierwall.resources.load import Loader, LoadResult, LoadSettings
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.cluster import ClusterSource
from tierwall.serve.files import FileSource
from tierwall.serve.follower import Follower, Load, PreparedState

NAMESPACES = FakeKind("", "v1", "Namespace", "namespaces", namespaced=False)
PODS = FakeKind("", "v1", "Pod", "pods")
SECRETS = FakeKind("", "v1", "Secret", "secrets")
DEPLOYMENTS = FakeKind("apps", "v1", "Deployment", "deployments")
POLICIES = FakeKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
ADMIN = FakeKind("policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy", "adminnetworkpolicies", namespaced=False)
HASTE = Timing(
    watch=(0.3, 0.9),
    grace=0.3,
    bookmark=0.4,
    opening=0.3,
    initial=2,
    first_wait=0.005,
    longest_wait=0.05,
    patience=0.2,
    outage=0.5,
    discovery=0.1,
)
# For tests in which nothing is late: not even a busy machine makes an outage of slowness.
CALM = msgspec.structs.replace(HASTE, watch=(900, 900), bookmark=900, opening=PATIENCE_S, initial=PATIENCE_S)
DENY_ALL: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}


class Recorder(Follower[Snapshot]):
    """An engine that remembers what came into force."""

    def prepare(self, snapshot: Snapshot) -> PreparedState[Snapshot]:
        return PreparedState(snapshot)

    def enforce(self, load: Load[Snapshot]) -> bool:
        return True

    @property
    def snapshot(self) -> Snapshot:
        """What is in force."""
        assert self.in_force is not None
        return self.in_force.snapshot

    @property
    def names(self) -> set[str]:
        """The objects in force."""
        return {str(resource.reference) for resource in self.snapshot}

    @property
    def problems(self) -> dict[str, str]:
        """The codes of the newest load, with their messages."""
        assert self.newest is not None
        return {problem.code: problem.message for problem in self.newest.diagnostics}


class Lab:
    """A fake API server, an engine that follows it, and folders of files."""

    def __init__(self, server: FakeApiServer, folder: Path, *paths: Path, timing: Timing = HASTE, **settings: Any):
        # How long a request may take: short only where a test waits for it.
        timeout = PATIENCE_S if timing is CALM else 0.5
        self.server, self.engine, self.folder = server, Recorder(), folder
        self.messages: list[str] = []
        self.named: set[Identity] = set()
        self.loads = 0
        # Where nobody listens yet, the port is that of a server to come.
        access = ClusterAccess("fake", server.url, "default")
        loading = LoadSettings(**settings)
        self.source = ClusterSource(
            access,
            followed_kinds(["network"], bool(paths)),
            timeout,
            FileSource(Loader([str(path) for path in paths], loading)),
            loading,
            self.messages.append,
            lambda snapshot: self.named,
            timing,
        )
        self.stop = asyncio.Event()

    async def _run(self) -> None:
        async with aclosing(self.engine.follow(self.source, self.stop)) as loads:
            async for _ in loads:
                self.loads += 1

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds, unless following ends before."""
        async with asyncio.timeout(PATIENCE_S):
            while not (self.engine.in_force is not None and holds()):
                assert not self.task.done(), self.task.exception() or "following has ended"
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Lab:
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, PATIENCE_S)


@asynccontextmanager
async def _server(*kinds: FakeKind) -> AsyncGenerator[FakeApiServer, None]:
    async with FakeApiServer(kinds=kinds or (NAMESPACES, PODS, POLICIES)) as server:
        await server.put("namespaces", {"metadata": {"name": "shop"}})
        await server.put("pods", _pod("web"))
        await server.put("networkpolicies", _policy("deny"))
        yield server


def _pod(name: str, owner: str = "", ip: str = "10.0.0.1", **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "shop", "labels": labels}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": owner, "uid": "1", "controller": True}
        ]
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"podIP": ip}}


def _policy(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {**DENY_ALL, **spec}}


def _following(
    folder: Path, do: Callable[[Lab], Awaitable[None]], *paths: Path, kinds: tuple[FakeKind, ...] = (), **settings: Any
) -> None:
    async def main() -> None:
        async with _server(*kinds) as server, Lab(server, folder, *paths, **settings) as lab:
            await lab.until(lambda: True)
            await do(lab)

    asyncio.run(main())


def test_changes_and_deletions_come_into_force(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        assert lab.engine.names == {"Namespace/shop", "Pod/shop/web", "NetworkPolicy/shop/deny"}
        assert lab.engine.snapshot.unlisted == ()
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        await lab.server.delete("networkpolicies", "shop", "deny")
        await lab.until(lambda: "NetworkPolicy/shop/deny" not in lab.engine.names)

    _following(tmp_path, do)


def test_only_what_has_changed_is_put_into_the_snapshot_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is the same object as before, and admission does not look at it again."""
    judged: list[str] = []

    def judge(value: dict[str, Any], *more: Any) -> Any:
        judged.append(value["metadata"]["name"])
        return admit(value, *more)

    monkeypatch.setattr(validity, "admit", judge)

    async def do(lab: Lab) -> None:
        before = {resource.name: resource for resource in lab.engine.snapshot}
        assert judged == ["deny"], "of a cluster, only policies are judged"
        judged.clear()
        await lab.server.put("pods", _pod("db"))
        await lab.server.put("networkpolicies", _policy("other"))
        await lab.until(lambda: {"Pod/shop/db", "NetworkPolicy/shop/other"} <= lab.engine.names)
        after = {resource.name: resource for resource in lab.engine.snapshot}
        del after["db"], after["other"]
        assert after == before
        assert judged == ["other"]
        lists = [target for target in lab.server.requests if "limit=500" in target]
        assert lists == [], "the list was the beginning of the watch, and nothing is listed again"

    _following(tmp_path, do, timing=CALM)


def test_a_refused_object_is_reported_until_it_is_gone(tmp_path: Path) -> None:
    """Problems of objects that have not changed stay in every load, although nobody looks at them again."""

    async def do(lab: Lab) -> None:
        await lab.server.put("networkpolicies", _policy("bad", podSelector="all"))
        await lab.until(lambda: "TW112" in lab.engine.problems)
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        assert "TW112" in lab.engine.problems
        await lab.server.delete("networkpolicies", "shop", "bad")
        await lab.until(lambda: not lab.engine.problems)

    _following(tmp_path, do)


def test_a_burst_of_changes_is_few_loads(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        loads = lab.loads
        for number in range(200):
            await lab.server.put("pods", _pod(f"pod-{number}"))
        await lab.until(lambda: len(lab.engine.snapshot) == 203)
        assert lab.loads - loads < 40

    _following(tmp_path, do)


def test_nothing_begins_before_everything_was_read(tmp_path: Path) -> None:
    """Until then, it says what it waits for."""

    async def main() -> None:
        async with _server() as server:
            await server.stop()
            async with Lab(server, tmp_path) as lab:
                while not lab.messages:
                    await asyncio.sleep(0.01)
                assert lab.messages[-1] == f"waiting for the API server at {server.url}: the connection is refused"
                server.is_ready = False
                await server.start()
                while "not ready" not in lab.messages[-1]:
                    await asyncio.sleep(0.01)
                server.forbidden.add("pods")
                assert lab.loads == 0
                server.is_ready = True
                await asyncio.sleep(HASTE.patience / 2)
                assert lab.loads == 0
                server.forbidden.clear()
                await lab.until(lambda: len(lab.engine.names) == 3)

    asyncio.run(main())


def test_kinds_that_stay_forbidden_at_the_start_are_named(tmp_path: Path) -> None:
    """What is enforced would be incomplete. A kind that does not answer for another reason changes nothing about it."""

    async def main() -> None:
        async with _server() as server:
            server.forbidden |= {"pods", "networkpolicies"}
            lab = Lab(server, tmp_path)
            with pytest.raises(InputError) as raised:
                await asyncio.wait_for(lab._run(), PATIENCE_S)
            assert "this user may not list and watch networkpolicies, pods" in str(raised.value)
            assert lab.loads == 0

    asyncio.run(main())


def test_a_refused_user_is_told_when_patience_ends(tmp_path: Path) -> None:
    """Not when the next try happens to be: tries are rarer and rarer."""

    async def main() -> None:
        async with _server() as server:
            server.forbidden |= {"/api", "/apis"}
            lab = Lab(server, tmp_path, timing=msgspec.structs.replace(HASTE, first_wait=PATIENCE_S * 2))
            with pytest.raises(InputError) as raised:
                await asyncio.wait_for(lab._run(), PATIENCE_S)
            assert str(raised.value).endswith("cannot be followed: /api is forbidden")

    asyncio.run(main())


def test_an_outage_changes_nothing_and_is_said(tmp_path: Path) -> None:
    """Deletions during it count once the server is back."""

    async def do(lab: Lab) -> None:
        await lab.server.put("networkpolicies", _policy("other"))
        await lab.until(lambda: len(lab.engine.names) == 4)
        await lab.server.stop()
        await lab.until(lambda: "TW043" in lab.engine.problems)
        message = lab.engine.problems["TW043"]
        assert message.startswith("cluster `fake` cannot be followed since 20")
        assert message.endswith("its last state counts: the connection is refused")
        assert [problem.code for problem in lab.engine.refusal] == ["TW043"], "`/readyz` says no"
        assert len(lab.engine.names) == 4
        assert [problem.code for problem in lab.engine.newest.diagnostics] == ["TW043"]  # type: ignore[union-attr]
        await lab.server.delete("networkpolicies", "shop", "deny")
        lab.server.compact()
        await lab.server.start()
        await lab.until(lambda: "NetworkPolicy/shop/deny" not in lab.engine.names)
        await lab.until(lambda: not lab.engine.refusal)
        assert lab.engine.names == {"Namespace/shop", "Pod/shop/web", "NetworkPolicy/shop/other"}

    _following(tmp_path, do, timing=CALM)


def test_a_server_that_has_stopped_is_noticed_although_watches_may_be_silent(tmp_path: Path) -> None:
    """It keeps its connections open and answers nothing, so `/readyz` must not wait for the end of a watch."""

    async def do(lab: Lab) -> None:
        lab.server.is_stopped = True
        await lab.until(lambda: "TW043" in lab.engine.problems)
        assert lab.engine.refusal
        lab.server.is_stopped = False
        await lab.until(lambda: not lab.engine.refusal)
        await lab.server.put("networkpolicies", _policy("other"))
        await lab.until(lambda: "NetworkPolicy/shop/other" in lab.engine.names)

    _following(tmp_path, do, timing=msgspec.structs.replace(HASTE, watch=(900, 900), bookmark=900))


def test_kinds_that_come_back_one_by_one_are_one_outage(tmp_path: Path) -> None:
    """While any is away, the same is said as at the beginning, and nothing is loaded for the others."""

    async def do(lab: Lab) -> None:
        def lost(*kinds: str) -> ClusterChanges:
            times = {"namespaces": "01", "pods": "02", "services": "03"}
            return ClusterChanges({}, tuple(LostKind(kind, "", "gone", times[kind], False) for kind in kinds))

        states = [lost("pods"), lost("pods", "services", "namespaces"), lost("services"), lost()]
        said = [lab.source._diagnostics(state) for state in states]
        assert said[0] == said[1] == said[2]
        assert [problem.message.partition(" since ")[2] for problem in said[0]] == ["02, its last state counts: gone"]
        assert said[3] == ()

    _following(tmp_path, do, timing=CALM)


def test_a_server_that_expires_every_answer_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that expires is usual. A list that expires as well is a failure, and `/readyz` must say so."""

    async def do(lab: Lab) -> None:
        async def expire(*arguments: Any) -> None:
            await lab.server._send(arguments[-1], 410, {"reason": "Expired", "message": "too old", "code": 410})

        with monkeypatch.context() as patched:
            patched.setattr(lab.server, "_list", expire)
            patched.setattr(lab.server, "_watch", expire)
            await lab.server.restart(0)
            await lab.until(lambda: "TW043" in lab.engine.problems)
            assert lab.engine.problems["TW043"].endswith("its last state counts: too old")
        await lab.until(lambda: not lab.engine.refusal)

    _following(tmp_path, do)


def test_a_kind_that_becomes_forbidden_keeps_its_last_state(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        lab.server.forbidden.add("networkpolicies")
        await lab.server.restart(0)
        await lab.until(lambda: "TW043" in lab.engine.problems)
        assert lab.engine.problems["TW043"].endswith("its last state counts: networkpolicies is forbidden")
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        assert "NetworkPolicy/shop/deny" in lab.engine.names
        lab.server.forbidden.clear()
        await lab.until(lambda: not lab.engine.refusal)

    _following(tmp_path, do)


def test_an_object_at_fault_stops_no_other(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        broken = _policy("deny")
        broken["metadata"]["labels"] = {"a": 1}
        await lab.server.put("networkpolicies", broken)
        await lab.until(lambda: "TW044" in lab.engine.problems)
        (problem,) = (problem for problem in lab.engine.newest.diagnostics if problem.code == "TW044")  # type: ignore[union-attr]
        assert str(problem.at) == "fake: NetworkPolicy/shop/deny"
        assert "NetworkPolicy/shop/deny" in lab.engine.names
        assert not lab.engine.refusal, "the fault of one object does not make the server unready"
        await lab.server.put("networkpolicies", _policy("deny"))
        await lab.until(lambda: not lab.engine.problems)

    _following(tmp_path, do)


def test_a_kind_that_is_installed_later_is_followed_and_gone_when_removed(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        lab.server.kinds[ADMIN.plural] = ADMIN
        await lab.server.put(ADMIN.plural, {"metadata": {"name": "guard"}, "spec": {"priority": 1}})
        await lab.until(lambda: "AdminNetworkPolicy/guard" in lab.engine.names)
        await lab.server.remove_kind(ADMIN.plural)
        await lab.until(lambda: "AdminNetworkPolicy/guard" not in lab.engine.names)

    _following(tmp_path, do)


def test_a_kind_in_another_version_is_followed_there(tmp_path: Path) -> None:
    """Objects that the new version does not have are gone."""

    async def do(lab: Lab) -> None:
        await lab.server.put(ADMIN.plural, {"metadata": {"name": "stays"}, "spec": {"priority": 2}})
        await lab.until(lambda: {"AdminNetworkPolicy/guard", "AdminNetworkPolicy/stays"} <= lab.engine.names)
        lab.server.kinds[ADMIN.plural] = ADMIN._replace(version="v1beta9")
        await lab.server.stop()
        await lab.server.delete(ADMIN.plural, "", "guard")
        await lab.server.start()
        await lab.until(lambda: "AdminNetworkPolicy/guard" not in lab.engine.names)
        await lab.until(
            lambda: [policy.version for policy in lab.engine.snapshot if policy.group == ADMIN.group] == ["v1beta9"]
        )

    async def main() -> None:
        async with _server(NAMESPACES, PODS, POLICIES, ADMIN) as server:
            await server.put(ADMIN.plural, {"metadata": {"name": "guard"}, "spec": {"priority": 1}})
            async with Lab(server, tmp_path) as lab:
                await lab.until(lambda: True)
                await do(lab)

    asyncio.run(main())


def _write(file: Path, *objects: dict[str, Any]) -> None:
    file.write_bytes(b"\n---\n".join(msgspec.json.encode(value) for value in objects))


def _file_policy(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", **_policy(name, **spec)}


def test_files_lie_over_the_cluster_and_are_followed_as_well(tmp_path: Path) -> None:
    """A broken file keeps what it had; a removed one uncovers the cluster's objects."""
    file = tmp_path / "policy.json"
    _write(file, _file_policy("deny", policyTypes=["Egress"]), _file_policy("added"))

    async def do(lab: Lab) -> None:
        def types(name: str = "deny") -> Any:
            policy = lab.engine.snapshot.get("networking.k8s.io", "NetworkPolicy", "shop", name)
            return None if policy is None else policy.spec["policyTypes"]

        assert (types(), types("added")) == (["Egress"], ["Ingress"])
        file.write_text("{")
        await lab.until(lambda: "TW010" in lab.engine.problems)
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        assert (types(), types("added")) == (["Egress"], ["Ingress"])
        _write(file, _file_policy("deny", policyTypes=["Ingress", "Egress"]))
        await lab.until(lambda: types() == ["Ingress", "Egress"] and types("added") is None)
        # What the cluster has below a file does not show, and stays what it is.
        over = lab.engine.snapshot.get("networking.k8s.io", "NetworkPolicy", "shop", "deny")
        await lab.server.put("pods", _pod("cache"))
        await lab.until(lambda: "Pod/shop/cache" in lab.engine.names)
        assert lab.engine.snapshot.get("networking.k8s.io", "NetworkPolicy", "shop", "deny") is over
        await lab.server.delete("networkpolicies", "shop", "deny")
        await lab.server.put("networkpolicies", _policy("deny", policyTypes=["Egress"]))
        file.unlink()
        await lab.until(lambda: types() == ["Egress"])

    _following(tmp_path, do, tmp_path)


def test_pods_of_a_workload_that_a_file_replaces_stay_left_out(tmp_path: Path) -> None:
    file = tmp_path / "deployment.json"
    template = {"metadata": {"labels": {"app": "api"}}, "spec": {"containers": []}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "api"}}, "template": template}
    metadata = {"name": "api", "namespace": "shop"}
    _write(file, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    async def do(lab: Lab) -> None:
        await lab.server.put("deployments", {"metadata": metadata, "spec": spec})
        await lab.server.put("pods", _pod("api-1", owner="api"))
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        assert "Pod/shop/api-1" not in lab.engine.names
        await lab.server.put("pods", _pod("api-2", owner="api"))
        await lab.until(lambda: [entry.count for entry in lab.engine.snapshot.unlisted] == [2])
        file.unlink()
        await lab.until(lambda: {"Pod/shop/api-1", "Pod/shop/api-2"} <= lab.engine.names)

    _following(tmp_path, do, tmp_path, kinds=(NAMESPACES, PODS, POLICIES, DEPLOYMENTS))


def test_an_object_that_is_left_out_may_come_and_go(tmp_path: Path) -> None:
    async def do(lab: Lab) -> None:
        assert "NetworkPolicy/shop/deny" not in lab.engine.names
        await lab.server.delete("networkpolicies", "shop", "deny")
        await lab.server.put("networkpolicies", _policy("deny"))
        await lab.server.put("pods", _pod("db"))
        await lab.until(lambda: "Pod/shop/db" in lab.engine.names)
        assert "NetworkPolicy/shop/deny" not in lab.engine.names

    _following(tmp_path, do, without=("NetworkPolicy/shop/deny",))


def test_an_object_to_leave_out_that_never_was_there_ends_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with _server() as server:
            with pytest.raises(InputError, match="there is no"):
                await asyncio.wait_for(Lab(server, tmp_path, without=("NetworkPolicy/shop/no",))._run(), PATIENCE_S)

    asyncio.run(main())


def _secret_requests(server: FakeApiServer) -> set[tuple[str, str]]:
    """The paths and selectors of all requests for Secrets."""
    targets = (urlsplit(target) for target in server.requests if "secrets" in target)
    return {(target.path, parse_qs(target.query).get("fieldSelector", [""])[0]) for target in targets}


def test_only_secrets_that_are_named_are_followed(tmp_path: Path) -> None:
    """Each by its name, as long as it is named; a file's is not asked for."""
    file = tmp_path / "secret.json"
    head = {"apiVersion": "v1", "kind": "Secret"}
    _write(file, head | {"metadata": {"name": "of-file", "namespace": "shop"}, "data": {"key": "ZmlsZQ=="}})

    async def main() -> None:
        async with _server(NAMESPACES, PODS, POLICIES, SECRETS) as server:
            for name in ("named", "other", "later", "of-file"):
                metadata = {"name": name, "namespace": "shop", "annotations": {"a": "b"}}
                await server.put("secrets", {"metadata": metadata, "data": {"key": "b25l"}, "type": "Opaque"})
            lab = Lab(server, tmp_path, file)
            lab.named = {("", "Secret", "shop", "named"), ("", "Secret", "shop", "of-file")}

            def data(name: str) -> Any:
                secret = lab.engine.snapshot.get("", "Secret", "shop", name)
                return None if secret is None else secret.value["data"]["key"]

            async with lab:
                await lab.until(lambda: True)
                # It is there from the first load on.
                assert lab.loads == 1
                assert data("named") == "b25l"
                assert data("of-file") == "ZmlsZQ=="
                assert data("other") is None
                await server.put("secrets", {"metadata": metadata | {"name": "named"}, "data": {"key": "dHdv"}})
                await lab.until(lambda: data("named") == "dHdv")
                lab.named = {("", "Secret", "shop", "later"), ("", "Secret", "shop", "absent")}
                await server.put("pods", _pod("db"))
                await lab.until(lambda: data("later") == "b25l" and data("named") is None)
                await server.put("secrets", {"metadata": metadata | {"name": "absent"}, "data": {"key": "dHdv"}})
                await lab.until(lambda: data("absent") == "dHdv")
                await server.delete("secrets", "shop", "later")
                await lab.until(lambda: data("later") is None)
                names = ("named", "later", "absent")
                path = "/api/v1/namespaces/shop/secrets"
                assert _secret_requests(server) == {(path, f"metadata.name={name}") for name in names}

    asyncio.run(main())


def test_what_is_in_a_secret_is_in_no_message(tmp_path: Path) -> None:
    """A broken one, a forbidden one, and what shows objects."""

    async def main() -> None:
        async with _server(NAMESPACES, PODS, POLICIES, SECRETS) as server:
            metadata = {"name": "named", "namespace": "shop"}
            await server.put("secrets", {"metadata": metadata, "data": {"hidden-key": "aGlkZGVu"}})
            lab = Lab(server, tmp_path)
            lab.named = {("", "Secret", "shop", "named")}
            async with lab:
                await lab.until(lambda: True)
                secret = lab.engine.snapshot.get("", "Secret", "shop", "named")
                assert secret is not None
                await server.put("secrets", {"metadata": metadata, "data": {"hidden-key": ["aGlkZGVu"]}})
                await lab.until(lambda: "TW044" in lab.engine.problems)
                server.forbidden.add("secrets")
                await server.restart(0)
                await lab.until(lambda: "TW043" in lab.engine.problems)
                position = secret.position(("data", "hidden-key"))
                assert isinstance(position, ClusterPosition)
                shown = repr((lab.engine.newest.diagnostics, lab.messages, secret, position.node))  # type: ignore[union-attr]
                assert "aGlkZGVu" not in shown
                assert lab.engine.snapshot.get("", "Secret", "shop", "named") is secret, "its last good state counts"

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["away", "silent", "forbidden", "following"])
def test_it_stops_at_any_moment(tmp_path: Path, moment: str) -> None:
    """Before the server answers, while it does not, and afterwards. No thread stays."""

    async def main() -> None:
        async with _server() as server:
            if moment == "away":
                await server.stop()
            server.is_stopped = moment == "silent"
            if moment == "forbidden":
                server.forbidden.add("pods")
            # Nothing else would end the waiting.
            slowly = msgspec.structs.replace(HASTE, patience=60, first_wait=30, opening=60)
            async with Lab(server, tmp_path, timing=HASTE if moment == "following" else slowly) as lab:
                while lab.loads == 0 if moment == "following" else not lab.messages:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert "cluster" not in {thread.name for thread in threading.enumerate()}


def test_reading_without_following_waits_for_everything(tmp_path: Path) -> None:
    """As a Python program would use it."""

    async def main() -> LoadResult | None:
        async with _server() as server:
            lab = Lab(server, tmp_path)
            try:
                return await asyncio.to_thread(lab.source.read)
            finally:
                await asyncio.to_thread(lab.source.close)

    loaded = asyncio.run(main())
    assert loaded is not None
    assert len(loaded.snapshot) == 3
