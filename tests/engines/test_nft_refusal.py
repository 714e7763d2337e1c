"""Policies that cannot be compiled or that the kernel refuses: only they fail closed, and everybody else is served."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.labs.nft_kernel import fresh_namespace
from tests.worlds.nft_clusters import admin_policy, namespace, network_policy, pod
from tierwall.cli.main import root
from tierwall.engines.nftables.kernel import apply
from tierwall.engines.nftables.kernel.apply import list_text, read_table
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.table import matches, names, refusal, tiers
from tierwall.engines.nftables.table.compile import compile_snapshot
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.network.model import dialects, policies
from tierwall.network.model.model import network_model_with_shadow
from tierwall.network.model.rules import NetworkRule
from tierwall.resources.load import Loader, load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.files import FileSource
from tierwall.serve.follower import Load
from tierwall.serve.kernel_follower import KernelFollower

__all__ = ["fresh_namespace"]

pytestmark = pytest.mark.engine

PODS = [
    namespace("good"),
    namespace("bad"),
    pod("good/a", "10.0.0.1", app="a"),
    pod("bad/b", "10.0.0.2", app="b"),
    pod("bad/c", "10.0.0.3", app="c"),
]
ANYBODY = {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 80}]}


def ingress(name: str, app: str, *rules: Any) -> Any:
    return network_policy(name, podSelector={"matchLabels": {"app": app}}, policyTypes=["Ingress"], ingress=[*rules])


GOOD = ingress("good/web", "a", ANYBODY)
BAD = ingress("bad/web", "b", ANYBODY, {"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]})


def snapshot(*objects: Any) -> Snapshot:
    return Snapshot.of(load_objects(list(objects)))


def chain_of(table: Any, address: int) -> str:
    """Return the ingress rules for an address, with those of the chains they jump to."""
    (verdict,) = (
        part.elements[address]
        for name, part in table.sets.items()
        if name.startswith("ingress4") and address in part.elements
    )
    lines, out = list(table.chains[verdict.chain].rules), []
    while lines:
        line = lines.pop(0)
        out.append(line)
        if jump := re.search(r"(?:jump|goto) (\w+)", line):
            lines = [*table.chains[jump[1]].rules, *lines]
    return "\n".join(out)


A, B, C = (0x0A000001 + number for number in range(3))


def break_compiler(monkeypatch: pytest.MonkeyPatch, is_broken: Callable[[NetworkRule], bool]) -> None:
    """Make the compiler fail for some rules, as a mistake in it would."""
    resolved_peers = matches.resolved_peers

    def failing(rule: NetworkRule, *arguments: Any) -> Any:
        if is_broken(rule):
            raise RecursionError("too deep")
        return resolved_peers(rule, *arguments)

    monkeypatch.setattr(tiers, "resolved_peers", failing)


def test_a_policy_that_cannot_be_compiled_fails_closed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    break_compiler(monkeypatch, lambda rule: rule.policy.namespace == "bad" and bool(rule.peers))
    others = [ingress(f"good/p{number}", "a", ANYBODY) for number in range(20)]
    compiled = compile_snapshot(snapshot(*PODS, GOOD, BAD, *others), TableOptions())
    assert "accept" in chain_of(compiled.table, A)
    assert "accept" not in chain_of(compiled.table, B)
    (said,) = [diagnostic for diagnostic in compiled.diagnostics if diagnostic.code == "TW610"]
    assert said.message.startswith("NetworkPolicy/bad/web fails closed")
    assert re.search(r"RecursionError at \S+: too deep", said.message)
    assert said.severity == "error"


def test_every_policy_that_cannot_be_compiled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {f"p{number}" for number in (0, 7, 8, 21)}
    break_compiler(monkeypatch, lambda rule: rule.policy.name in wrong and bool(rule.peers))
    many = [ingress(f"bad/p{number}", "b", ANYBODY) for number in range(22)]
    compiled = compile_snapshot(snapshot(*PODS, *many), TableOptions())
    assert {reference.name for reference in compiled.refused} == wrong


def test_the_largest_policy_is_at_fault_if_only_all_together_are_too_much() -> None:
    rules = [ingress(f"bad/p{number}", "b", *[ANYBODY] * (1 + number % 5)) for number in range(9)]
    model = network_model_with_shadow(snapshot(*PODS, *rules))
    (culprit,) = refusal.at_fault(model.policies, lambda policies: sum(map(refusal.size, policies)) < 50)
    assert refusal.size(culprit) == max(map(refusal.size, model.policies))


def test_an_admin_policy_that_cannot_be_compiled_denies_its_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    break_compiler(monkeypatch, lambda rule: rule.policy.name == "guard" and bool(rule.peers))
    rules = [
        {"action": "Allow", "from": [{"namespaces": {}}]},
        {"action": "Deny", "from": [{"namespaces": {"matchLabels": {"x": "y"}}}]},
    ]
    subject = {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "bad"}}}
    guard = admin_policy("guard", subject=subject, ingress=rules)
    compiled = compile_snapshot(snapshot(*PODS, guard, GOOD), TableOptions())
    assert "accept" not in chain_of(compiled.table, B)
    assert "accept" in chain_of(compiled.table, A)


def test_a_mistake_that_is_not_about_a_policy_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_self: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("tierwall.engines.nftables.table.compile.TableCompiler._address_sets", failing)
    with pytest.raises(RecursionError):
        compile_snapshot(snapshot(*PODS, GOOD), TableOptions())


def test_a_policy_that_cannot_be_read_closes_its_namespace_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read_peers = dialects.read_network_policy_peers

    def failing(fields: Any, direction: Any) -> Any:
        if fields == BAD["spec"]["ingress"][1]:
            raise RecursionError("too deep")
        return read_peers(fields, direction)

    monkeypatch.setattr(policies, "read_network_policy_peers", failing)
    compiled = compile_snapshot(snapshot(*PODS, GOOD, BAD), TableOptions())
    assert "accept" in chain_of(compiled.table, A)
    for address in (B, C):
        assert "accept" not in chain_of(compiled.table, address)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"ports": [{"port": number + 1}]} for number in range(refusal.MAX_RULES + 1)], "2,001 rules"),
        ([{"ports": [{"port": number + 1} for number in range(refusal.MAX_PARTS + 1)]}], "20,001 peers and ports"),
        (
            [
                {
                    "from": [
                        {
                            "ipBlock": {
                                "cidr": "0.0.0.0/0",
                                "except": [f"10.{n >> 8}.{n & 255}.0/24" for n in range(20_001)],
                            }
                        }
                    ]
                }
            ],
            "20,002 peers and ports",
        ),
    ],
)
def test_a_policy_over_the_limits_fails_closed_alone(rules: list[Any], words: str) -> None:
    compiled = compile_snapshot(snapshot(*PODS, GOOD, ingress("bad/web", "b", *rules)), TableOptions())
    assert "accept" in chain_of(compiled.table, A)
    assert "accept" not in chain_of(compiled.table, B)
    (said,) = [diagnostic for diagnostic in compiled.diagnostics if diagnostic.code == "TW610"]
    assert words in said.message


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler with a mistake: a quote in a rule's name goes into the script, which nft then refuses."""
    monkeypatch.setattr(names, "_HARMFUL", re.compile("[^ -~]"))


def named_admin_policy(name: str, rule: str, namespace_name: str) -> Any:
    subject = {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": namespace_name}}}
    rules = [
        {"name": rule, "action": "Allow", "from": [{"namespaces": {}}]},
        {"action": "Deny", "from": [{"namespaces": {}}]},
    ]
    return admin_policy(name, subject=subject, ingress=rules)


def write(path: Path, objects: list[Any]) -> None:
    path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))


class Following:
    """A follower of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = FileSource(Loader([str(path)]))
        self.keeper = KernelFollower(TableOptions(), True)

    def load(self, *objects: Any) -> Load[Any]:
        write(self._path, list(objects))
        load = self.keeper.next_load(self._source)
        assert load is not None
        self.keeper.accept(load)
        return load


def codes(load: Load[Any]) -> list[str]:
    return [diagnostic.code for diagnostic in load.diagnostics if diagnostic.code in ("TW610", "TW611", "TW604")]


@pytest.mark.usefixtures("spoilt")
def test_what_the_kernel_refuses_is_closed_and_everybody_else_is_in_force(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    following = Following(tmp_path / "m.json")
    wrong = named_admin_policy("wrong", 'a" b', "bad")
    others = [ingress(f"good/p{number}", "a", ANYBODY) for number in range(9)]
    revoked = ingress("good/web", "a")
    with fresh_namespace.entered(), closing(following.keeper):
        following.load(*PODS, GOOD, *others)
        start = time.monotonic()
        load = following.load(*PODS, revoked, wrong, *others)
        seconds = time.monotonic() - start
        assert codes(load) == ["TW611"]
        (said,) = [diagnostic for diagnostic in load.diagnostics if diagnostic.code == "TW611"]
        assert said.message.startswith("AdminNetworkPolicy/wrong fails closed")
        assert "syntax error" in said.message
        assert said.at is not None
        assert said.at.file == str(tmp_path / "m.json")
        table = compile_snapshot(load.snapshot, TableOptions(), {wrong_reference(load): "refused"}).table
        in_kernel = read_table()
        assert in_kernel is not None
        assert set(in_kernel.chains) == set(table.chains)
        assert "accept" not in chain_of(table, B)
        # The next load does not search again, and a change of pods follows the closed table.
        calls: list[int] = []
        patched = pytest.MonkeyPatch()
        patched.setattr("tierwall.serve.kernel_follower.refused_policies", lambda *_: calls.append(1))
        assert codes(following.load(*PODS, revoked, wrong, *others[1:])) == ["TW611"]
        following.load(*PODS, revoked, wrong, *others[1:], pod("bad/d", "10.0.0.4", app="b"))
        patched.undo()
        assert not calls
        # Once it is mended, it is in force.
        load = following.load(*PODS, revoked, named_admin_policy("wrong", "right", "bad"))
        assert codes(load) == []
        assert "AdminNetworkPolicy/wrong ingress[0] (right)" in list_text()
    assert seconds < 60


def wrong_reference(load: Load[Any]) -> Any:
    return next(resource.reference for resource in load.snapshot if resource.name == "wrong")


@pytest.mark.usefixtures("spoilt")
def test_a_start_with_a_policy_that_the_kernel_refuses_serves_the_others(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    third = [namespace("third"), pod("third/d", "10.0.0.4")]
    wrong = [named_admin_policy("wrong", 'a" b', "bad"), named_admin_policy("too", '"', "third")]
    write(path, [*PODS, *third, GOOD, *wrong])
    with fresh_namespace.entered():
        done = tierwall("enforce", "nft", path)
        assert done.exit_code == 0
        assert done.stderr.count("error[TW611]") == 2
        assert "NetworkPolicy/good/web" in list_text()


def test_a_table_that_is_refused_without_any_policy_is_not_the_fault_of_one(
    fresh_namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(tmp_path / "m.json")
    with fresh_namespace.entered(), closing(following.keeper):
        following.load(*PODS, GOOD)
        before = list_text()
        for module in (apply, "tierwall.engines.nftables.kernel.refusal"):
            monkeypatch.setattr(f"{getattr(module, '__name__', module)}.table_script", lambda _: "nonsense")
        monkeypatch.setattr(apply, "transaction", lambda *_: "nonsense")
        load = following.load(*PODS, GOOD, BAD)
        assert load.refusal
        assert codes(load) == ["TW604"]
        assert list_text() == before


def tierwall(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


BAD_OBJECTS: list[Any] = [
    network_policy("bad/selector", podSelector={"matchLabels": {"app": 1}}),
    network_policy(
        "bad/cidr", podSelector={"matchLabels": {"app": "b"}}, ingress=[{"from": [{"ipBlock": {"cidr": "nonsense"}}]}]
    ),
    network_policy("bad/port", podSelector={"matchLabels": {"app": "b"}}, ingress=[{"ports": [{"port": 70000}]}]),
    network_policy("bad/list", podSelector={"matchLabels": {"app": "b"}}, ingress="everything"),
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "bad", "name": "s"},
        "spec": [],
    },
    pod("bad/x", "10.0.0.9", app="b")
    | {"spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 70000}]}]}},
    pod("bad/x", "10.0.0.9", app="b")
    | {"spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": -1}]}]}},
    pod("bad/x", "not an address", app="b"),
    pod("bad/x", "10.0.0.9") | {"metadata": {"namespace": "bad", "name": "x", "labels": {"app": ["b"]}}},
    pod("bad/x", "10.0.0.9") | {"spec": "nothing", "status": [1]},
    namespace("bad") | {"metadata": {"name": "bad", "labels": [1, 2]}},
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": "none"}},
]


@pytest.mark.parametrize("wrong", BAD_OBJECTS, ids=lambda wrong: f"{wrong['kind']}-{BAD_OBJECTS.index(wrong)}")
def test_a_bad_object_of_one_namespace_keeps_nothing_of_the_others_out(
    fresh_namespace: NetworkNamespace, tmp_path: Path, wrong: Any
) -> None:
    following = Following(tmp_path / "m.json")
    web = ingress("good/web", "a", {"ports": [{"port": "web"}]})
    revoked = ingress("good/revoked", "a")
    with fresh_namespace.entered(), closing(following.keeper):
        following.load(*PODS, web)
        load = following.load(*PODS, wrong, web, revoked)
        assert not load.refusal
        assert "NetworkPolicy/good/revoked" in list_text()
        # A fresh start serves the others, too.
        done = tierwall("enforce", "nft", tmp_path / "m.json")
        assert done.exit_code == 0
        assert "NetworkPolicy/good/revoked" in list_text()


def test_an_invalid_policy_closes_what_it_guards_and_nothing_else(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    following = Following(tmp_path / "m.json")
    with fresh_namespace.entered(), closing(following.keeper):
        load = following.load(*PODS, GOOD, BAD_OBJECTS[0])
    table = load.state.table if load.state is not None else None
    assert "accept" in chain_of(table, A)
    for address in (B, C):
        assert "accept" not in chain_of(table, address)
