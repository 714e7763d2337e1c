"""The authorizer as a process on loopback: TLS, client certificates, rotation, slow clients, and following files."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.labs.authorizer_server import POLICIES, access
from tests.labs.waiting import PATIENCE_S, eventually
from tests.worlds.api_fakes import policies_text
from tierwall.cli.main import root
from tierwall.resources.settling import QUIET_S
from tierwall.serve.server import MAX_HANDSHAKES

TIERWALL = str(Path(sys.executable).parent / "tierwall")


class Process:
    """A `tierwall authorizer` process and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki, self.policies = folder / "pki", folder / "policies"
        self.policies.mkdir()
        self.write(POLICIES)
        self.install(self.pki)
        options = ["--tls-cert", "server.crt", "--tls-key", "server.key", "--client-ca", "ca.crt"]
        tls = [str(self.pki / option) if "." in option else option for option in options]
        self.error = (folder / "stderr").open("wb")
        command = [TIERWALL, "authorizer", "--policies", str(self.policies), "--listen", "127.0.0.1:0"]
        command += [*tls, "--read-timeout", "1", "--log", str(folder / "decisions")]
        self.process = subprocess.Popen(command, stderr=self.error)
        eventually(lambda: '"serving"' in self.said() or self.process.poll() is not None, self.said)
        [serving] = [line for line in map(json.loads, self.said().splitlines()) if line["event"] == "serving"]
        self.port = int(serving["address"].rpartition(":")[2])

    def install(self, folder: Path) -> None:
        url = "https://127.0.0.1:443"  # Certificates are for the host, whatever its port.
        result = CliRunner().invoke(root, ["authorizer", "install", "--out", str(folder), "--url", url])
        assert result.exit_code == 0, result.output

    def write(self, policies: Any) -> None:
        (self.policies / "p.yaml").write_text(policies_text(policies))

    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def connect(self, pki: Path | None = None, client: bool = True) -> http.client.HTTPSConnection:
        pki = pki or self.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if client:
            context.load_cert_chain(str(pki / "client.crt"), str(pki / "client.key"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_S, context=context)

    def ask(self, user: str, pki: Path | None = None) -> Any:
        connection = self.connect(pki)
        try:
            connection.request("POST", "/authorize", json.dumps(access(user)))
            return json.load(connection.getresponse())["status"]
        finally:
            connection.close()

    def raw(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(str(self.pki / "client.crt"), str(self.pki / "client.key"))
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S)
        self.error.close()
        return self.process.returncode


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("authorizer"))
    yield process
    assert process.stop() == 0, process.said()


def test_it_answers_clients_with_a_certificate(process: Process) -> None:
    assert process.ask("bob")["allowed"] is True
    assert process.ask("eve")["denied"] is True


def test_clients_without_a_certificate_get_no_answer(process: Process) -> None:
    connection = process.connect(client=False)

    def ask() -> object:
        connection.request("POST", "/authorize", json.dumps(access("bob")))
        return connection.getresponse()

    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        ask()
    connection.close()


def test_a_client_that_never_completes_its_body_is_answered_and_cut_off(process: Process) -> None:
    with process.raw() as slow:
        slow.sendall(b"POST /authorize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert slow.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert process.ask("bob")["allowed"] is True, "others are served meanwhile"


def test_a_client_that_never_completes_its_headers_is_cut_off(process: Process) -> None:
    with process.raw() as slow, process.raw() as silent:
        slow.sendall(b"POST /authorize HTTP/1.1\r\nHost:")
        assert process.ask("bob")["allowed"] is True
        assert slow.recv(65536) == b""
        assert silent.recv(65536) == b""


def ends(connection: socket.socket) -> bool:
    """Whether the server ends a connection, however it does that."""
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


def test_a_connection_without_a_handshake_ends(process: Process) -> None:
    address = "127.0.0.1", process.port
    with socket.create_connection(address, PATIENCE_S) as silent, socket.create_connection(address, PATIENCE_S) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert process.ask("bob")["allowed"] is True
        assert ends(silent)
        assert ends(slow)


def test_connections_without_a_handshake_keep_nobody_out(process: Process) -> None:
    address = "127.0.0.1", process.port
    silent = [socket.create_connection(address, PATIENCE_S) for _ in range(MAX_HANDSHAKES)]
    try:
        for _ in range(3):
            silent += [socket.create_connection(address, PATIENCE_S) for _ in range(MAX_HANDSHAKES // 2)]
            assert process.ask("bob")["allowed"] is True
        assert all(map(ends, silent))
    finally:
        for connection in silent:
            connection.close()


def test_ten_megabytes_are_refused_and_the_server_stays_up(process: Process) -> None:
    connection = process.connect()
    connection.request("POST", "/authorize", b"x" * 10_000_000)
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.load(answer)["status"]["denied"] is True
    connection.close()
    assert process.ask("bob")["allowed"] is True


def test_garbage_instead_of_http_is_refused(process: Process) -> None:
    with process.raw() as other:
        other.sendall(b"\x00\x01\x02 garbage\r\n\r\n")
        assert b"400" in other.recv(65536)
    assert process.ask("bob")["allowed"] is True


def test_an_edit_is_followed_and_a_broken_one_is_reported(process: Process) -> None:
    process.write([*POLICIES, ("dave", "Allow", 'request.userInfo.username == "dave"')])
    eventually(lambda: bool(process.ask("dave")["allowed"]), "the new policy")
    (process.policies / "broken.yaml").write_text("kind: [")
    eventually(lambda: "TW013" in process.said(), "word of the broken edit")
    process.write([*POLICIES, ("erin", "Allow", 'request.userInfo.username == "erin"')])
    eventually(lambda: bool(process.ask("erin")["allowed"]), "the edit beside the broken one")
    assert process.ask("dave")["allowed"] is False
    (process.policies / "p.yaml").write_text("kind: [")
    eventually(lambda: "TW010" in process.said(), "word of the broken edit")
    assert process.ask("erin")["allowed"] is True, "the last readable version counts"
    process.write([*POLICIES, ("dave", "Allow", 'request.userInfo.username == "dave"')])
    eventually(lambda: bool(process.ask("dave")["allowed"]), "the mended file")
    assert process.ask("dave")["allowed"] is True
    (process.policies / "broken.yaml").unlink()


def test_a_hundred_rewrites_of_a_file_let_nothing_through(process: Process) -> None:
    file, text = (
        process.policies / "deny.yaml",
        policies_text([("no-zed", "Deny", 'request.userInfo.username == "zed"')]),
    )
    file.write_text(text)
    process.write([*POLICIES, ("all", "Allow", "true")])
    eventually(lambda: bool(process.ask("anybody")["allowed"]), "the policy that allows")

    # When each answer that let a request through was asked for, and when it came.
    passed: list[tuple[float, float]] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            asked = time.monotonic()
            if process.ask("zed")["allowed"]:
                passed.append((asked, time.monotonic()))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        steady, number, since = 0, 0, time.monotonic()
        while steady < 100:
            began, number = time.monotonic(), number + 1
            with file.open("w") as writing:
                time.sleep(0.01)
                for part in (text[: number % len(text)], text[number % len(text) :]):
                    writing.write(part)
                    writing.flush()
                    time.sleep(0.005)
            if time.monotonic() - began < QUIET_S:
                steady += 1
                continue
            # The machine stopped the writer, and what stands for so long counts. It says nothing about steady writers.
            assert not [answer for answer in passed if answer[0] >= since and answer[1] < began]
            eventually(lambda: not process.ask("zed")["allowed"], "the whole file")
            since = time.monotonic()
    finally:
        done.set()
        asking.join()
    assert not [answer for answer in passed if answer[0] >= since]
    assert not process.ask("zed")["allowed"]
    file.unlink()
    eventually(lambda: bool(process.ask("zed")["allowed"]), "the removal")
    process.write(POLICIES)
    eventually(lambda: not process.ask("zed")["allowed"], "the policies as they were")


def allows(process: Process, user: str) -> bool:
    return bool(process.ask(user)["allowed"])


def test_an_edit_that_keeps_time_and_size_is_followed(process: Process) -> None:
    file = process.policies / "p.yaml"
    for user in ("fred", "fran"):
        process.write([*POLICIES, ("other", "Allow", f'request.userInfo.username == "{user}"')])
        if user == "fred":
            before = file.stat()
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        eventually(partial(allows, process, user), "the edit")
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert not process.ask("fred")["allowed"]


def test_certificates_and_the_client_ca_rotate_without_a_restart(process: Process, tmp_path: Path) -> None:
    assert process.ask("bob")["allowed"] is True
    fresh = tmp_path / "fresh"
    process.install(fresh)
    old = tmp_path / "old"
    shutil.copytree(process.pki, old)
    # A certificate that does not fit the key, as in the middle of a rotation, changes nothing.
    os.replace(shutil.copy(fresh / "server.crt", process.pki / "new"), process.pki / "server.crt")
    eventually(lambda: "certificates refused" in process.said(), "word of the broken pair")
    assert process.ask("bob", old)["allowed"] is True
    kept = process.connect(old)

    def go_on() -> bool:
        try:
            kept.request("POST", "/authorize", json.dumps(access("bob")))
            return bool(json.load(kept.getresponse())["status"]["allowed"])
        except (OSError, http.client.HTTPException):
            return False

    assert go_on()
    kept.auto_open = 0  # It never connects again.
    for name in ("server.key", "ca.crt"):
        os.replace(shutil.copy(fresh / name, process.pki / "new"), process.pki / name)
    # A connection that is never idle ends, too.
    eventually(lambda: not go_on(), "the end of an open connection")
    kept.close()

    def is_served(pki: Path) -> bool:
        try:
            return bool(process.ask("bob", pki)["allowed"])
        except (OSError, http.client.HTTPException):
            return False

    eventually(lambda: is_served(fresh), "the new certificates")
    taken = process.said().count("certificates taken")
    assert not is_served(old), "clients of the old CA are no longer served"
    mixed = tmp_path / "mixed"
    shutil.copytree(old, mixed)
    shutil.copy(fresh / "ca.crt", mixed / "ca.crt")
    assert not is_served(mixed), "not even if they trust the new server"
    for name in ("client.crt", "client.key"):
        shutil.copy(fresh / name, process.pki / name)
    (process.pki / "server.key").touch()
    process.write([*POLICIES, ("gina", "Allow", 'request.userInfo.username == "gina"')])
    eventually(lambda: bool(process.ask("gina")["allowed"]), "an edit after that")
    assert process.said().count("certificates taken") == taken, "files with the same content are not a change"


def test_the_decision_log_is_written_as_decisions_are_made(process: Process) -> None:
    process.ask("bob")
    lines = (process.folder / "decisions").read_text().splitlines()
    assert any(json.loads(line).get("policy") == "ClusterAuthorizationPolicy/bob-claims" for line in lines)


# starting


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "--policies"),
        (["--policies", "none"], 1, "none"),
        (["--policies", "POLICIES", "--listen", "nowhere"], 2, "HOST:PORT"),
        (["--policies", "POLICIES", "--listen", "0.0.0.0:0"], 1, "TW513"),
        (["--policies", "POLICIES", "--tls-cert", "x"], 2, "give --tls-cert and --tls-key together"),
        (["--policies", "POLICIES", "--tls-cert", "x", "--tls-key", "y"], 1, "TW512"),
        (["--policies", "POLICIES", "--bridge", "--canary-namespace", "a/../b"], 2, "--canary-namespace"),
    ],
)
def test_a_start_that_cannot_work_ends_with_the_reason(
    process: Process, arguments: list[str], code: int, word: str
) -> None:
    given = [str(process.policies) if argument == "POLICIES" else argument for argument in arguments]
    result = CliRunner().invoke(root, ["authorizer", *given])
    assert result.exit_code == code
    assert word in result.output


NO_ADDRESSES = (
    "http://x",
    "https://",
    "https://x:99999",
    "https://x:0",
    "https://x:y",
    "https://[::1",
    "https://user:secret@x",
    "https://x?a=b",
    "https://x#a",
    "https://x/a b",
    "https://x\n",
)


def test_an_installation_is_printed_and_kept(tmp_path: Path) -> None:
    command = ["authorizer", "install", "--out", str(tmp_path / "pki"), "--url", "https://tw.example:443"]
    first = CliRunner().invoke(root, [*command, "--exempt-group", "system:nodes"])
    assert first.exit_code == 0
    documents = list(yaml.safe_load_all(first.output))
    kinds = [document["kind"] for document in documents if document]
    assert kinds == [
        "AuthorizationConfiguration",
        "Config",
        "AdmissionConfiguration",
        "Config",
        "ValidatingWebhookConfiguration",
        "List",
    ]
    webhook = documents[0]["authorizers"][0]["webhook"]
    assert webhook["failurePolicy"] == "Deny"
    assert webhook["cacheAuthorizedRequests"] is False
    assert webhook["matchConditions"] == [{"expression": "!('system:nodes' in request.groups)"}]
    assert documents[4]["webhooks"][0]["failurePolicy"] == "Fail"
    assert (tmp_path / "pki" / "server.key").stat().st_mode & 0o077 == 0
    again = CliRunner().invoke(root, [*command, "--exempt-group", "system:nodes"])
    assert again.output == first.output, "certificates are kept"
    for bad in (
        *(["--url", url] for url in NO_ADDRESSES),
        ["--name", "No Name"],
        ["--exempt-group", "a'b"],
        ["--canary-namespace", "No"],
        ["--api-server-user", ""],
        ["--api-server-user", "system:serviceaccount:ops"],
        ["--api-server-user", "system:serviceaccount:ops:it's"],
    ):
        refused = CliRunner().invoke(root, ["authorizer", "install", "--out", str(tmp_path / "no"), *bad])
        assert (refused.exit_code, "TW512" in refused.output) == (1, True), bad


def installed(folder: Path, *options: str) -> dict[str, Any]:
    """Return what an installation wrote, by file."""
    result = CliRunner().invoke(root, ["authorizer", "install", "--out", str(folder), "--url", "https://h:1", *options])
    assert result.exit_code == 0, result.output
    return {str(file.relative_to(folder)): yaml.safe_load(file.read_text()) for file in folder.rglob("*.yaml")}


def test_the_authorizer_gets_the_rights_that_it_needs_and_no_others(tmp_path: Path) -> None:
    user = "system:serviceaccount:ops:tierwall"
    written = installed(tmp_path, "--api-server-user", user, "--canary-namespace", "ops")["rbac.yaml"]["items"]
    rules = [rule for item in written for rule in item.get("rules", ())]
    configurations = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["validatingwebhookconfigurations"],
        "resourceNames": ["tierwall-authorizer"],
        "verbs": ["get", "watch"],
    }
    assert rules == [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]},
        configurations,
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]
    assert {subject["name"] for item in written for subject in item.get("subjects", ())} == {user}
    assert {item["metadata"].get("namespace") for item in written if item["kind"].startswith("Role")} == {"ops"}


def test_an_authorizer_in_the_cluster_may_read_before_it_can_answer(tmp_path: Path) -> None:
    """Other authorizers decide about it. Admission still asks it, because its canary must be refused."""
    user = "system:serviceaccount:ops:tierwall"
    options = ("--api-server-user", user, "--exempt-group", "system:nodes")
    nodes, itself = {"expression": "!('system:nodes' in request.groups)"}, {"expression": f"request.user != '{user}'"}
    written = installed(tmp_path / "bridge", *options)
    assert written["authorization.yaml"]["authorizers"][0]["webhook"]["matchConditions"] == [nodes, itself]
    (condition,) = written["webhook.yaml"]["webhooks"][0]["matchConditions"]
    assert user not in condition["expression"]
    native = installed(tmp_path / "native", "--native", "--api-server-user", user)
    for file in ("authorization-kep.yaml", "authorization-conditions-review.yaml"):
        assert native[file]["authorizers"][0]["webhook"]["matchConditions"] == [itself]
    elsewhere = installed(tmp_path / "elsewhere")["authorization.yaml"]
    assert "matchConditions" not in elsewhere["authorizers"][0]["webhook"]


def test_static_admission_is_written_as_files_of_the_api_server(tmp_path: Path) -> None:
    api, static = installed(tmp_path / "api"), installed(tmp_path / "static", "--static")
    assert "webhook.yaml" not in static
    webhook = static["static-admission/webhook.yaml"]
    assert webhook["metadata"]["name"].endswith(".static.k8s.io")
    ours, theirs = webhook["webhooks"][0], api["webhook.yaml"]["webhooks"][0]
    assert ours["clientConfig"]["url"] == theirs["clientConfig"]["url"]
    assert {**ours, "clientConfig": 0} == {**theirs, "clientConfig": 0}
    configuration = static["admission-static.yaml"]["plugins"][0]["configuration"]
    assert configuration["staticManifestsDir"] == str(tmp_path / "static" / "static-admission")


def test_servers_that_know_conditions_get_the_endpoint_in_both_spellings(tmp_path: Path) -> None:
    written = installed(tmp_path, "--native")
    assert set(written) == {"authorization-kep.yaml", "authorization-conditions-review.yaml", "kubeconfig.yaml"}
    kep, series = (
        written[f"authorization-{spelling}.yaml"]["authorizers"][0]["webhook"]
        for spelling in ("kep", "conditions-review")
    )
    assert kep["authorizationConditionsReviewVersion"] == series["conditionsReview"]["version"] == "v1alpha1"
    context = kep["conditionsEndpointKubeConfigContext"]
    assert context == series["conditionsReview"]["kubeConfigContextName"]
    kubeconfig = written["kubeconfig.yaml"]
    [cluster] = [entry["context"]["cluster"] for entry in kubeconfig["contexts"] if entry["name"] == context]
    [server] = [entry["cluster"]["server"] for entry in kubeconfig["clusters"] if entry["name"] == cluster]
    assert server == "https://h:1/conditions"
    for other in ("--native", "--no-bridge"):
        both = CliRunner().invoke(root, ["authorizer", "install", "--out", str(tmp_path), "--static", other])
        assert both.exit_code == 2


def test_the_proof_of_admission_needs_the_bridge(process: Process) -> None:
    for option in (["--assume-admission"], ["--api-server-kubeconfig", "x"]):
        result = CliRunner().invoke(root, ["authorizer", "--policies", str(process.policies), *option])
        assert (result.exit_code, "--bridge" in result.output) == (2, True)
    missing = ["--bridge", "--api-server-kubeconfig", str(process.folder / "none")]
    result = CliRunner().invoke(root, ["authorizer", "--policies", str(process.policies), *missing])
    assert (result.exit_code, "TW040" in result.output) == (1, True)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_its_owner_reads_an_installation_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "new" / "pki"
    before = os.umask(umask)
    try:
        result = CliRunner().invoke(root, ["authorizer", "install", "--out", str(folder), "--url", "https://h:1"])
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_files_that_others_could_read_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "server.key").touch(0o644)
    (tmp_path / "kubeconfig.yaml").touch(0o644)
    result = CliRunner().invoke(root, ["authorizer", "install", "--out", str(tmp_path), "--url", "https://h:1"])
    assert result.exit_code == 0, result.output
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_only_its_owner_reads_the_decision_log(process: Process) -> None:
    assert (process.folder / "decisions").stat().st_mode & 0o777 == 0o600
