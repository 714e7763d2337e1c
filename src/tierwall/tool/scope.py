"""Names of tools in rules, and their scope: on a Gateway `backend/tool` is the tool of that one backend.

The AccessPolicy proposal ("API Changes") leaves open what a bare name means on a Gateway whose backends offer tools of
one name. Tierwall's answer (docs/tool.md#one-backends-tool-on-a-gateway): a bare name means the tool at every backend;
with the name of an XBackend and a slash in front it means the tool there only. `namespace/backend/tool` reaches
backends elsewhere.
A name with a slash that leads with no XBackend is the tool's own name, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from tierwall.attach.index import ACCESS_GROUPS
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.request import Request


class Scoped(NamedTuple):
    """A tool of one backend."""

    namespace: str
    backend: str
    tool: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.backend}/{self.tool}"


class Names(Struct, frozen=True):
    """Some names: bare ones count at every backend, scoped ones at theirs."""

    bare: frozenset[str]
    scoped: frozenset[Scoped] = frozenset()

    def matches(self, request: Request) -> bool:
        """Whether the request is about one of these names; one that names nothing is not."""
        named = request.named
        if named is None:
            return False
        if named in self.bare:
            return True
        backend = request.backend
        return (
            bool(self.scoped) and backend.kind == "XBackend" and (backend.namespace, backend.name, named) in self.scoped
        )

    def __str__(self) -> str:
        return ", ".join([*sorted(self.bare), *map(str, sorted(self.scoped))]) or "no name"


def scoped(snapshot: Snapshot, namespace: str, name: str) -> Scoped | None:
    """The backend and tool that a name on a Gateway in `namespace` stands for, or None if it is a bare name."""
    first, slash, rest = name.partition("/")
    if not slash or not rest:
        return None
    if is_backend(snapshot, namespace, first):
        return Scoped(namespace, first, rest)
    second, slash, tool = rest.partition("/")
    return Scoped(first, second, tool) if slash and tool and is_backend(snapshot, first, second) else None


def is_backend(snapshot: Snapshot, namespace: str, name: str) -> bool:
    """Whether there is an XBackend of this name, of either group."""
    return any(snapshot.get(group, "XBackend", namespace, name) is not None for group in ACCESS_GROUPS)


def names_of(snapshot: Snapshot, namespace: str, listed: Iterable[str], *, on_gateway: bool) -> Names:
    """The names that a rule lists; they have a scope only in policies on Gateways."""
    bare: set[str] = set()
    with_backend: set[Scoped] = set()
    for name in listed:
        tool = scoped(snapshot, namespace, name) if on_gateway else None
        if tool is None:
            bare.add(name)
        else:
            with_backend.add(tool)
    return Names(frozenset(bare), frozenset(with_backend))
