"""The options that name a cluster to read (docs/reference/sources.md), the same on every command that reads objects."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from tierwall.cli.command import Params, flag, option

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess
    from tierwall.cluster.cluster import Cluster
    from tierwall.resources.snapshot import Snapshot

PLANES = ("network", "tool", "gateway", "api")


class ClusterParams(Params):
    """The options that name a cluster."""

    cluster: bool = flag("Read the cluster of the kubeconfig's current context. Files lie over it.", last=True)
    context: str | None = option(
        last=True, metavar="NAME", help="Read the cluster of this context of the kubeconfig. Files lie over it."
    )
    kubeconfig: str | None = option(
        last=True, metavar="FILE", help="Read this kubeconfig.", show_default="KUBECONFIG, then ~/.kube/config"
    )
    cluster_as: str | None = option(last=True, metavar="USER", help="Read the cluster as this user.")
    cluster_as_group: tuple[str, ...] = option(
        last=True, multiple=True, metavar="GROUP", help="Read the cluster as a member of this group. Repeatable."
    )
    request_timeout: str = option(
        last=True, default="10s", metavar="DURATION", help="The limit of one request to the cluster; 0 lifts it."
    )

    # The planes that the command asks about: only the kinds that they need are read.
    asks: ClassVar[tuple[str, ...]] = PLANES

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes that this call asks about."""
        return self.asks

    @cached_property
    def cluster_to_read(self) -> Cluster | None:
        """The cluster that the options name; None if only files are read."""
        if not self.cluster and self.context is None:
            return None
        from tierwall.cluster.cluster import Cluster

        return Cluster(
            self.context, self.kubeconfig, self.cluster_as, self.cluster_as_group, _seconds(self.request_timeout)
        )

    @cached_property
    def cluster_access(self) -> ClusterAccess | None:
        """The way to the cluster; None if only files are read."""
        return self.cluster_to_read.access() if self.cluster_to_read is not None else None

    @cached_property
    def cluster_snapshot(self) -> Snapshot | None:
        """The objects of the cluster, read once; None if only files are read."""
        if self.cluster_to_read is None:
            return None
        from tierwall.cli.collector import collector_off
        from tierwall.cluster.load import load_cluster

        with collector_off():
            return load_cluster(self.cluster_to_read, self.asked_planes, self.cluster_access)


def _seconds(text: str) -> float | None:
    return float(text.removesuffix("s")) or None
