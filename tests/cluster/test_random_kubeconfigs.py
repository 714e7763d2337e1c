"""Random kubeconfigs, alone and merged, mean what they mean to kubectl (docs/clusters.md#kubeconfig).

Either both ask the server, as the same user, or both refuse before the first request.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from tests.labs.control_plane import tool
from tests.labs.recording_server import Authority, RecordingServer
from tests.randomness import examples
from tierwall.cluster.access import find_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ClusterError
from tierwall.core.diagnostics import InputError

AUTHORITY = Authority()
CERTIFICATE, KEY = AUTHORITY.issue("carol")
NAMES = ("a", "b")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _oddly(plain: list[dict[str, Any]], odd: dict[str, list[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return values that are plain apart from a few fields: these may be wrong, empty or null."""
    field = st.sampled_from([(name, value) for name, values in odd.items() for value in values])
    return st.builds(
        lambda base, fields: {**base, **dict(fields)}, st.sampled_from(plain), st.lists(field, max_size=most)
    )


# `URL` stands for the server.
CLUSTER = _oddly(
    [
        {"server": "URL", "certificate-authority": "authority.pem"},
        {"server": "URL", "certificate-authority-data": _base64(AUTHORITY.pem)},
        {"server": "URL", "insecure-skip-tls-verify": True},
    ],
    {
        "server": ["URL/", "URL/k8s/clusters/c-1", "URL//x/", "URL/x?y=z", "", "127.0.0.1:1/x", "ftp://127.0.0.1:1"],
        "certificate-authority": ["missing.pem", "token", "", None],
        "certificate-authority-data": [_base64(AUTHORITY.pem), "", None, "!", _base64(b"no certificate")],
        "insecure-skip-tls-verify": [True, False, None],
        "tls-server-name": ["kubernetes.internal", "other.internal", ""],
        "disable-compression": [True, False],
        "unknown": [{"field": 1}],
    },
    1,
)
USER = _oddly(
    [
        {"token": "secret"},
        {"tokenFile": "token"},
        {"client-certificate": "client.crt", "client-key": "client.key"},
        {"client-certificate": "both.pem", "client-key": "both.pem"},
        {"client-certificate-data": _base64(CERTIFICATE), "client-key-data": _base64(KEY)},
        {"username": "u", "password": "p:w"},
    ],
    {
        "token": ["other", "", None, "two words", " led", "trail ", "tail\n", "line\nbreak", "a\tb", "naïve"],
        "tokenFile": ["token", "missing", "", "empty", "two-lines"],
        "client-certificate": ["client.crt", "missing.crt", "token", ""],
        "client-certificate-data": [_base64(CERTIFICATE), "", None],
        "client-key": ["client.key", "other.key", ""],
        "client-key-data": [_base64(KEY), "", None],
        "username": ["u", ""],
        "password": ["p:w", ""],
        "as": ["jane", "", " padded ", "jürgen"],
        "as-uid": ["7", ""],
        "as-groups": [["dev", "ops"], [], [""], None],
        "as-user-extra": [{"Scope": ["a", "b"]}, {"x/y%": ["1"]}, {"empty": []}, {}, None],
    },
    2,
)
CONTEXT = _oddly(
    [{"cluster": "a", "user": "a"}, {"cluster": "a", "user": "b"}, {"cluster": "b", "user": "a", "namespace": "shop"}],
    {"user": ["", "missing"], "cluster": ["missing", ""], "namespace": ["", "x"]},
    1,
)


def _entries(kind: str, values: st.SearchStrategy[Any], least: int) -> st.SearchStrategy[Any]:
    def named(count: int, given: list[Any]) -> list[dict[str, Any]]:
        return [{"name": name, kind: value} for name, value in zip(NAMES[:count], given, strict=False)]

    return st.builds(named, st.integers(least, 2), st.lists(values, min_size=2, max_size=2))


def _file(least: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "clusters": _entries("cluster", CLUSTER, least),
            "users": _entries("user", USER, least),
            "contexts": _entries("context", CONTEXT, least),
            "current-context": st.sampled_from(["a", "a", "a", "b", "", "missing"]),
        },
        optional={
            "apiVersion": st.just("v1"),
            "kind": st.just("Config"),
            "preferences": st.just({}),
            "extensions": st.just([{"name": "x", "extension": {"any": "thing"}}]),
        },
    )


FILES = st.one_of(_file(2).map(lambda file: [file]), st.tuples(_file(0), _file(1)).map(list))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubeconfigs")
    for part in ("one", "two"):
        (folder / part).mkdir()
        (folder / part / "token").write_text(f"from-file-{part}\n")
        (folder / part / "empty").write_text("")
        (folder / part / "two-lines").write_text("one\ntwo\n")
        (folder / part / "other.key").write_bytes(AUTHORITY.issue("other")[1])
        (folder / part / "client.crt").write_bytes(CERTIFICATE)
        (folder / part / "client.key").write_bytes(KEY)
        (folder / part / "both.pem").write_bytes(b"words before\n" + KEY + CERTIFICATE)
        (folder / part / "authority.pem").write_bytes(AUTHORITY.pem)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RecordingServer]:
    with RecordingServer(folder, AUTHORITY, "127.0.0.1", "kubernetes.internal") as server:
        yield server


def _write(folder: Path, server: RecordingServer, files: list[dict[str, Any]]) -> dict[str, str]:
    """Write the files, and return the environment in which they are found."""
    names = []
    for part, file in zip(("one", "two"), files, strict=False):
        names.append(str(folder / part / "config"))
        Path(names[-1]).write_text(json.dumps(file).replace("URL", server.url))
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": ":".join(names)}


def _kubectl(server: RecordingServer, environment: dict[str, str], options: list[str]) -> tuple[Any, str]:
    """Return what the server has seen of a request of kubectl, and its last words."""
    before = len(server.requests)
    shutil.rmtree(Path(environment["HOME"]) / ".kube", ignore_errors=True)
    command = [tool("kubectl"), "get", "--raw", "/x", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd="/")
    return [(request.path, *request.identity()) for request in server.requests[before:]], done.stderr


async def _ask(environment: dict[str, str], context: str | None) -> str:
    try:
        connection = Connection(find_access(context, None, environment), 5.0, "test")
        try:
            await connection.get("/x")
        finally:
            await connection.close()
    except (InputError, ClusterError) as error:
        return str(error)
    return ""


@pytest.mark.engine
@settings(max_examples=examples(150), phases=(Phase.generate, Phase.shrink))
@given(files=FILES, context=st.sampled_from([None, None, "a", "b"]))
def test_a_random_kubeconfig_means_what_it_means_to_kubectl(
    folder: Path, server: RecordingServer, files: list[dict[str, Any]], context: str | None
) -> None:
    environment = _write(folder, server, files)
    seen, words = _kubectl(server, environment, [f"--context={context}"] if context else [])
    before = len(server.requests)
    problem = asyncio.run(_ask(environment, context))
    ours = [(request.path, *request.identity()) for request in server.requests[before:]]
    event("asked" if seen else f"refused: {words[:60]}")
    if words == "error: EOF\n":
        # It asks on the terminal for a user name if there is no credential. Tierwall asks the server, as nobody.
        assert not any(name == "authorization" for _, said, client, _ in ours for name, _ in said)
        return
    assert ours == seen, f"kubectl: {words}\ntierwall: {problem}"
    if "localhost:8080" not in words:
        assert bool(problem) == bool(words), f"kubectl: {words}\ntierwall: {problem}"
