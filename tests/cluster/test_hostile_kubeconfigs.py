"""kubeconfigs and credential plugins that are broken or hostile: a sentence for each, and nothing hangs.

docs/clusters.md#kubeconfig, docs/clusters.md#plugins
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.recording_server import Authority
from tests.labs.waiting import eventually
from tierwall.cluster.access import ClusterAccess, find_access, in_cluster
from tierwall.cluster.connection import Connection
from tierwall.cluster.kubeconfig_entries import PluginEntry
from tierwall.cluster.plugin import run_plugin
from tierwall.core.diagnostics import InputError

CONFIG: dict[str, Any] = {
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": "hidden"}}],
}
ACCESS = ClusterAccess("x", "https://127.0.0.1:6443", "default")


def problems(file: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        find_access(None, str(file), {})
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"TW040"}
    return [diagnostic.message for diagnostic in caught.value.diagnostics]


def _bomb() -> str:
    lines = ['a0: &a0 ["lol"]']
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"current-context: [", "kubeconfig:"),
        (b"\xff\xfe\xff", "kubeconfig:"),
        (b"{" * 100_000, "kubeconfig:"),
        (_bomb().encode(), "kubeconfig:"),
        (b"- a\n- b\n", "expected a map"),
        (b"contexts: 5", "expected a list as `contexts`, found a number"),
        (b"contexts: [5]", "expected a map as `contexts[0]`, found a number"),
        (b"users: [{name: u, user: {token: 12345}}]", "expected a string as `users[0].user.token`, found a number"),
        (b"users: [{name: u, user: {as-groups: dev}}]", "expected a list as `users[0].user.as-groups`"),
        (b"clusters: [{name: c, cluster: {insecure-skip-tls-verify: 'yes'}}]", "expected a boolean as"),
        (b'users: [{name: u, user: {token: "a\\0b"}}]', "`users[0].user.token` has a NUL in it"),
        (b"users: [{name: u, user: {client-key-data: '!'}}]", "`users[0].user.client-key-data` is not base64"),
        (b"users: [{name: u}, {name: u}]", "the user `u` is there twice"),
        (b"kind: List\napiVersion: v1", "expected Config of v1, found List of v1"),
        (b"a: &a [*a]", "kubeconfig:"),
        (b"x" * ((16 << 20) + 1), "is larger than 16 MiB"),
    ],
    ids=range(16),
)
def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path: Path, text: bytes, problem: str) -> None:
    (tmp_path / "config").write_bytes(text)
    messages = problems(tmp_path / "config")
    assert any(problem in message for message in messages), messages
    assert not any("\n" in message or len(message) > 1000 for message in messages)


def test_places_that_are_not_files(tmp_path: Path) -> None:
    assert "Is a directory" in problems(tmp_path)[0]
    assert "No such file or directory" in problems(tmp_path / "missing")[0]
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in problems(tmp_path / "loop")[0]
    assert "NUL" in problems(Path("a\0b"))[0]


def test_a_pipe_is_read_as_kubectl_reads_it(tmp_path: Path) -> None:
    """`--kubeconfig <(decrypt config)` is a pipe."""
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(json.dumps(CONFIG)))
    thread.start()
    assert find_access(None, str(tmp_path / "pipe"), {}).server == "https://127.0.0.1:6443"
    thread.join()


@given(st.binary(max_size=200) | st.text(alphabet="{}[]:,-&*!|>\"'ab\n \t\0", max_size=80).map(str.encode))
def test_any_bytes_are_a_kubeconfig_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(data)
    with pytest.raises(InputError):
        find_access(None, str(file), {})


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["x", "c", "u", "", "https://h", "a\nb"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "a"]), inner, max_size=2),
    max_leaves=4,
)
PLACES = [
    ("current-context",),
    ("contexts",),
    ("contexts", 0),
    *(("contexts", 0, "context", name) for name in ("cluster", "user", "namespace")),
    ("clusters",),
    *(
        ("clusters", 0, "cluster", name)
        for name in ("server", "proxy-url", "tls-server-name", "certificate-authority", "extensions")
    ),
    ("users",),
    *(("users", 0, "user", name) for name in ("token", "exec", "as", "as-groups", "as-user-extra", "auth-provider")),
    *(("users", 0, "user", "exec", name) for name in ("command", "args", "env", "apiVersion", "interactiveMode")),
]


@given(st.lists(st.tuples(st.sampled_from(PLACES), TREES), min_size=1, max_size=3))
def test_values_of_any_form_are_taken_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    config = json.loads(json.dumps(CONFIG))
    config["users"][0]["user"]["exec"] = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}
    for place, value in changes:
        inside = config
        try:
            for part in place[:-1]:
                inside = inside[part]
            inside[place[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue
    file = tmp_path_factory.getbasetemp() / "values"
    file.write_text(json.dumps(config))
    try:
        access = find_access(None, str(file), {})
        words = repr(access)
        assert access.server.startswith(("https://", "http://"))
    except InputError as error:
        words = "".join(diagnostic.message for diagnostic in error.diagnostics)
    assert "hidden" not in words


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://[::1]:6443", "https://[::1]:6443"),
        ("https://host/k8s/clusters/c-1/", "https://host/k8s/clusters/c-1"),
        ("https://[::1", None),
        ("https://host:99999", None),
        ("https://host:0", None),
        ("https://ho st", None),
        ("https://host\r\nx: y", None),
        ("https://user:password@host", None),
        ("unix:///run/api.sock", None),
        ("file:///etc/passwd", None),
        ("//host", None),
        ("https://", None),
    ],
)
def test_addresses_of_servers(tmp_path: Path, server: str, expected: str | None) -> None:
    config = {**CONFIG, "clusters": [{"name": "c", "cluster": {"server": server}}]}
    (tmp_path / "config").write_text(json.dumps(config))
    if expected is not None:
        assert find_access(None, str(tmp_path / "config"), {}).server == expected
        return
    (message,) = problems(tmp_path / "config")
    assert "`server`" in message
    assert "password@" not in message


@pytest.mark.parametrize("token", ["a\r\nx-evil: 1", "a\nb", "a\x00b", "a\x7fb", "\x1b[31m"])
def test_a_token_cannot_add_headers(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    config = {**CONFIG, "users": [{"name": "u", "user": {"tokenFile": "token"}}]}
    (tmp_path / "config").write_text(json.dumps(config))
    access = find_access(None, str(tmp_path / "config"), {})
    with pytest.raises(InputError, match="token file") as caught:
        asyncio.run(_get(access))
    assert "evil" not in str(caught.value)


async def _get(access: ClusterAccess) -> None:
    connection = Connection(access, 5.0)
    try:
        await connection.get("/version")
    finally:
        await connection.close()


CERTIFICATE, KEY = Authority().issue("carol")
OTHER_KEY = Authority().issue("other")[1]


@pytest.mark.parametrize(
    ("certificate", "key", "problem"),
    [
        (CERTIFICATE, OTHER_KEY, "the key belongs to another certificate"),
        (CERTIFICATE, b"no key", "they are not PEM"),
        (b"no certificate", KEY, "they are not PEM"),
        (CERTIFICATE, b"", "they are not PEM"),
        (CERTIFICATE, b"-----BEGIN PRIVATE KEY-----\n" * 50_000, "is larger than 1 MiB"),
    ],
    ids=["another key", "no key", "no certificate", "empty", "large"],
)
def test_certificates_that_cannot_be_used(tmp_path: Path, certificate: bytes, key: bytes, problem: str) -> None:
    (tmp_path / "crt").write_bytes(certificate)
    (tmp_path / "key").write_bytes(key)
    config = {**CONFIG, "users": [{"name": "u", "user": {"client-certificate": "crt", "client-key": "key"}}]}
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(InputError, match=problem):
        asyncio.run(_get(find_access(None, str(tmp_path / "config"), {})))


def test_a_proxy_with_a_password_keeps_it_to_itself(tmp_path: Path) -> None:
    cluster = {"server": "https://192.0.2.1:6443", "proxy-url": "http://user:hidden@127.0.0.1:1"}
    (tmp_path / "config").write_text(json.dumps({**CONFIG, "clusters": [{"name": "c", "cluster": cluster}]}))
    with pytest.raises(Exception, match=r"the proxy http://127\.0\.0\.1:1 does not answer") as caught:
        asyncio.run(_get(find_access(None, str(tmp_path / "config"), {})))
    assert "hidden" not in str(caught.value)
    cluster["proxy-url"] = "hidden://user:hidden@127.0.0.1"
    (tmp_path / "config").write_text(json.dumps({**CONFIG, "clusters": [{"name": "c", "cluster": cluster}]}))
    (message,) = problems(tmp_path / "config")
    assert "user:hidden" not in message


def test_a_pod_without_a_readable_token_says_so(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert in_cluster(environment, tmp_path) is None
    (tmp_path / "token").write_text("")
    (tmp_path / "namespace").write_bytes(b"\xff")
    access = in_cluster(environment, tmp_path)
    assert access is not None
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "default")
    with pytest.raises(InputError, match="is empty"):
        asyncio.run(_get(access))


def plugin(folder: Path, program: str, **more: Any) -> ClusterAccess:
    file = folder / "plugin"
    file.write_text(f"#!{sys.executable}\n{program}\n")
    file.chmod(0o755)
    given = {"api_version": "client.authentication.k8s.io/v1", "command": str(file), "interactive_mode": "Never"}
    return ClusterAccess("x", ACCESS.server, "default", plugin=PluginEntry(**{**given, **more}))


def reply(**status: Any) -> str:
    answer = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}
    return f"print({json.dumps(answer)!r})"


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("while True: print('x' * 65536)", "printed more than 1 MiB"),
        ("import time; time.sleep(600)", "did not end within 2 s"),
        ("import os, time\nif os.fork(): raise SystemExit\ntime.sleep(600)", "did not end within 2 s"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("raise SystemExit(7)", "failed with exit code 7"),
        ("", "did not print an ExecCredential"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\x00')", "did not print an ExecCredential"),
        ("print('[' * 100000)", "did not print an ExecCredential"),
        ("print('{}')", "printed no kind of no version"),
        (reply(), "printed neither a token nor a client certificate"),
        (reply(token="a\nb"), "control character"),
        (reply(token=5), "did not print an ExecCredential"),
        (reply(clientCertificateData="x"), "without its key"),
        (reply(clientCertificateData="x", clientKeyData="y"), "printed what is of no use"),
        (reply(token="t", expirationTimestamp="soon"), "`expirationTimestamp` that cannot be read"),
        ("input()", "failed with exit code 1"),
    ],
)
def test_a_plugin_that_fails_is_a_sentence(tmp_path: Path, program: str, problem: str) -> None:
    access = plugin(tmp_path, program)
    with pytest.raises(InputError) as caught:
        asyncio.run(run_plugin(access, patience=2.0 if "within" in problem else 60.0))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "TW041"
    assert problem in diagnostic.message
    assert "\n" not in diagnostic.message


def test_what_a_plugin_has_started_ends_with_it(tmp_path: Path) -> None:
    file = str(tmp_path / "child")
    program = f"import os, time\nif not os.fork(): open({file!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    access = plugin(tmp_path, program)
    with pytest.raises(InputError, match="did not end"):
        asyncio.run(run_plugin(access, patience=2.0))
    child = int((tmp_path / "child").read_text())

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(is_gone, "the end of the child")


@pytest.mark.parametrize(
    ("command", "problem"),
    [("no-such-plugin", "is not in PATH"), ("/etc/passwd", "cannot be run"), ("/", "cannot be run")],
)
def test_a_plugin_that_cannot_be_run(tmp_path: Path, command: str, problem: str) -> None:
    access = plugin(tmp_path, "", command=command, install_hint="install it\x1b[31m\n" * 500)
    with pytest.raises(InputError, match=problem) as caught:
        asyncio.run(run_plugin(access))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.hint.startswith("install it")
    assert len(diagnostic.hint) <= 1000


def test_a_plugin_is_not_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path, reply(token="t"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="is not in PATH"):
        asyncio.run(run_plugin(plugin(tmp_path, reply(token="t"), command="plugin")))
