"""Other users of the machine reach neither the control plane nor its keys and logs (docs/run.md#other-local-users)."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.agents import certificates
from tests import ROOT
from tests.labs.agents_run import Agents, Running, agents_in
from tests.labs.envoy_lab import Caller
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.core.diagnostics import InputError
from tierwall.engines.envoy.control.process import find_envoy
from tierwall.engines.private import private_folder, write_private
from tierwall.serve.decisionlog import DecisionLog
from tierwall.serve.pages import MAX_CLIENTS

pytestmark = pytest.mark.engine
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with agents_in(tmp_path_factory.mktemp("agents")) as new_agents:
        yield new_agents


@pytest.fixture(scope="module")
def running(agents: Agents) -> Iterator[Running]:
    # Nothing may depend on the umask of whoever starts it.
    before = os.umask(0)
    try:
        with agents.running() as started:
            yield started
    finally:
        os.umask(before)


def of_process(running: Running) -> list[int]:
    return [running.process.pid, running.envoy]


def listening(pids: list[int]) -> set[int]:
    """The TCP ports that these processes listen on, from the kernel."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link))
            except FileNotFoundError:
                continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in inodes:
                ports.add(int(parts[1].rpartition(":")[2], 16))
    return ports


def own_folders(running: Running) -> list[Path]:
    """The folders of the sockets that this run has made."""
    sockets = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if ".sock" in line]
    xds = next(line for line in running.said.splitlines() if line.startswith("xDS on unix:"))
    path = Path(xds.removeprefix("xDS on unix:"))
    assert str(path) in sockets
    command = Path(f"/proc/{running.envoy}/cmdline").read_bytes().split(b"\0")
    return [path.parent, Path(os.fsdecode(command[command.index(b"-c") + 1])).parent]


def test_only_the_gateway_and_the_health_page_listen_on_tcp(agents: Agents, running: Running) -> None:
    assert listening(of_process(running)) == {agents.port, running.port("health and metrics on")}


def test_folders_sockets_and_logs_are_for_their_owner_only(agents: Agents, running: Running) -> None:
    for folder in own_folders(running):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name for path in folder.iterdir()} in ({"xds.sock"}, {"admin.sock", "bootstrap.json"})
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(agents.log.stat().st_mode) == 0o600


@as_root
def test_another_user_cannot_connect(running: Running) -> None:
    # The interpreter itself may be out of the other user's reach, so it changes the user after it has started.
    code = """
import os, socket, sys
if sys.argv[2] != "0":
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""

    def connect(path: Path, user: int) -> str:
        command = [sys.executable, "-c", code, str(path), str(user)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stderr

    for folder in own_folders(running):
        for path in folder.glob("*.sock"):
            assert connect(path, 0) == ""
            assert "PermissionError" in connect(path, NOBODY)


def test_what_anyone_can_read_has_no_keys_and_changes_nothing(agents: Agents, running: Running) -> None:
    import httpx

    secrets = [line for line in (agents.keys / "tls.yaml").read_text().splitlines() if "tls.key" in line]
    assert secrets
    url = f"http://127.0.0.1:{running.port('health and metrics on')}"
    for path in ("/status", "/metrics", "/readyz", "/healthz"):
        text = running.get(path).text
        assert "PRIVATE KEY" not in text
        assert all(line.split()[-1] not in text for line in secrets)
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert httpx.request(method, url + path, timeout=PATIENCE_S).status_code == 405
    assert running.get("/readyz").status_code == 200


def test_a_long_temporary_folder_is_no_obstacle(agents: Agents, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with agents.running(environment={"TMPDIR": str(long)}) as started:
        caller = Caller(agents.context("shopper"), agents.port)
        assert caller.call("refund_order") == "denied by XAccessPolicy/shop/platform-guard"
        caller.close()
        folders = own_folders(started)
    assert all(not folder.exists() for folder in folders)


class FedEnvoy:
    """An Envoy that is run by others, with the bootstrap of docs/run.md."""

    def __init__(self, folder: Path, xds: int, keys: Path) -> None:
        text = (ROOT / "docs" / "run.md").read_text()
        text = text.split("# bootstrap.yaml\n")[1].split("```")[0]
        config = yaml.safe_load(text.replace("tierwall.example", "localhost"))
        [cluster] = config["static_resources"]["clusters"]
        [endpoint] = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        endpoint["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": xds}
        self._paths(cluster["transport_socket"], keys)
        (folder / "bootstrap.yaml").write_text(yaml.safe_dump(config))
        options = ("--drain-strategy", "immediate", "--drain-time-s", "5", "--concurrency", "1")
        command = find_envoy().command(folder / "bootstrap.yaml", *options, "--log-path", str(folder / "log"))
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _paths(self, value: Any, keys: Path) -> None:
        """Replace the paths of the page."""
        for name, entry in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
            if name == "filename":
                value[name] = str(keys / Path(entry).name)
            elif isinstance(entry, dict | list):
                self._paths(entry, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def hangs_up(port: int, authority: Path, shown: Path | None) -> bool:
    """Whether a client that shows this certificate is disconnected without any answer."""
    context = ssl.create_default_context(cafile=str(authority))
    if shown is not None:
        context.load_cert_chain(shown)
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    try:
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            return client.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_envoys_of_others_need_a_certificate_of_the_authority(agents: Agents, tmp_path: Path) -> None:
    authority, stranger = certificates.Authority(), certificates.Authority()
    server = authority.server("localhost")
    (tmp_path / "server.pem").write_bytes(server.certificate + server.key)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    for name, signer in (("right", authority), ("wrong", stranger)):
        pair = signer.agent("proxies", "envoy")
        (tmp_path / f"{name}.pem").write_bytes(pair.certificate + pair.key)
    (tmp_path / "envoy.crt").symlink_to(tmp_path / "right.pem")
    (tmp_path / "envoy.key").symlink_to(tmp_path / "right.pem")
    options = [f"--xds-certificate={tmp_path}/server.pem", f"--xds-key={tmp_path}/server.pem"]
    with agents.running("--no-envoy", "--xds=127.0.0.1:0", *options, f"--xds-client-ca={tmp_path}/ca.crt") as fed:
        xds = fed.port("xDS on")
        # Whoever shows no certificate changes nothing: not with junk, not with a handshake, not by staying silent.
        silent = [socket.create_connection(("127.0.0.1", xds), PATIENCE_S) for _ in range(200)]
        junk = socket.create_connection(("127.0.0.1", xds), PATIENCE_S)
        junk.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 100)
        for shown, is_refused in ((None, True), (tmp_path / "wrong.pem", True), (tmp_path / "right.pem", False)):
            assert hangs_up(xds, tmp_path / "ca.crt", shown) is is_refused
        envoy = FedEnvoy(tmp_path, xds, tmp_path)
        try:
            caller = Caller(agents.context("shopper"), agents.port)
            guarded = "denied by XAccessPolicy/shop/platform-guard"
            eventually(lambda: caller.call("refund_order") == guarded, lambda: fed.said)
            caller.close()
            assert [proxy["proxy"] for proxy in fed.get("/status").json()["proxies"]] == ["gateway-1"]
            assert fed.get("/readyz").status_code == 200
        finally:
            envoy.close()
            for connection in (*silent, junk):
                connection.close()


def test_a_decision_log_is_private_and_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DecisionLog.open(str(tmp_path / "new")).close()
        write_private(tmp_path / "key", b"key")
        with private_folder() as folder:
            assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "key")} == {0o600}
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "key", b"other")
    # What the operator has set stays, and is said.
    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o640)
    (tmp_path / "own").symlink_to(tmp_path / "new")
    log = DecisionLog.open(str(tmp_path / "shared"))
    assert [(problem.code, "its mode is 0640" in problem.message) for problem in log.diagnostics] == [("TW640", True)]
    log.close()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o640
    for path in (tmp_path / "own", Path("/dev/null"), tmp_path / "new"):
        log = DecisionLog.open(str(path))
        log.write({"tool": "x"})
        assert log.diagnostics == ()
        log.close()
    assert (tmp_path / "new").read_text() == '{"tool":"x"}\n' * 2


@as_root
def test_a_decision_log_that_another_user_has_planted_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "victim").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "file").touch()
    for name in ("link", "dangling", "file"):
        os.chown(tmp_path / name, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(InputError) as caught:
            DecisionLog.open(str(tmp_path / name))
        [problem] = caught.value.diagnostics
        assert (problem.code, f"user {NOBODY} has made it" in problem.message) == ("TW634", True)
    assert not (tmp_path / "new").exists()


def test_silent_connections_to_the_health_page_keep_nobody_out(running: Running) -> None:
    port = running.port("health and metrics on")
    before = len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))
    silent = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(900)]
    try:
        assert running.get("/readyz").status_code == 200
        assert len(list(Path(f"/proc/{running.process.pid}/fd").iterdir())) < before + MAX_CLIENTS + 50
    finally:
        for connection in silent:
            connection.close()
