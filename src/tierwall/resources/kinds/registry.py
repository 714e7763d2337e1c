"""Finding a kind by the apiVersion and kind of an object. A group is imported when one of its objects is met."""

import importlib
from collections.abc import Iterator
from functools import cache

from tierwall.core.diagnostics import near_miss
from tierwall.resources.kinds.kind import Kind

_MODULES = {
    "networking.k8s.io": "network",
    "policy.networking.k8s.io": "admin_network",
    "": "core",
    "apps": "workloads",
    "batch": "workloads",
    "gateway.networking.k8s.io": "gateway_api",
    "gateway.networking.x-k8s.io": "gateway_api",
    "agentic.prototype.x-k8s.io": "access_policy",
    "agentic.networking.x-k8s.io": "access_policy",
    "agentgateway.dev": "agentgateway",
    "rbac.authorization.k8s.io": "rbac",
    "apiserver.config.k8s.io": "authorization_config",
    "tierwall.io": "tierwall",
}
# Of these groups every kind is known: another one is a mistake, never somebody else's object.
_WHOLE_GROUPS = frozenset({"policy.networking.k8s.io", "rbac.authorization.k8s.io", "tierwall.io"})


@cache
def _group(name: str) -> dict[tuple[str, str], Kind]:
    """The kinds of one API group, by apiVersion and kind."""
    if name not in _MODULES:
        return {}
    kinds: tuple[Kind, ...] = importlib.import_module(f"tierwall.resources.kinds.{_MODULES[name]}").KINDS
    return {(kind.api_version, kind.kind): kind for kind in kinds if kind.group == name}


def all_kinds() -> Iterator[Kind]:
    """Every kind, group by group, in a fixed order."""
    for name in _MODULES:
        yield from _group(name).values()


def find_kind(api_version: object, kind: object) -> Kind | None:
    """The kind of an object that has this apiVersion and kind, or None if it is not ours to judge."""
    if isinstance(api_version, str) and isinstance(kind, str):
        return _group(api_version.rpartition("/")[0]).get((api_version, kind))
    return None


def misnamed(api_version: str, kind: str) -> str | None:
    """If an object was surely meant to be of one of our kinds but is not, a hint that says which; else None."""
    group = api_version.rpartition("/")[0]
    known = _group(group)
    versions = [version for version, name in known if name == kind]
    if versions:
        return f"{kind} is known in {' and '.join(f'`{version}`' for version in versions)}"
    names = {name for _, name in known}
    if group in _WHOLE_GROUPS or kind.lower() in {name.lower() for name in names}:
        return near_miss(kind, names)
    return None
