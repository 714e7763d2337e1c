"""Clear errors for missing rights, programs and kernel features; and the command line around them."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.labs.nft_kernel import fresh_namespace, nft_engine
from tests.worlds.nft_clusters import admin_policy, namespace, network_policy, pod, suite
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.nftables.kernel import apply, programs
from tierwall.engines.nftables.kernel.apply import list_text, table_exists
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.probe import packets
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.policytest.run import ask_engine
from tierwall.resources.load import Loader
from tierwall.serve.files import FileSource
from tierwall.serve.kernel_follower import KernelFollower
from tierwall.serve.nftables import Nftables

__all__ = ["fresh_namespace", "nft_engine"]

pytestmark = pytest.mark.engine

OBJECTS = [
    namespace("shop"),
    pod("shop/web-0", "10.0.0.1", app="web"),
    pod("shop/db-0", "10.0.0.2", app="db"),
    network_policy("shop/closed", podSelector={"matchLabels": {"app": "db"}}),
]


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "manifests.json"
    write(path, OBJECTS)
    return path


def write(path: Path, objects: list[Any]) -> None:
    path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))


def tierwall(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


# Drops every capability from the bounding set (PR_CAPBSET_DROP), then becomes the command.
_DROP = """
import ctypes, os, sys
prctl = ctypes.CDLL(None).prctl
for capability in range(64):
    prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def without_capabilities(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a process without capabilities, whoever its user is.

    The process drops its rights itself: a `preexec_fn` would run in a fork of this process, which gRPC's threads abort.
    """
    command = [sys.executable, "-c", _DROP, str(Path(sys.executable).parent / "tierwall"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_without_rights_every_command_says_so(nft_engine: Nftables, manifests: Path, tmp_path: Path) -> None:
    test = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "PolicyTest",
        "metadata": {"name": "t"},
        "spec": {
            "objects": OBJECTS,
            "cases": [
                {"name": "c", "network": {"from": "shop/web-0", "to": "shop/db-0", "port": 80}, "expect": {}},
            ],
        },
    }
    path = tmp_path / "test.json"
    path.write_bytes(msgspec.json.encode(test))
    for arguments in (
        ("enforce", "nft", manifests),
        ("enforce", "nft", "--remove"),
        ("enforce", "nft", manifests, "--diff"),
        ("audit", "--seconds", "0"),
        ("audit", "--hits"),
        ("test", "--engine", "nft", path),
    ):
        done = without_capabilities(*arguments)
        assert done.returncode == 1, arguments
        assert done.stderr.splitlines()[-1].startswith("error[TW601]: "), (arguments, done.stderr)
        assert "CAP_NET_ADMIN" in done.stderr
    assert without_capabilities("compile", "nft", "-f", manifests).returncode == 0


def test_without_the_program_its_package_is_named(monkeypatch: pytest.MonkeyPatch, manifests: Path) -> None:
    monkeypatch.setattr(programs, "_PATH", "/nowhere")
    done = tierwall("enforce", "nft", manifests)
    assert done.exit_code == 1
    assert done.stderr.startswith("error[TW602]: the program `nft` is not installed")
    assert "package nftables" in done.stderr
    with pytest.raises(InputError) as caught:
        list(ask_engine(suite(OBJECTS, [{"from": "shop/web-0", "to": "shop/db-0", "port": 80}]), Nftables()))
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["TW602"]


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (
            "/dev/stdin:4:2-9: Error: Could not process rule: No such file or directory\n"
            "\tlimit rate 10/second log prefix x\n"
            "\t                     ^^^^^^^^^^^^\n",
            "TW603",
            "the kernel has no logging to NFLOG",
        ),
        (
            "/dev/stdin:4:2-9: Error: Could not process rule: Protocol error\n\t\tct state new accept\n\t\t^^^^^^^^\n",
            "TW603",
            "the kernel has no connection tracking",
        ),
        (
            "/dev/stdin:1:1-2: Error: Could not process rule: Operation not supported\n"
            "elements = { * : return }\n"
            "             ^\n",
            "TW603",
            "the kernel has no catch-all elements of maps (Linux 5.13)",
        ),
        (
            "netlink: Error: cache initialization failed: Protocol not supported\n",
            "TW603",
            "the kernel has no nf_tables",
        ),
        ("/dev/stdin:1:1-2: Error: syntax error, unexpected string\nnonsense\n^^^^^^^^\n", "TW604", "refused"),
        ("", "TW604", "no reason was given"),
    ],
)
def test_a_missing_kernel_feature_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, code: str, words: str
) -> None:
    nft = tmp_path / "nft"
    nft.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf '%s' '{said}' >&2\nexit 1\n")
    nft.chmod(0o755)
    monkeypatch.setattr(programs, "_PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        programs.run("nft", "-f", "-", stdin="table")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert words in diagnostic.message


def test_sctp_that_cannot_be_sent_is_not_testable_here(nft_engine: Nftables, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> socket.socket:
        raise OSError(93, "Protocol not supported")

    question = {"from": "shop/web-0", "to": "shop/db-0", "port": 80}
    asked = suite(OBJECTS, [{**question, "protocol": protocol} for protocol in ("SCTP", "TCP")])
    assert [bool(reply.skipped) for reply in ask_engine(asked, nft_engine)] == [False, False]
    monkeypatch.setattr(socket, "socket", refuse)
    assert "protocol not supported" in packets.sctp_problem()
    monkeypatch.undo()
    monkeypatch.setattr("tierwall.engines.nftables.probe.asking.sctp_problem", lambda: "SCTP needs raw sockets")
    first, second = ask_engine(asked, nft_engine)
    assert first.skipped == "not testable here: SCTP needs raw sockets"
    assert second.answer is not None


def test_questions_of_other_planes_are_left_out(nft_engine: Nftables) -> None:
    asked = suite(OBJECTS, [{}])
    other = msgspec.structs.replace(asked, cases=(msgspec.structs.replace(asked.cases[0], plane="tool"),))
    (answer,) = ask_engine(other, nft_engine)
    assert answer.skipped == "this engine answers network questions, not `tool`"


def test_the_engine_leaves_nothing_on_the_machine(nft_engine: Nftables) -> None:
    before = devices(), table_exists()
    list(ask_engine(suite(OBJECTS, [{"from": "shop/web-0", "to": "shop/db-0", "port": 80}]), nft_engine))
    assert (devices(), table_exists()) == before


def devices() -> list[str]:
    """Return the network devices of the machine itself."""
    return [name for _, name in socket.if_nameindex()]


def test_enforcing_by_the_command_line(fresh_namespace: NetworkNamespace, manifests: Path) -> None:
    with fresh_namespace.entered():
        done = tierwall("enforce", "nft", manifests, "--diff")
        assert done.exit_code == 4
        assert "+\tchain forward {" in done.stdout
        assert not table_exists()
        script = tierwall("enforce", "nft", manifests, "--dry-run")
        assert (script.exit_code, table_exists()) == (0, False)
        assert script.stdout == tierwall("compile", "nft", "-f", manifests).stdout
        assert tierwall("enforce", "nft", manifests).stderr.endswith(" applied\n")
        assert tierwall("enforce", "nft", manifests).stderr.endswith(" in force already\n")
        assert tierwall("enforce", "nft", manifests, "--diff").exit_code == 0
        assert tierwall("enforce", "nft", manifests, "--dry-run").stdout == ""
        document = msgspec.json.decode(tierwall("audit", "--hits", "-o", "json").stdout)
        assert [hit["policies"] for hit in document["hits"]] == [["NetworkPolicy/shop/closed"]]
        assert tierwall("enforce", "nft", "--remove").exit_code == 0
        assert not table_exists()
    assert tierwall("enforce", "nft").exit_code == 2
    assert tierwall("enforce", "nft", manifests, "--remove").exit_code == 2
    assert tierwall("enforce", "nft", manifests, "--watch", "--diff").exit_code == 2
    for arguments in (("compile", "nft", "-f", manifests), ("enforce", "nft", manifests)):
        done = tierwall(*arguments, "--node", "nowhere")
        assert done.exit_code == 1
        assert "there is no node `nowhere`" in done.stderr


class Edited(FileSource):
    """Files that are edited before every look except the first."""

    def __init__(self, path: Path, edits: list[Callable[[], object]]) -> None:
        super().__init__(Loader([str(path)]))
        self._edits = edits

    async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        yield
        for edit in self._edits:
            edit()
            yield


def followed(path: Path, edits: list[Callable[[], object]]) -> list[tuple[str, str]]:
    """Follow files; return the report on each load and the table in the kernel after it."""

    async def main() -> list[tuple[str, str]]:
        keeper = KernelFollower(TableOptions(), True)
        loads = keeper.follow(Edited(path, edits), asyncio.Event())
        return [(keeper.report(load).summary, list_text()) async for load in loads]

    return asyncio.run(main())


def test_watching_follows_files_and_keeps_the_last_good_table(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    deny = admin_policy("deny", egress=[{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}])
    refused = admin_policy("refused", egress=[{"action": "Refuse", "to": [{"networks": ["192.0.2.0/24"]}]}])
    edits: list[Callable[[], object]] = [
        lambda: write(path, [*OBJECTS, pod("shop/web-1", "10.0.0.3", app="web")]),
        lambda: path.write_text("{"),
        lambda: write(path, [*OBJECTS, refused]),
        lambda: write(path, [*OBJECTS, deny]),
        lambda: path.write_text(path.read_text() + "\n"),
        lambda: os.utime(path, ns=(1, 1)),
    ]
    write(path, OBJECTS)
    with fresh_namespace.entered():
        words, listings = zip(*followed(path, edits), strict=True)
    assert words[1:] == ("1 pod followed", "unchanged", words[3], words[4], "unchanged")
    assert words[4].endswith(" applied")
    assert "10.0.0.3" in listings[1]
    assert listings[2] == listings[1], "a broken file keeps what it had"
    assert "AdminNetworkPolicy/refused" in listings[3], "an object that an API server would refuse fails closed"
    assert "AdminNetworkPolicy/deny" in listings[4]
    assert "10.0.0.3" not in listings[4]


def test_a_load_is_refused_if_the_kernel_refuses_its_table(
    fresh_namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.json"
    more = network_policy("shop/more", podSelector={"matchLabels": {"app": "web"}})

    def spoil() -> None:
        monkeypatch.setattr(apply, "transaction", lambda old, new: "add rule inet nowhere at all\n")
        monkeypatch.setattr(apply, "table_script", lambda table: "nonsense")
        write(path, [*OBJECTS, more])

    def mend() -> None:
        monkeypatch.undo()
        write(path, [*OBJECTS, more, pod("shop/web-2", "10.0.0.4", app="web")])

    write(path, OBJECTS)
    with fresh_namespace.entered():
        (_, first), (words, second), (applied, third) = followed(path, [spoil, mend])
    assert (words, second) == ("the last good table stays in force", first)
    assert applied.endswith(" applied")
    assert "NetworkPolicy/shop/more" in third


def test_objects_that_an_api_server_refuses_fail_closed_and_are_reported(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    refused = tmp_path / "refused.json"
    write(refused, [*OBJECTS, admin_policy("refused", egress=[{"action": "Refuse", "to": [{"nodes": {}}]}])])
    assert tierwall("check", refused).exit_code == 4
    with fresh_namespace.entered():
        for mode, code in ((("--dry-run",), 0), (("--diff",), 4), ((), 0)):
            done = tierwall("enforce", "nft", refused, *mode)
            assert done.exit_code == code, mode
            assert "error[TW104]" in done.stderr, mode
        assert "AdminNetworkPolicy/refused" in list_text()


@pytest.mark.parametrize(("options", "seconds"), [((), None), (("--interval", "3"), 3.0)])
def test_files_are_looked_at_as_often_as_by_other_commands_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, manifests: Path, options: tuple[str, ...], seconds: float | None
) -> None:
    asked: list[float | None] = []

    def made(loader: Loader, poll_seconds: float | None, state: object) -> FileSource:
        asked.append(poll_seconds)
        raise InputError([Diagnostic("TW001", "this is enough")])

    monkeypatch.setattr("tierwall.serve.files.FileSource", made)
    assert tierwall("enforce", "nft", manifests, "--watch", *options).exit_code == 1
    assert asked == [seconds]


def test_the_command_follows_files_and_leaves_the_table_when_told_to_stop(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    write(path, OBJECTS)
    program = str(Path(sys.executable).parent / "tierwall")
    with fresh_namespace.entered():
        process = subprocess.Popen([program, "enforce", "nft", path, "--watch"], stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            assert process.stderr.readline().endswith(" applied\n")
            write(path, [*OBJECTS, pod("shop/web-1", "10.0.0.3", app="web")])
            assert process.stderr.readline() == "1 pod followed\n"
            path.write_text("{")
            assert "error[TW010]" in process.stderr.readline()
            assert process.stderr.readline() == "unchanged\n"
            write(path, [*OBJECTS, pod("shop/web-1", "10.0.0.4", app="web")])
            assert process.stderr.readline() == "1 pod followed\n"
            process.terminate()
            assert process.wait(30) == 0
            assert process.stderr.read().startswith("stopped; the kernel keeps the table that it has")
        finally:
            process.kill()
            process.communicate()
        assert "10.0.0.4" in list_text()


def test_an_edit_within_a_clock_tick_is_followed_even_if_time_and_size_stay(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"

    def save(address: str) -> None:
        write(path, [*OBJECTS, pod("shop/web-1", address, app="web")])

    def edit(address: str) -> None:
        before = path.stat()
        save(address)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)

    save("10.0.0.3")
    with fresh_namespace.entered():
        reports = followed(path, [partial(edit, "10.0.0.4"), partial(edit, "10.0.0.5")])
    assert [re.findall(r"10\.0\.0\.[345]", table)[:1] for _, table in reports] == [
        ["10.0.0.3"],
        ["10.0.0.4"],
        ["10.0.0.5"],
    ]


def test_a_value_that_only_compares_equal_is_a_change(fresh_namespace: NetworkNamespace, tmp_path: Path) -> None:
    path = tmp_path / "m.json"

    def save(value: object) -> None:
        thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"value": value}}
        write(path, [*OBJECTS, thing])

    save(1)
    with fresh_namespace.entered():
        words = [words for words, _ in followed(path, [partial(save, 1), partial(save, True)])]
    assert len(words) == 2, "the same content again gives no load"
    assert words[1].endswith(" in force already"), words
