"""Applying tables: steps equal fresh starts, and failures and kills leave the old or the new table intact."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.labs.nft_kernel import fresh_namespace
from tests.randomness import examples, rounds
from tests.worlds.nft_clusters import admin_policy, clusters, namespace, network_policy, pod
from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.kernel.apply import (
    apply,
    check,
    difference,
    execute,
    list_text,
    read_table,
    remove,
    script_to,
    table_exists,
)
from tierwall.engines.nftables.kernel.enforcer import Enforcer
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.programs import find
from tierwall.engines.nftables.table.compile import CompiledTable, compile_model
from tierwall.engines.nftables.table.pods import FollowedTable, PodChange
from tierwall.engines.nftables.table.table import SetKind, Table, table_script
from tierwall.network.model.model import NetworkModel
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

__all__ = ["fresh_namespace"]

pytestmark = pytest.mark.engine
# Shrinking a failure would take minutes in the kernel, so the case is reported as it was found.
IN_KERNEL: Any = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "phases": [Phase.generate]}
KILLS = rounds(100)


def compiled(objects: list[Any]) -> CompiledTable:
    return compile_model(NetworkModel(Snapshot.of(load_objects(objects))))


def parts(table: Table | None) -> Any:
    """Return the parts of a table that the kernel lists."""
    assert table is not None
    elements = {
        name: dict(part.elements)
        for name, part in table.sets.items()
        if part.kind in (SetKind.ADDRESSES, SetKind.NAMED, SetKind.VERDICTS)
    }
    marks = {name: chain.mark for name, chain in table.chains.items()}
    return table.counters, set(table.sets), elements, marks


def in_order(words: str) -> list[str]:
    """Return a listing in which the order of creation does not matter."""
    return sorted(words.splitlines())


@settings(max_examples=examples(30), **IN_KERNEL)
@given(before=clusters(), after=clusters())
def test_a_step_ends_where_a_fresh_start_does(
    fresh_namespace: NetworkNamespace, before: list[Any], after: list[Any]
) -> None:
    old, new = compiled(before).table, compiled(after).table
    with fresh_namespace.entered():
        remove()
        apply(new)
        fresh = list_text()
        assert parts(read_table()) == parts(new)
        remove()
        apply(old)
        apply(new)
        assert in_order(list_text()) == in_order(fresh)
        assert script_to(new) == ""
        assert difference(new) == ""


def follow(enforcer: Enforcer, change: PodChange) -> bool:
    """Follow a changed pod; whether elements alone were enough."""
    step = enforcer.step([change])
    if step is not None:
        enforcer.take(step)
    return step is not None


@settings(max_examples=examples(40), **IN_KERNEL)
@given(clusters(), st.data())
def test_following_pods_ends_where_compiling_does(
    fresh_namespace: NetworkNamespace, objects: list[Any], data: st.DataObject
) -> None:
    enforcer = Enforcer()
    with fresh_namespace.entered():
        remove()
        put = compiled(objects)
        enforcer.put(put)
        for _ in range(4):
            places = [number for number, resource in enumerate(objects) if resource["kind"] == "Pod"]
            place = data.draw(st.sampled_from(places))
            before, after = objects[place], changed(objects[place], data)
            objects[place : place + 1] = [after] if after else []
            (old,), new = load_objects([before]), load_objects([after] if after else [])
            anew = compiled(objects)
            if not follow(enforcer, PodChange(old, new[0] if new else None)):
                put = anew
                enforcer.put(put)
            in_kernel = parts(read_table())
            want = parts(anew.table)
            # A class whose last pod has gone stays until policies change. So do lines for the last IPv6 address, for
            # example, or for the last pod with several addresses. Everything else is the same.
            for name, elements in want[2].items():
                if name in in_kernel[2]:
                    assert in_kernel[2][name] == elements
            if address_kinds(anew) == address_kinds(put):
                assert set(anew.table.chains) <= set(in_kernel[3])
            if len(places) == 1:
                break


def address_kinds(result: CompiledTable) -> tuple[set[int], bool]:
    """Return the address families in use, and whether any endpoint has several addresses."""
    return result.compiler.sets.families, bool(result.compiler.sets.several)


def changed(resource: Any, data: st.DataObject) -> Any:
    """Return a pod with other labels or another address, or None."""
    kind = data.draw(st.sampled_from(("gone", "labels", "address", "bare")))
    if kind == "gone":
        return None
    new = copy.deepcopy(resource)
    if kind == "labels":
        new["metadata"]["labels"] = data.draw(st.sampled_from(({}, {"app": "x"}, {"app": "y", "tenant": "x"})))
    elif kind == "bare":
        new["status"] = {}
    else:
        new["status"] = {"podIP": data.draw(st.sampled_from(("10.0.7.1", "10.0.7.2", "fd00::7")))}
    return new


def test_a_pod_without_an_address_that_needs_a_class_of_its_own_is_compiled(fresh_namespace: NetworkNamespace) -> None:
    def waiting(app: str) -> Any:
        return pod("shop/b", "10.0.0.2", app=app) | {"status": {}}

    closed = network_policy("shop/closed", podSelector={"matchLabels": {"app": "closed"}})
    objects = [namespace("shop"), pod("shop/a", "10.0.0.1", app="open"), closed]
    enforcer = Enforcer()
    with fresh_namespace.entered():
        enforcer.put(compiled([*objects, waiting("open")]))
        (before,), (after,) = load_objects([waiting("open")]), load_objects([waiting("closed")])
        assert not follow(enforcer, PodChange(before, after))
        enforcer.put(compiled([*objects, waiting("closed")]))
        (addressed,) = load_objects([pod("shop/b", "10.0.0.2", app="closed")])
        assert follow(enforcer, PodChange(after, addressed)), "its class waits for it"


def test_two_pods_that_come_to_share_an_address_are_compiled() -> None:
    objects = [namespace("shop"), pod("shop/a", "10.0.0.1", app="a"), network_policy("shop/closed", podSelector={})]
    table = FollowedTable(compiled(objects))
    first, second, third = load_objects(
        [pod("shop/b", "10.0.0.2", app="a"), pod("shop/c", "10.0.0.2", app="a"), pod("shop/d", "10.0.0.3", app="a")]
    )
    assert table.step([PodChange(None, first), PodChange(None, third)]) is not None
    assert table.step([PodChange(None, first), PodChange(None, second)]) is None


def test_one_more_pod_changes_only_elements(fresh_namespace: NetworkNamespace) -> None:
    policy = network_policy(
        "shop/web", podSelector={"matchLabels": {"app": "web"}}, ingress=[{"from": [{"podSelector": {}}]}]
    )
    objects = [namespace("shop"), pod("shop/web-0", "10.0.0.1", app="web"), policy]
    enforcer = Enforcer()
    with fresh_namespace.entered():
        enforcer.put(compiled(objects))
        before = read_table()
        (second,) = load_objects([pod("shop/web-1", "10.0.0.2", app="web")])
        assert follow(enforcer, PodChange(None, second))
        after = read_table()
        assert before is not None
        assert after is not None
        assert after.chains == before.chains
        assert parts(after) == parts(compiled([*objects, second.value]).table)
        assert follow(enforcer, PodChange(second, None))
        assert parts(read_table()) == parts(before)


def test_a_pod_is_followed_even_if_someone_else_changed_the_table(fresh_namespace: NetworkNamespace) -> None:
    objects = [namespace("shop"), pod("shop/web-0", "10.0.0.1"), network_policy("shop/web", podSelector={})]
    (second,) = load_objects([pod("shop/web-1", "10.0.0.2")])
    want = compiled([*objects, second.value]).table
    spoilt = "delete element inet tierwall pods4 { 10.0.0.1, 10.0.0.2 }"
    with fresh_namespace.entered():
        for spoil in (remove, lambda: execute(spoilt)):
            enforcer = Enforcer()
            enforcer.put(compiled(objects))
            assert follow(enforcer, PodChange(None, second))
            spoil()
            assert follow(enforcer, PodChange(second, None))
            assert follow(enforcer, PodChange(None, second))
            assert parts(read_table()) == parts(want)
            remove()


def test_a_refused_table_leaves_the_last_good_one(fresh_namespace: NetworkNamespace) -> None:
    good = compiled([namespace("shop"), pod("shop/a", "10.0.0.1"), network_policy("shop/p", podSelector={})]).table
    with fresh_namespace.entered():
        apply(good)
        before = list_text()
        chains = {**good.chains, "broken_1": msgspec.structs.replace(good.chains["egress"], rules=("nonsense",))}
        bad = msgspec.structs.replace(good, chains=chains)
        with pytest.raises(InputError) as caught:
            apply(bad)
        assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["TW604"]
        with pytest.raises(InputError):
            check("add rule inet nowhere at all\n")
        assert list_text() == before


def test_removing_leaves_nothing_behind(fresh_namespace: NetworkNamespace) -> None:
    with fresh_namespace.entered():
        apply(compiled([namespace("shop"), pod("shop/a", "10.0.0.1"), network_policy("shop/p", podSelector={})]).table)
        assert table_exists()
        remove()
        assert not table_exists()
        remove()
        nft = subprocess.run([find("nft"), "list", "ruleset"], capture_output=True, text=True, check=True)
        assert nft.stdout == ""


def test_changes_by_others_to_the_table_are_repaired(fresh_namespace: NetworkNamespace) -> None:
    table = compiled([namespace("shop"), pod("shop/a", "10.0.0.1"), network_policy("shop/p", podSelector={})]).table
    with fresh_namespace.entered():
        apply(table)
        before = list_text()
        execute("insert rule inet tierwall forward accept\nadd chain inet tierwall mine\n")
        assert difference(table)
        apply(table)
        assert in_order(list_text()) == in_order(before)
        execute("flush chain inet tierwall forward\nadd set inet tierwall pods9 { type ipv4_addr; }\n")
        apply(table)
        assert in_order(list_text()) == in_order(before)


def two_tables() -> tuple[Table, Table]:
    """Return two tables that are so large that loading takes a while."""
    spaces = [namespace(f"n{number}") for number in range(40)]
    pods = [
        pod(f"n{number % 40}/p{number}", f"10.0.{number >> 8}.{number & 255}", app=f"a{number % 5}")
        for number in range(400)
    ]

    def policies(port: int) -> list[Any]:
        rule = {"from": [{"podSelector": {"matchLabels": {"app": "a1"}}}], "ports": [{"port": port}]}
        return [
            network_policy(f"n{number}/p{port}", podSelector={"matchLabels": {"app": "a0"}}, ingress=[rule] * 3)
            for number in range(40)
        ]

    deny = admin_policy("deny", egress=[{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}])
    return (
        compiled([*spaces, *pods, *policies(80)]).table,
        compiled([*spaces, *pods, *policies(443), deny]).table,
    )


class Moment:
    """The moment to kill: ever closer to the moment at which the new table comes into force, from both sides.

    A kill that came too early makes the next one later, and a kill that came too late makes it earlier, however busy
    the machine is. So telling kills happen by themselves, and a test can demand them.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seconds = 0.001
        self.early = self.late = 0

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one of our own processes, with its whole session, after some time."""
        time.sleep(self._seconds * self._chance.uniform(0.6, 1.4))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def was(self, too_late: bool) -> None:
        """Note whether the new table was already in force."""
        self.late += too_late
        self.early += not too_late
        self._seconds = min(self._seconds / 1.3 if too_late else self._seconds * 1.4, 20)


@pytest.mark.storm
def test_killed_at_any_moment_the_kernel_holds_the_old_table_or_the_new(fresh_namespace: NetworkNamespace) -> None:
    moment = Moment(7)
    tables = two_tables()
    with fresh_namespace.entered():
        listings, scripts = [], []
        for table, other in (tables, tables[::-1]):
            apply(table)
            listings.append(in_order(list_text()))
            scripts.append(script_to(other))
        assert listings[0] != listings[1]
        apply(tables[0])
        now = 0
        for _ in range(KILLS):
            nft = subprocess.Popen([find("nft"), "-f", "-"], stdin=subprocess.PIPE, start_new_session=True)
            assert nft.stdin is not None
            nft.stdin.write(scripts[now].encode())
            nft.stdin.close()
            moment.kill(nft)
            in_kernel = in_order(list_text())
            assert in_kernel in listings
            moment.was(too_late=in_kernel == listings[1 - now])
            now = listings.index(in_kernel)
    assert min(moment.early, moment.late) > KILLS // 10, "nearly every kill came too early or too late to tell anything"


@pytest.mark.storm
def test_killed_as_a_whole_the_command_leaves_the_old_table_or_the_new(
    fresh_namespace: NetworkNamespace, tmp_path: Path
) -> None:
    moment = Moment(11)
    objects = [namespace("shop"), pod("shop/a", "10.0.0.1"), pod("shop/b", "10.0.0.2")]
    tables, files = [], []
    for number in (0, 1):
        policies = [network_policy(f"shop/p{index}{number}", podSelector={}) for index in range(20)]
        tables.append(compiled(objects + policies).table)
        files.append(tmp_path / f"{number}.json")
        files[-1].write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects + policies}))
    command = [str(Path(sys.executable).parent / "tierwall"), "enforce", "nft"]
    with fresh_namespace.entered():
        wanted = [parts(table) for table in tables]
        assert wanted[0] != wanted[1]
        apply(tables[0])
        now = 0
        for _ in range(rounds(60)):
            process = subprocess.Popen(
                [*command, str(files[1 - now])], stderr=subprocess.DEVNULL, start_new_session=True
            )
            moment.kill(process)
            in_kernel = parts(read_table())
            assert in_kernel in wanted
            moment.was(too_late=in_kernel == wanted[1 - now])
            now = wanted.index(in_kernel)
            if min(moment.early, moment.late) >= rounds(4):
                break
    assert min(moment.early, moment.late) >= rounds(4), "nearly every kill came too early or too late to tell anything"


def test_the_kernel_holds_what_the_script_of_a_table_says(fresh_namespace: NetworkNamespace) -> None:
    table, _ = two_tables()
    with fresh_namespace.entered():
        execute(table_script(table))
        assert parts(read_table()) == parts(table)
