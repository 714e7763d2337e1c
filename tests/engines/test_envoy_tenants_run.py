"""`tierwall run` beside every mistake at once: the good tenant is served from the start, and its revocations count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.labs.agents_run import Agents
from tests.labs.envoy_lab import Caller
from tests.labs.waiting import eventually, unused_port
from tests.worlds.hostile_tenants import WORLDS
from tests.worlds.tenants import GOOD_PORT, HOSTILE, HOSTILE_PORT, Object

pytestmark = pytest.mark.engine


def moved(objects: list[Object], number: int, ports: dict[int, int]) -> list[Object]:
    """Return the objects in a namespace of their own, with other ports."""

    def move(value: object) -> object:
        if isinstance(value, dict):
            return {key: move(item) for key, item in value.items()}
        if isinstance(value, list):
            return [move(item) for item in value]
        if type(value) is int:
            return ports.get(value, value)
        return f"{HOSTILE}{number}" if value == HOSTILE else value

    return [out for out in map(move, objects) if isinstance(out, dict)]


def test_every_mistake_at_once_stops_no_revocation(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    ports = {HOSTILE_PORT: unused_port(), GOOD_PORT: agents.port}
    for number, world in enumerate(WORLDS.values()):
        documents = [json.dumps(each, ensure_ascii=False) for each in moved(world.objects, number, ports)]
        (agents.manifests / f"hostile-{number}.yaml").write_text("\n---\n".join(documents))
    path = agents.manifests / "orders.yaml"
    good = path.read_text()
    with agents.running("--address=127.0.0.1") as running:
        caller = Caller(agents.context("shopper"), agents.port)
        before = caller.call("find_order")
        assert not before.startswith("denied")
        path.write_text(good.replace("params: [find_order, place_order]", "params: [place_order]"))
        denied = "denied by XAccessPolicy/shop/orders-team"
        eventually(lambda: caller.call("find_order") == denied, lambda: running.said[-2000:])
        assert running.get("/readyz").status_code == 200
        path.write_text(good)
        eventually(lambda: caller.call("find_order") == before, "the permission")
        caller.close()
