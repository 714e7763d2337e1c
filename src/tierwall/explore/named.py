"""The names in a world: what bare names may stand for, and how words that somebody types can go on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from tierwall.analyze.api_mentions import MentionedValues, mentioned_values
from tierwall.api.authorizers.cel_policies import policies_of
from tierwall.api.authorizers.demands import GROUPS
from tierwall.api.resource_names import VERBS, api_resources
from tierwall.attach.place import GATEWAY, HTTP_ROUTE, SERVICE
from tierwall.network.model.model import network_model
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import BACKENDS, model
from tierwall.tool.rules import TRUST_DOMAIN

ACCOUNT = "system:serviceaccount:"
RBAC = "rbac.authorization.k8s.io"
BINDINGS = ((RBAC, "RoleBinding"), (RBAC, "ClusterRoleBinding"))
MAX_COMPLETIONS = 12
# Names that are not offered any more once there are so many: nobody reads them.
_MAX_NAMES = 200_000


@per_snapshot
def ends(snapshot: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """Return the pods and workloads by bare name, as `namespace/name`."""
    by_name: dict[str, dict[str, None]] = {}
    for pod in network_model(snapshot).pods:
        by_name.setdefault(pod.name, {})[str(pod)] = None
        if pod.workload is not None:
            by_name.setdefault(pod.workload.name, {})[f"{pod.namespace}/{pod.workload.name}"] = None
    return {name: tuple(members) for name, members in by_name.items()}


@per_snapshot
def services(snapshot: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """Return the Services by bare name, as `Service/namespace/name`."""
    by_name: dict[str, list[str]] = {}
    for service in snapshot.of_kind(*SERVICE):
        by_name.setdefault(service.name, []).append(str(service.reference))
    return {name: tuple(members) for name, members in by_name.items()}


@per_snapshot
def callers(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the callers of tools that policies name: ServiceAccounts as `namespace/name`, others as SPIFFE ids."""
    policies = model(snapshot)
    named = {
        caller
        for resource in policies.resources
        for rules in (policies.policy(resource).allows, policies.policy(resource).asks)
        for caller in rules.callers()
    }
    return tuple(sorted(map(short_caller, named)))


def short_caller(caller: str) -> str:
    """Return `namespace/name` for the SPIFFE id of a ServiceAccount, and any other id as it is."""
    parts = caller.removeprefix(f"spiffe://{TRUST_DOMAIN}/ns/").split("/")
    is_account = caller.startswith(f"spiffe://{TRUST_DOMAIN}/ns/") and len(parts) == 3 and parts[1] == "sa"
    return f"{parts[0]}/{parts[2]}" if is_account else caller


@per_snapshot
def tools(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the tools that backends declare or policies name."""
    policies = model(snapshot)
    backends = (resource for key in BACKENDS for resource in snapshot.of_kind(*key))
    return tuple(sorted({tool for backend in backends for tool in offered_tools(policies, backend)}))


@per_snapshot
def users(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the users that role bindings name, and those that expressions of policies compare with."""
    names = {
        name if kind == "User" else f"{ACCOUNT}{namespace}:{name}"
        for kind, namespace, name in _subjects(snapshot)
        if kind in ("User", "ServiceAccount")
    }
    return tuple(sorted({*names, *_mentioned(snapshot).of("user")}))


@per_snapshot
def groups(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the groups that role bindings name, and those that expressions of policies look for."""
    names = {name for kind, _, name in _subjects(snapshot) if kind == "Group"}
    return tuple(sorted({*names, *_mentioned(snapshot).of(GROUPS)}))


@per_snapshot
def spaced(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the users and groups whose names have spaces, the longest first."""
    names = (name for name in (*users(snapshot), *groups(snapshot)) if " " in name)
    return tuple(sorted(set(names), key=lambda name: (-len(name), name)))


@per_snapshot
def _mentioned(snapshot: Snapshot) -> MentionedValues:
    return mentioned_values(policies_of(snapshot))


def _subjects(snapshot: Snapshot) -> Iterator[tuple[object, str, str]]:
    """Yield the kind, namespace and name of everybody whom role bindings name."""
    for key in BINDINGS:
        for binding in snapshot.of_kind(*key):
            for subject in list_of_maps(binding.value.get("subjects")):
                if isinstance(name := subject.get("name"), str):
                    yield subject.get("kind"), subject.get("namespace") or binding.namespace, name


def bindings_of(snapshot: Snapshot, role: Resource) -> Iterator[Resource]:
    """Yield the bindings that give a role to somebody."""
    for key in BINDINGS:
        for binding in snapshot.of_kind(*key):
            given = binding.value.get("roleRef")
            is_role = isinstance(given, Mapping) and (given.get("kind"), given.get("name")) == (role.kind, role.name)
            if is_role and role.namespace in ("", binding.namespace):
                yield binding


def called(names: Iterable[str], word: str) -> Iterator[str]:
    """Yield the users with a name; a ServiceAccount also by its own name, alone or after its namespace."""
    for name in names:
        account = name.removeprefix(ACCOUNT).replace(":", "/", 1) if name.startswith(ACCOUNT) else ""
        if word == name or (account and word in (account, account.rpartition("/")[2])):
            yield name


@per_snapshot
def _known_words(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return everything that can be typed, each with what it completes to, sorted for a search by its beginning."""

    def words() -> Iterator[tuple[str, str]]:
        for by_name in (ends(snapshot), services(snapshot)):
            for name, members in by_name.items():
                for whole in members:
                    yield whole.lower(), whole
                    yield name.lower(), whole
        plain: Iterable[str] = (
            *tools(snapshot),
            *users(snapshot),
            *groups(snapshot),
            *callers(snapshot),
            *VERBS,
            *(served.plural for served in api_resources(snapshot)),
            *("settings", "outside"),
        )
        yield from ((word.lower(), word) for word in plain)
        for caller in callers(snapshot):
            yield caller.rpartition("/")[2].lower(), caller
        for user in users(snapshot):
            yield user.rpartition(":")[2].lower(), user
        for gateway in snapshot.of_kind(*GATEWAY):
            yield gateway.name.lower(), f"{gateway.namespace}/{gateway.name}"
            yield f"gateway/{gateway.namespace}/{gateway.name}".lower(), str(gateway.reference)
        for route in snapshot.of_kind(*HTTP_ROUTE):
            yield str(route.reference).lower(), str(route.reference)
            yield route.name.lower(), str(route.reference)

    return sorted(set(words()))[:_MAX_NAMES]


def completions(snapshot: Snapshot, text: str) -> list[str]:
    """Return how a text may go on: its last word, completed from what is there; an arrow needs no spaces."""
    at = max(map(text.rfind, " ,>→")) + 1
    head, word = text[:at], text[at:]
    if not word:
        return []
    known = _known_words(snapshot)
    at = bisect_left(known, (word.lower(), ""))
    completed: dict[str, None] = {}
    while at < len(known) and known[at][0].startswith(word.lower()) and len(completed) < MAX_COMPLETIONS:
        completed[f"{head}{known[at][1]}".lstrip()] = None
        at += 1
    completed.pop(text.strip(), None)
    return list(completed)
