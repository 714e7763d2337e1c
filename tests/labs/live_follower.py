"""A follower of a live cluster in tests: it applies what is reported, as an engine does, and can be compared."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.following import FollowedCluster
from tierwall.cluster.reading import read_cluster
from tierwall.cluster.reflector import Timing
from tierwall.cluster.shapes import ApiObject, MetadataObject, PodObject

WANTED: dict[tuple[str, str], type[Any]] = {
    ("", "Pod"): PodObject,
    ("", "Namespace"): MetadataObject,
    ("", "Service"): ApiObject,
    ("networking.k8s.io", "NetworkPolicy"): ApiObject,
    ("policy.networking.k8s.io", "AdminNetworkPolicy"): ApiObject,
    ("tierwall.io", "AuthorizationPolicy"): ApiObject,
}
HASTE = Timing(
    watch=(1, 2),
    grace=0.5,
    bookmark=1.5,
    opening=1,
    initial=3,
    first_wait=0.01,
    longest_wait=0.2,
    patience=0.3,
    outage=5,
    relist=(20, 40),
    discovery=1,
)


class LiveFollower:
    """Follows the cluster that can be reached in a way."""

    def __init__(self, access: ClusterAccess, timeout: float = 1.0) -> None:
        self.state: dict[Any, Any] = {}
        self.news = threading.Event()
        self.followed = FollowedCluster(access, WANTED, timeout, self.news.set, HASTE)

    def __enter__(self) -> LiveFollower:
        self.followed.start()
        assert self.followed.is_complete(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.followed.close()

    def values(self, namespace: str) -> dict[Any, Any]:
        """Return the objects of a namespace as they are followed."""
        for identity, resource in self.followed.take().objects.items():
            if resource is None:
                # It may have come and gone since the last look.
                self.state.pop(identity, None)
            else:
                self.state[identity] = resource.value
        return _in(self.state, namespace)


def _in(values: dict[Any, Any], namespace: str) -> dict[Any, Any]:
    return {
        identity: value
        for identity, value in values.items()
        if identity[2].startswith(namespace) or identity[3].startswith(namespace)
    }


def true_state(access: ClusterAccess, namespace: str) -> dict[Any, Any]:
    """Return the objects of a namespace as one list has them."""

    async def read() -> dict[Any, Any]:
        connection = Connection(access, 30.0, "test")
        try:
            result = await read_cluster(connection, WANTED)
            assert result.unlisted == ()
            values = {resource.identity: resource.value for resource in result.resources}
            for value in values.values():
                # Followed objects do not keep it.
                value["metadata"].pop("resourceVersion", None)
            return values
        finally:
            await connection.close()

    return _in(asyncio.run(read()), namespace)


def follows(follower: LiveFollower, truth: ClusterAccess, namespace: str) -> None:
    """Wait until what is followed is what the cluster has."""
    expected = true_state(truth, namespace)
    # On a machine with much else to do, the short times of `HASTE` pass again and again before the server has answered.
    eventually(
        lambda: follower.values(namespace) == expected,
        lambda: _difference(follower.values(namespace), expected),
        seconds=3 * PATIENCE_S,
    )
    assert true_state(truth, namespace) == expected, "nobody has changed anything meanwhile"


def _difference(state: dict[Any, Any], expected: dict[Any, Any]) -> str:
    different = [key for key in state.keys() | expected.keys() if state.get(key) != expected.get(key)]
    return "\n".join(f"{key}: followed {state.get(key)}, expected {expected.get(key)}" for key in different)
