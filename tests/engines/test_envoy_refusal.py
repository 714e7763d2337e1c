"""Objects that Envoy refuses are found and closed; everything else is in force (a real Envoy, a real folder).

The compiler lets nothing through that Envoy is known to refuse. So the tests make it: a policy about the tool `poison`
is compiled to a tree that no Envoy knows.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from google.protobuf import any_pb2
from msgspec.structs import replace
from xds.core.v3 import extension_pb2
from xds.type.matcher.v3 import matcher_pb2

from examples.agents import certificates
from tests.labs.envoy_lab import EXAMPLE, NETWORKING, Backend, Caller, Object, policy
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tests.randomness import rounds
from tierwall.core.diagnostics import InputError
from tierwall.core.protocols import EngineReport
from tierwall.engines.envoy.config import chain_match, clusters, listeners, policy_compiler, rbac, route_rules
from tierwall.engines.envoy.config import compile as compiling
from tierwall.engines.envoy.config.options import EnvoyOptions, SocketAddress
from tierwall.engines.envoy.config.settings import values
from tierwall.resources.load import Loader
from tierwall.serve import envoy as serving
from tierwall.serve.files import FileSource
from tierwall.serve.run import ControlPlane, RunSettings

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_policy, route_match, cluster, listener = (
        rbac.compile_policy,
        route_rules.route_match,
        clusters.cluster,
        listeners.listener,
    )
    unknown = any_pb2.Any(type_url="type.googleapis.com/no.such.Action")

    def poisoned_policy(policy: Any, *arguments: Any) -> Any:
        out = compile_policy(policy, *arguments)
        if "poison" not in str(policy.resource.spec) or policy.closed:
            return out
        action = extension_pb2.TypedExtensionConfig(name="poison", typed_config=unknown)
        return replace(out, mcp=replace(out.mcp, decision=matcher_pb2.Matcher.OnMatch(action=action)))

    def poisoned_match(value: Any, *arguments: Any) -> Any:
        out = route_match(value, *arguments)
        if "poison" in str(value):
            out.safe_regex.regex = "(poison"
        return out

    def poisoned_cluster(name: str, *arguments: Any, **more: Any) -> Any:
        out = cluster(name, *arguments, **more)
        if "poison" in name:
            out.transport_socket.typed_config.CopyFrom(unknown)
        return out

    def poisoned_listener(name: str, *arguments: Any) -> Any:
        out = listener(name, *arguments)
        if "poison" in name:
            out.listener_filters.add(name="poison", typed_config=unknown)
        return out

    monkeypatch.setattr(policy_compiler, "compile_policy", poisoned_policy)
    monkeypatch.setattr(chain_match, "route_match", poisoned_match)
    monkeypatch.setattr(clusters, "cluster", poisoned_cluster)
    monkeypatch.setattr(listeners, "listener", poisoned_listener)
    # Key sets are looked at before Envoy gets them.
    monkeypatch.setattr(values, "check_key_set", lambda text, *path: None)


def bad_backend() -> Object:
    mcp = {"serviceName": "orders", "port": 8080}
    metadata = {"name": "poison", "namespace": "shop"}
    return {"apiVersion": f"{NETWORKING}/v0alpha0", "kind": "XBackend", "metadata": metadata, "spec": {"mcp": mcp}}


def route(name: str, path: str, backend: str = "orders") -> Object:
    to = {"group": NETWORKING, "kind": "XBackend", "name": backend, "port": 8080}
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "backendRefs": [to]}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"parentRefs": [{"name": "agents"}], "rules": [rule]},
    }


class Gate:
    """`tierwall run` in this process, with a folder of manifests, a backend and callers."""

    def __init__(self, objects: list[Object], **bind: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tierwall-refusal-")
        self.folder = Path(self._folder.name) / "manifests"
        self.folder.mkdir()
        authority = certificates.Authority()
        (self.folder / "tls.yaml").write_text(certificates.manifests(authority, authority.server("localhost")))
        keys = Path(self._folder.name)
        (keys / "ca.pem").write_bytes(authority.pem)
        pair = authority.agent("agents", "shopper")
        (keys / "shopper.pem").write_bytes(pair.certificate + pair.key)
        fixed = [
            manifest
            for name in ("orders", "platform")
            for manifest in yaml.safe_load_all((EXAMPLE / "manifests" / f"{name}.yaml").read_text())
            if manifest["kind"] != "XAccessPolicy"
        ]
        for number, manifest in enumerate((*fixed, *objects)):
            self.write(manifest, f"{number}-{manifest['kind']}.yaml" if manifest in fixed else "")
        self.backend = Backend()
        self.port = unused_port()
        self.reports: list[EngineReport] = []
        options = EnvoyOptions(
            bind={
                "shop/agents:8443": SocketAddress("127.0.0.1", self.port),
                **{f"shop/{name}:8443": SocketAddress("127.0.0.1", port) for name, port in bind.items()},
            },
            endpoints={"XBackend/shop/orders": SocketAddress("127.0.0.1", self.backend.port)},
        )
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.plane = ControlPlane(options, RunSettings(concurrency=1), self.reports.append)
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self.plane.run(FileSource(Loader([str(self.folder)])), self._stop))
        except BaseException as error:
            self.error = error

    def write(self, manifest: Object, name: str = "") -> None:
        path = self.folder / (name or f"{manifest['metadata']['name']}.yaml")
        path.with_suffix(".new").write_text(yaml.safe_dump(manifest))
        path.with_suffix(".new").rename(path)

    def caller(self) -> Caller:
        context = ssl.create_default_context(cafile=str(Path(self._folder.name) / "ca.pem"))
        context.load_cert_chain(Path(self._folder.name) / "shopper.pem")
        return Caller(context, self.port)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.plane.http.port}{path}", timeout=PATIENCE_S)

    def is_port_taken(self) -> bool:
        eventually(lambda: self.error is not None or self.plane.process is not None, "a start")
        return isinstance(self.error, InputError) and "cannot listen" in str(self.error)

    def is_ready(self) -> bool:
        assert self.error is None, self.error
        return bool(self.plane.http.port) and self.get("/readyz").status_code == 200

    @property
    def closed(self) -> list[str]:
        return [str(refused.resource.reference) for refused in self.plane.controller.search.refused]

    def until_closed(self, *references: str) -> None:
        eventually(
            lambda: self.is_ready() and self.closed == sorted(references),
            lambda: (self.closed, self.get("/readyz").text, self.reports[-3:]),
        )

    def answers(self, tool: str, word: str) -> None:
        caller = self.caller()
        try:
            eventually(lambda: caller.call(tool) == word, lambda: f"`{word}` for `{tool}`, got `{caller.call(tool)}`")
        finally:
            caller.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.loop.close()
        self.backend.close()
        self._folder.cleanup()


@contextmanager
def gate(*objects: Object, **bind: int) -> Iterator[Gate]:
    new_gate = Gate(list(objects), **bind)
    # Its port was unused a moment ago.
    while new_gate.is_port_taken():
        new_gate.close()
        new_gate = Gate(list(objects), **bind)
    try:
        yield new_gate
    finally:
        new_gate.close()


def test_a_policy_that_envoy_refuses_is_closed_and_a_revocation_beside_it_is_in_force() -> None:
    with gate(policy("base", "allowed", "revoked")) as run:
        eventually(run.is_ready, lambda: run.reports)
        run.answers("revoked", "allowed")
        run.write(policy("base", "allowed"))
        run.write(policy("bad", "allowed", "poison", on="XBackend"))
        run.until_closed("XAccessPolicy/shop/bad")
        run.answers("revoked", "denied by XAccessPolicy/shop/base")
        run.answers("allowed", "denied by XAccessPolicy/shop/bad")
        status = run.get("/status").json()
        assert status["conditions"][0]["status"] == "True"
        assert "XAccessPolicy/shop/bad" in status["conditions"][0]["message"]
        [problem] = [problem for problem in status["diagnostics"] if problem["code"] == "TW636"]
        assert "no.such.Action" in problem["message"]
        assert problem["file"].endswith("bad.yaml")
        assert "XAccessPolicy/shop/bad" in run.get("/readyz").json()["proxies"]["message"]
        # It gets another chance when it changes, and only then.
        run.write(policy("base", "allowed", "more"))
        run.answers("more", "denied by XAccessPolicy/shop/bad")
        run.write(policy("bad", "allowed", "more", on="XBackend"))
        run.until_closed()
        run.answers("more", "allowed")


def test_a_start_with_policies_that_envoy_refuses_serves_the_others() -> None:
    good = [policy(f"good-{number}", "allowed") for number in range(2)]
    bad = [policy(f"bad-{number}", "poison", on="XBackend") for number in range(3)]
    with gate(*good, *bad) as run:
        run.until_closed(*(f"XAccessPolicy/shop/bad-{number}" for number in range(3)))
        run.answers("other", "denied by XAccessPolicy/shop/good-0")
        run.answers("allowed", "denied by XAccessPolicy/shop/bad-0")
        for number in range(3):
            (run.folder / f"bad-{number}.yaml").unlink()
        run.until_closed()
        run.answers("allowed", "allowed")


# Envoy looks for the point on the curve.
NO_POINT = {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}
KEYS = {"inline": json.dumps({"keys": [NO_POINT]})}


def settings_policy() -> Object:
    ref = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "settings"}
    tokens = {"providers": [{"issuer": "i", "jwks": KEYS}]}
    return {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "bad-keys", "namespace": "shop"},
        "spec": {"targetRefs": [ref], "traffic": {"jwtAuthentication": tokens}},
    }


BAD = {
    "AgentgatewayPolicy/shop/bad-keys": [settings_policy(), route("settings", "/settings")],
    "XAccessPolicy/shop/bad": [policy("bad", "allowed", "poison", on="XBackend")],
    "HTTPRoute/shop/bad-route": [route("bad-route", "/poison")],
    "XBackend/shop/poison": [bad_backend(), route("good-route", "/elsewhere", "poison")],
}


@pytest.mark.parametrize("reference", BAD)
def test_each_kind_of_object_is_found(reference: str) -> None:
    with gate(policy("base", "allowed", "revoked"), other=unused_port()) as run:
        eventually(run.is_ready, lambda: run.reports)
        for manifest in BAD[reference]:
            run.write(manifest)
        run.write(policy("base", "allowed"))
        run.until_closed(reference)
        run.answers("revoked", "denied by XAccessPolicy/shop/base")
        for manifest in BAD[reference]:
            (run.folder / f"{manifest['metadata']['name']}.yaml").unlink()
        run.until_closed()
        run.answers("allowed", "allowed")


def test_a_start_finds_bad_objects_of_every_kind() -> None:
    bad = [manifest for manifests in BAD.values() for manifest in manifests]
    with gate(policy("base", "allowed"), *bad, other_gateway("poisoned"), poisoned=unused_port()) as run:
        run.until_closed(*BAD, "Gateway/shop/poisoned")
        run.answers("other", "denied by XAccessPolicy/shop/base")
        (run.folder / "bad.yaml").unlink()
        run.answers("allowed", "allowed")
        run.until_closed(*(BAD.keys() - {"XAccessPolicy/shop/bad"}), "Gateway/shop/poisoned")


def other_gateway(name: str) -> Object:
    listener = {"name": "plain", "port": 8443, "protocol": "HTTP"}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"gatewayClassName": "tierwall", "listeners": [listener]},
    }


def connects(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_another_program_has_is_left_out_until_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        with gate(policy("base", "allowed"), other_gateway("taken"), taken=taken) as run:
            eventually(run.is_ready, lambda: run.reports)
            run.answers("allowed", "allowed")
            [problem] = [problem for problem in run.get("/status").json()["diagnostics"] if problem["code"] == "TW631"]
            assert f"127.0.0.1:{taken}" in problem["message"]
            assert problem["file"].endswith("taken.yaml")
            assert problem["line"] > 1
            assert any(report.diagnostics[:1] and "TW631" in report.diagnostics[0].code for report in run.reports)
            # Edits come into force beside it.
            run.write(policy("base", "allowed", "more"))
            run.answers("more", "allowed")
            holder.close()
            eventually(lambda: connects(taken), lambda: run.reports[-3:])
            eventually(run.is_ready, lambda: run.reports)
            assert "TW631" not in run.get("/status").text


def test_a_gateway_that_comes_later_and_wants_a_taken_port_disturbs_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        with gate(policy("base", "allowed"), later=taken) as run:
            eventually(run.is_ready, lambda: run.reports)
            run.write(other_gateway("later"))
            run.write(policy("base", "more"))
            run.answers("allowed", "denied by XAccessPolicy/shop/base")
            eventually(lambda: "TW631" in run.get("/status").text and run.is_ready(), lambda: run.get("/status").text)


def test_a_start_without_any_port_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        new_gate = Gate([policy("base", "allowed")], agents=holder.getsockname()[1])
        try:
            assert new_gate.is_port_taken()
        finally:
            new_gate.close()


@pytest.mark.storm
def test_a_storm_of_good_and_bad_edits_lets_nothing_through_and_ends_with_the_newest_state() -> None:
    """No state ever allows `forbidden`. Bad policies come, are mended and go, while `base` changes all the time."""
    chance = random.Random(27)
    with gate(policy("base", "allowed")) as run:
        eventually(run.is_ready, lambda: run.reports)
        stop = threading.Event()
        answers: list[str] = []

        def hammer() -> None:
            caller = run.caller()
            while not stop.is_set():
                answers.append(caller.call("forbidden"))
            caller.close()

        thread = threading.Thread(target=hammer)
        thread.start()
        try:
            bad: set[str] = set()
            for number in range(rounds(40)):
                name = f"team-{chance.randrange(3)}"
                match chance.randrange(3):
                    case 0:
                        run.write(policy(name, "poison", f"tool-{number}", on="XBackend"))
                        bad.add(f"XAccessPolicy/shop/{name}")
                    case 1:
                        run.write(policy(name, "allowed", f"tool-{number}", on="XBackend"))
                        bad.discard(f"XAccessPolicy/shop/{name}")
                    case _:
                        (run.folder / f"{name}.yaml").unlink(missing_ok=True)
                        bad.discard(f"XAccessPolicy/shop/{name}")
                run.write(policy("base", "allowed", f"tool-{number}"))
                time.sleep(chance.random() / 10)
            run.write(policy("base", "allowed", "last"))
            run.until_closed(*bad)
            run.answers("tool-0", "denied by XAccessPolicy/shop/base")
            for reference in bad:
                (run.folder / f"{reference.rpartition('/')[2]}.yaml").unlink()
            run.until_closed()
            run.answers("allowed", "allowed")
        finally:
            stop.set()
            thread.join()
        assert "allowed" not in answers
        assert "forbidden" not in run.backend.calls
        assert len(answers) > 20


def test_a_load_that_is_refused_as_a_whole_is_not_ready_until_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with gate(policy("base", "allowed")) as run:
        eventually(run.is_ready, lambda: run.reports)
        compile_all = compiling.compile

        def broken(*arguments: Any) -> Any:
            raise RuntimeError("a defect")

        monkeypatch.setattr(serving, "compile", broken)
        run.write(policy("base", "allowed", "more"))
        eventually(lambda: not run.is_ready(), lambda: run.reports)
        assert "a defect" in run.get("/readyz").json()["manifests"]["message"]
        run.answers("allowed", "allowed")
        monkeypatch.setattr(serving, "compile", compile_all)
        run.write(policy("base", "allowed", "most"))
        eventually(run.is_ready, lambda: run.get("/readyz").text)
        run.answers("most", "allowed")


def test_a_search_that_fails_is_reported_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with gate(policy("base", "allowed")) as run:
        eventually(run.is_ready, lambda: run.reports)

        def broken(*arguments: Any) -> Any:
            raise RuntimeError("a defect of the search")

        monkeypatch.setattr(run.plane.controller, "recompile", broken)
        run.write(policy("bad", "poison", on="XBackend"))
        eventually(lambda: any("a defect of the search" in str(report) for report in run.reports), lambda: run.reports)
        assert not run.is_ready()
        monkeypatch.undo()
        (run.folder / "bad.yaml").unlink()
        eventually(run.is_ready, lambda: run.get("/readyz").text)
        run.answers("allowed", "allowed")


def test_new_certificates_that_cannot_be_compiled_are_reported_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    class ChangedFiles:
        """Files of options that change once."""

        certificate = authority = None

        def __init__(self) -> None:
            self._changes = [True]

        def reload(self) -> bool:
            return bool(self._changes) and self._changes.pop()

    def broken() -> Any:
        raise RuntimeError("a defect of compiling")

    with gate(policy("base", "allowed")) as run:
        eventually(run.is_ready, lambda: run.reports)
        monkeypatch.setattr(run.plane.controller, "recompile", broken)
        monkeypatch.setattr(run.plane, "_settings", replace(run.plane._settings, files=cast(Any, ChangedFiles())))
        eventually(lambda: any("a defect of compiling" in str(report) for report in run.reports), lambda: run.reports)
        assert not run.is_ready()
        run.answers("allowed", "allowed")
        monkeypatch.undo()
        eventually(run.is_ready, lambda: run.get("/readyz").text)
