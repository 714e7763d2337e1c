"""Reading all objects of a kind: pages of 500, all of the same moment (docs/clusters.md#reading).

The API server's list is consistent if no resourceVersion is asked for. A mark that has expired in the middle (410)
means that everything is read again: the way on that the server offers then would skip changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError, ItemReader
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.failures import ApiServerError

Item = TypeVar("Item")

PAGE = 500
# After so many marks that have expired, everything is read in one answer.
_MAX_RESTARTS = 3
# A page may be empty if a selector leaves nothing of it, but not so many in a row.
_MAX_IDLE = 1000
# Selectors are not part of a mark, so each page must have them.
NO_SELECTOR: Mapping[str, str] = {}


class ObjectList(Struct, Generic[Item], frozen=True):
    """All objects of a kind at one moment, which is a version to watch from."""

    version: str
    items: list[Item]


async def read_all(
    connection: Connection,
    kind: ServedKind,
    decoder: ItemReader,
    namespace: str = "",
    progress: Callable[[int, int], None] | None = None,
    selector: Mapping[str, str] = NO_SELECTOR,
    convert: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> ObjectList[Any]:
    """Read all objects of a kind, in all namespaces or in one. `progress` gets how many are read, and of how many.

    Items have the shape of the decoder, or are undecoded objects; `convert` makes something else of each page of them,
    so that not all are in memory in both forms. AnswerError if the server sends something else.
    """
    for restart in range(_MAX_RESTARTS + 1):
        query = {**selector, "limit": str(PAGE)} if restart < _MAX_RESTARTS else {**selector}
        items: list[Any] = []
        marks: set[str] = set()
        idle = 0
        while True:
            try:
                response = await connection.get(kind.path(namespace), query, decoder.accept)
            except ApiServerError as error:
                if error.code == 410 and "continue" in query:
                    break
                raise
            page = decoder.page(response.content)
            items += convert(page.items or ())
            idle = 0 if page.items else idle + 1
            mark = page.metadata.mark
            if progress is not None:
                progress(len(items), len(items) + (page.metadata.remaining_item_count or 0))
            if not mark:
                return ObjectList(page.metadata.resource_version, items)
            if mark in marks or idle > _MAX_IDLE:
                raise AnswerError("the list says that it goes on, and never ends")
            marks.add(mark)
            query = {**selector, "limit": str(PAGE), "continue": mark}
    raise AnswerError("the list expires again and again while it is read")
