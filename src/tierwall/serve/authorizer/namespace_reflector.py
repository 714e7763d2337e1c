"""Follows the Namespaces of the API server that is answered (docs/authorizer.md#the-namespace-of-an-object).

Conditions read them as `namespaceObject`. Nothing waits for them: an API server cannot start without its authorizer, so
the authorizer starts first, and a namespace that has not been read yet fails what reads it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.failures import failure_reason
from tierwall.cluster.reading import as_resource
from tierwall.cluster.reflector import Name, Reflector, Timing
from tierwall.cluster.shapes import SpecObject
from tierwall.resources.resource import Resource

_KIND = ServedKind("", "v1", "Namespace", "namespaces", False, frozenset(("get", "list", "watch")))
_REQUEST_SECONDS = 10.0
# The API server, and the roles in it, come after the authorizer, and conditions wait for them.
_TIMING = Timing(longest_wait=3)


class NamespaceReflector:
    """Keeps `namespaces`, by name, as the API server has them. Everything happens in one event loop."""

    def __init__(self, access: ClusterAccess, namespaces: dict[str, Resource], timing: Timing = _TIMING) -> None:
        self._access, self._namespaces, self._timing = access, namespaces, timing
        self._reflector: Reflector | None = None

    @property
    def problem(self) -> str:
        """The reason why the Namespaces are not known, or may be old; empty if they are followed."""
        reflector = self._reflector
        if reflector is None or not reflector.complete.is_set():
            failure = reflector.failure if reflector is not None else None
            return f"not read yet ({failure_reason(failure.error)})" if failure is not None else "not read yet"
        return f"not followed ({failure_reason(reflector.failure.error)})" if reflector.failure is not None else ""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until told to stop."""
        connection = Connection(self._access, _REQUEST_SECONDS)
        self._reflector = Reflector(connection, _KIND, SpecObject, self._change, timing=self._timing)
        following = asyncio.create_task(self._reflector.run())
        try:
            await stop.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await connection.close()

    def _change(self, name: Name, item: Any) -> None:
        if item is None:
            self._namespaces.pop(name[1], None)
        else:
            self._namespaces[name[1]] = as_resource(item, _KIND, self._access.context or self._access.server, {})
