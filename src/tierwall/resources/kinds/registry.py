"""Finding a kind by the apiVersion and kind of an object."""

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache

from tierwall.core.diagnostics import near_miss
from tierwall.resources.kinds.kind import Kind

_MODULES = (
    "network",
    "admin_network",
    "core",
    "workloads",
    "gateway_api",
    "access_policy",
    "agentgateway",
    "rbac",
    "authorization_config",
    "tierwall",
)
# Of these groups every kind is known: another one is a mistake, never somebody else's object.
_WHOLE_GROUPS = frozenset({"policy.networking.k8s.io", "rbac.authorization.k8s.io", "tierwall.io"})


@cache
def _table() -> dict[tuple[str, str], Kind]:
    found: dict[tuple[str, str], Kind] = {}
    for name in _MODULES:
        if importlib.util.find_spec(f"tierwall.resources.kinds.{name}") is None:
            continue
        for kind in importlib.import_module(f"tierwall.resources.kinds.{name}").KINDS:
            found[kind.api_version, kind.kind] = kind
    return found


def all_kinds() -> Iterator[Kind]:
    """Every kind, group by group, in a fixed order."""
    yield from _table().values()


def find_kind(api_version: object, kind: object) -> Kind | None:
    """The kind of an object that has this apiVersion and kind, or None if it is not ours to judge."""
    if isinstance(api_version, str) and isinstance(kind, str):
        return _table().get((api_version, kind))
    return None


def misnamed(api_version: str, kind: str) -> str | None:
    """If an object was surely meant to be of one of our kinds but is not, a hint that says which; else None."""
    group = api_version.rpartition("/")[0]
    known = [(other.api_version, other.kind) for other in all_kinds() if other.group == group]
    versions = [one for one, name in known if name == kind]
    if versions:
        return f"{kind} is known in {' and '.join(f'`{one}`' for one in versions)}"
    names = [name for _, name in known]
    if group in _WHOLE_GROUPS or kind.lower() in {name.lower() for name in names}:
        return near_miss(kind, names)
    return None
