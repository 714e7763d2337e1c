"""Follows one object by reading it again and again, for a user who may `get` it and neither `list` nor `watch`.

To list with a name as the selector needs the right to list, and who has that may read all Secrets of the namespace.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tierwall.cluster.decoding import name_of
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.reflector import Reflector

# How often the object is read, in seconds.
INTERVAL_S = 5.0


class PolledObject(Reflector):
    """Follows an object that is named."""

    async def _follow(self) -> None:
        """Read the object, and wait until that is due again."""
        namespace, _, name = self.object_name.partition("/")
        items: dict[tuple[str, str], Any] = {}
        try:
            reply = await self._connection.get(f"{self.kind.path(namespace)}/{name}")
        except ApiServerError as error:
            if error.code != 404:
                raise
        else:
            item = self._decoder.object(msgspec.Raw(reply.content))
            items[name_of(item)] = item
        await self._replace(items, "")
        self.failure = None
        await asyncio.sleep(INTERVAL_S)
