"""A cluster to read, as a Python program or the options of a command name it (docs/clusters.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess


class Cluster(Struct, frozen=True):
    """A context of a kubeconfig, or the current one, and whom to read it as. Nothing happens until it is read.

    `timeout` is in seconds, for one request; None or 0 lifts the limit.
    """

    context: str | None = None
    kubeconfig: str | None = None
    user: str | None = None
    groups: Sequence[str] = ()
    timeout: float | None = 10.0

    def access(self) -> ClusterAccess:
        """Return the way to the API server; InputError if the kubeconfig cannot be used."""
        from tierwall.cluster.access import find_access, impersonating

        access = find_access(self.context, self.kubeconfig, os.environ)
        return impersonating(access, self.user, self.groups)
