"""The statuses that a controller would write that starts now, compared with those that a cluster has.

`python -m tests.labs.fresh_statuses KUBECONFIG` prints the objects whose status differs, where agents and Envoys hold
everything.
"""

from __future__ import annotations

import asyncio
import sys

from tests.labs.waiting import PATIENCE_S
from tierwall.cluster.access import ClusterAccess, find_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.reading import read_cluster
from tierwall.cluster.shapes import DataObject
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import DesiredStatus, Programmed, WantedCondition, WantedRef
from tierwall.serve.controller.fleet_state import ProgrammedReason, ProgrammedState
from tierwall.serve.controller.gateway_api_version import GatewayApiReader, GatewayApiVersion
from tierwall.serve.controller.gateway_statuses import GatewayStatusPlanner
from tierwall.serve.controller.infrastructure import service_addresses
from tierwall.serve.controller.kinds import controller_kinds
from tierwall.serve.controller.policy_statuses import StatusPlanner
from tierwall.serve.controller.status_document import status_with

PROGRAMMED = ProgrammedState(ProgrammedReason.PROGRAMMED)
_NAMED = {("", "Secret"): DataObject, ("", "ConfigMap"): DataObject}


def read_objects(access: ClusterAccess) -> tuple[Snapshot, GatewayApiVersion | None]:
    """Return all objects that a controller follows, and the release of the Gateway API."""

    async def read() -> tuple[Snapshot, GatewayApiVersion | None]:
        connection = Connection(access, PATIENCE_S)
        try:
            objects = (await read_cluster(connection, controller_kinds() | _NAMED)).resources
            return Snapshot.of(objects), await GatewayApiReader(connection).current(0.0)
        finally:
            await connection.close()

    return asyncio.run(read())


def differing_policies(
    access: ClusterAccess, least: int, programmed: Programmed = lambda policy, ref: None
) -> list[str]:
    """Return the policies that do not have the status that a fresh start computes; there are at least so many."""
    snapshot, _ = read_objects(access)
    planned = StatusPlanner().plan(snapshot, snapshot, programmed)
    assert len(planned.statuses) >= least
    return _differing(snapshot, list(planned.statuses.values()))


def _differing(snapshot: Snapshot, statuses: list[DesiredStatus]) -> list[str]:
    differing = []
    for desired in statuses:
        resource = snapshot.get(*desired.identity)
        assert resource is not None
        status = resource.value.get("status", {})
        if status_with(status, desired, "") != status:
            differing.append(f"{resource.reference}: {status}, expected {desired}")
    return differing


def _held(policy: Resource, ref: WantedRef | None) -> WantedCondition:
    engine = "node" if ref is None else "Envoy"
    return WantedCondition("Programmed", "True", "Programmed", f"Every {engine} holds this policy")


def main(kubeconfig: str) -> None:
    """Print what differs."""
    snapshot, release = read_objects(find_access(None, kubeconfig, {}))
    planned = StatusPlanner().plan(snapshot, snapshot, _held)
    gateways = GatewayStatusPlanner().plan(
        snapshot,
        snapshot,
        lambda _: PROGRAMMED,
        lambda gateway: service_addresses(snapshot, gateway),
        planned.affected,
        release=release,
    )
    print("\n".join(_differing(snapshot, [*planned.statuses.values(), *gateways.values()])))


if __name__ == "__main__":
    main(sys.argv[1])
