"""Changes of the table by others are noticed and undone, and those of Tierwall itself are told from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.test_nft_apply import compiled, follow, in_order
from tests.engines.test_nft_cluster import Enforced, enforced
from tests.labs.nft_kernel import fresh_namespace
from tests.labs.waiting import eventually
from tests.randomness import examples
from tests.worlds.nft_clusters import namespace, network_policy, pod
from tierwall.engines.nftables.kernel.apply import apply, execute, list_text, remove, replace
from tierwall.engines.nftables.kernel.elements import add_flows
from tierwall.engines.nftables.kernel.enforcer import Enforcer
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.nflog import PacketFlow
from tierwall.engines.nftables.kernel.table_watch import TableChanges, TableWatch
from tierwall.engines.nftables.table.pods import PodChange
from tierwall.resources.load import load_objects

__all__ = ["enforced", "fresh_namespace"]

pytestmark = pytest.mark.engine

OTHERS = "table inet others { chain every { type filter hook forward priority 10; counter accept; }; }"
# Scripts that change the table, each of another kind.
SPOILING = (
    "flush ruleset",
    "delete table inet tierwall",
    "flush table inet tierwall",
    "insert rule inet tierwall forward accept",
    "flush chain inet tierwall egress",
    "add chain inet tierwall mine",
    "add element inet tierwall pods4 { 10.9.9.9 }",
    "delete element inet tierwall pods4 { 10.0.0.1 }",
)
HARMLESS = (OTHERS, "list ruleset", "add table ip tierwall", "add table inet tierwall")


def objects(*apps: str) -> list[Any]:
    """A namespace with a pod and a policy for each of these apps."""
    pods = [pod(f"shop/{app}-{number}", f"10.0.0.{number}", app=app) for number, app in enumerate(apps, 1)]
    policies = [network_policy(f"shop/{app}", podSelector={"matchLabels": {"app": app}}) for app in set(apps)]
    return [namespace("shop"), *pods, *policies]


@pytest.fixture
def watching(fresh_namespace: NetworkNamespace) -> Iterator[Enforcer]:
    """An enforcer that watches, in its network namespace."""
    with fresh_namespace.entered(), closing(Enforcer()) as enforcer:
        assert enforcer.watch() >= 0
        yield enforcer


def is_as_applied(enforcer: Enforcer) -> bool:
    """Whether the kernel holds what was applied, as far as it has told."""
    enforcer.hear()
    return enforcer.is_as_applied


@pytest.mark.parametrize("script", SPOILING)
def test_a_change_by_others_is_noticed_and_undone(watching: Enforcer, script: str) -> None:
    watching.put(compiled(objects("web", "db")))
    before = list_text()
    assert is_as_applied(watching)
    execute(script)
    assert not is_as_applied(watching)
    assert watching.restore()
    assert is_as_applied(watching)
    assert in_order(list_text()) == in_order(before)


def spoil_every(word: str, listed: str, part: str = "") -> str:
    """Return a script that does the same to every chain or set that is named by its content."""
    names = [line.split()[1] for line in list_text().splitlines() if line.split()[:1] == [listed]]
    return "".join(f"{word} inet tierwall {name} {part}\n" for name in names if "_" in name)


# What may have happened while no agent was there, each of another kind.
BEFORE_A_START = (
    *((lambda script=script: script) for script in SPOILING),
    lambda: "add table inet tierwall { flags dormant; }",
    lambda: "flush chain inet tierwall forward; delete chain inet tierwall forward; add chain inet tierwall forward",
    lambda: spoil_every("flush chain", "chain"),
    lambda: spoil_every("insert rule", "chain", "accept"),
    lambda: spoil_every("flush set", "set"),
    lambda: spoil_every("flush map", "map"),
)


@pytest.mark.parametrize("script", BEFORE_A_START)
def test_what_others_did_before_a_start_is_undone(fresh_namespace: NetworkNamespace, script: Callable[[], str]) -> None:
    """Parts are named by their content, and others can change what is in them."""
    ports = [{"port": 80, "endPort": 90, "protocol": "TCP"}]
    peers = [{"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.3.0/24"]}}]
    ruled = network_policy(
        "shop/ruled", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": peers, "ports": ports}]
    )
    table = compiled([*objects("web", "db"), ruled])
    with fresh_namespace.entered():
        remove()
        Enforcer().put(table)
        before = list_text()
        assert not Enforcer().put(table), "nothing has happened"
        execute(script())
        assert in_order(list_text()) != in_order(before)
        assert Enforcer().put(table)
        assert in_order(list_text()) == in_order(before)


@pytest.mark.parametrize("script", HARMLESS)
def test_tables_of_others_are_their_own_affair(watching: Enforcer, script: str) -> None:
    watching.put(compiled(objects("web")))
    execute(script)
    assert is_as_applied(watching)


def test_what_is_held_is_not_read_again(watching: Enforcer) -> None:
    """A following load reads the table only if somebody else may have changed it."""
    watching.put(compiled(objects("web")))
    with mock.patch("tierwall.engines.nftables.kernel.apply.read_table", side_effect=AssertionError):
        assert watching.put(compiled(objects("web", "db")))
        assert not watching.put(compiled(objects("web", "db")))
        (third,) = load_objects([pod("shop/db-3", "10.0.0.3", app="db")])
        assert follow(watching, PodChange(None, third))
        assert watching.put(compiled(objects("web", "db", "web")))
        # Cutting a flow does not count: the table stays as it is.
        add_flows([PacketFlow("TCP", 1, 2, 3, 4)], 60)
        assert is_as_applied(watching)
    assert "10.0.0.3" in list_text()


def test_a_change_between_the_look_and_the_write_is_noticed(watching: Enforcer) -> None:
    """Two transactions where one was expected: one of them was somebody else's."""
    watching.put(compiled(objects("web")))
    wanted = compiled(objects("web", "db"))

    def too_late(*arguments: Any) -> bool:
        execute("insert rule inet tierwall forward accept")
        return apply(*arguments)

    with mock.patch("tierwall.engines.nftables.kernel.enforcer.apply", too_late):
        watching.put(wanted)
    assert not is_as_applied(watching)
    watching.restore()
    assert is_as_applied(watching)
    before = list_text()
    replace(wanted.table)
    assert in_order(list_text()) == in_order(before)


def test_lost_messages_make_the_table_be_read_and_nothing_else(watching: Enforcer) -> None:
    real = TableWatch.changes

    def lost(watch: TableWatch) -> TableChanges:
        real(watch)
        return TableChanges(0, is_uncertain=True)

    watching.put(compiled(objects("web")))
    for happens in (watching.hear, lambda: watching.put(compiled(objects("web", "db")))):
        with mock.patch.object(TableWatch, "changes", lost):
            happens()
        assert not is_as_applied(watching)
        assert not watching.restore()
        assert is_as_applied(watching)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.sampled_from(("web", "db", "cache")), max_size=4).map(tuple),
            st.sampled_from((*SPOILING, *HARMLESS)),
            st.just("restore"),
        ),
        max_size=8,
    )
)
def test_whatever_happens_the_kernel_ends_with_the_table(
    fresh_namespace: NetworkNamespace, steps: list[tuple[str, ...] | str]
) -> None:
    with fresh_namespace.entered(), closing(Enforcer()) as enforcer:
        execute("flush ruleset")
        enforcer.watch()
        wanted = compiled(objects())
        enforcer.put(wanted)
        for step in steps:
            if isinstance(step, tuple):
                wanted = compiled(objects(*step))
                enforcer.put(wanted)
            elif step == "restore":
                if not is_as_applied(enforcer):
                    enforcer.restore()
            else:
                try:
                    execute(step)
                except Exception:
                    # It spoils what an earlier step has removed.
                    continue
        if not is_as_applied(enforcer):
            enforcer.restore()
        after = list_text()
        remove()
        replace(wanted.table)
        assert in_order(after) == in_order(list_text())


def test_a_flushed_ruleset_comes_back_at_once_and_somebody_who_goes_on_waits(enforced: Enforced) -> None:
    with enforced.running("--http", "127.0.0.1:0") as said:
        eventually(lambda: enforced.closed == {"10.0.0.2"}, said.read_text)
        eventually(lambda: "applied" in said.read_text(), said.read_text)
        whole = in_order(enforced.table)
        with enforced.network.entered():
            execute("flush ruleset")
        eventually(lambda: in_order(enforced.table) == whole, said.read_text)
        eventually(lambda: "brought back" in said.read_text(), said.read_text)
        assert "warning[TW612]: the table in the kernel was changed by somebody else" in said.read_text()
        with enforced.network.entered():
            execute("delete table inet tierwall")
        eventually(lambda: "and is brought back in 1 s" in said.read_text(), said.read_text)
        assert "the table is not in force" in said.read_text()
        eventually(lambda: in_order(enforced.table) == whole, said.read_text)
        # What changes meanwhile does not wait.
        with enforced.network.entered():
            execute("delete table inet tierwall")
        enforced.put_policy("web")
        eventually(lambda: enforced.closed == {"10.0.0.1"}, said.read_text)
