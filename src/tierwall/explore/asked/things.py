"""Questions that only name something: a namespace, a pod, an object, a caller, a user, or a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tierwall.api.resource_names import api_resources
from tierwall.explore import named
from tierwall.explore.asked import forms
from tierwall.explore.asked.api import permissions
from tierwall.explore.asked.ends import pod_namespaces, split_port
from tierwall.explore.asked.meaning import Choice
from tierwall.explore.asked.tools import callers, is_named
from tierwall.explore.page import address, policy_address
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.values.addresses import parse_address

_EXPOSURE = re.compile(
    r"(?:(?:what|which|who)(?:\s+\w+)?\s+(?:is|are)\s+)?(?:(?:un|not\s+)protected(?:\s+\w+)?|exposure|exposed|ways\s+in)",
    re.IGNORECASE,
)
# Words for what is wrong, and the code of a finding.
_FINDINGS = re.compile(
    r"(?:all\s+)?(?:problems?|issues?|what\s+is\s+wrong|check|(?P<severity>error|warning|note)s?|(?P<code>TW\d{3}))",
    re.IGNORECASE,
)
_PAGES = ("network", "tools", "settings", "permissions", "findings", "change")


def things(snapshot: Snapshot, word: str) -> Iterator[Choice]:
    """Yield what has a name."""
    if _EXPOSURE.fullmatch(word):
        yield Choice("Ways in from outside, and pods that no policy protects", "/network")
    if match := _FINDINGS.fullmatch(word):
        narrow = {name: value for name, value in match.groupdict("").items() if value}
        shown = {"severity": str.lower, "code": str.upper}
        terms = {name: shown[name](value) for name, value in narrow.items()}
        yield Choice(" ".join(("Findings", *terms.values())), address("/findings", **terms))
    if word.lower() in _PAGES:
        yield Choice(f"The page {word.title()}", f"/{word.lower()}")
    if word.lower() in ("pods", "all pods", "workloads"):
        yield Choice("Who reaches whom", "/network")
    if not word.endswith("*") and (all_in := split_port(word)[0]).endswith("/*"):
        word = all_in
    namespace = word.removeprefix("namespace ").removesuffix("/*").removesuffix("/")
    if namespace in pod_namespaces(snapshot):
        yield Choice(f"Who reaches namespace {namespace}, and whom it reaches", address("/network", focus=namespace))
    bare = word.rpartition("/")[2]
    for end in named.ends(snapshot).get(bare, ()):
        if word in (end, bare):
            yield Choice(f"Who reaches {end}, and whom it reaches", address("/network", focus=end))
    if parse_address(word) is not None:
        yield Choice(f"Whom {word} reaches", address("/network", from_=word))
    for caller in callers(snapshot, word):
        yield Choice(f"The tools that {caller} may call", address("/tools", caller=caller))
    members = forms.MEMBERS.fullmatch(word)
    yield from permissions(snapshot, members["name"] if members else word)
    yield from of_kind(snapshot, word)
    for resource in objects(snapshot, word):
        if resource.kind != "Pod":
            yield Choice(str(resource.reference), object_address(resource))


def findings_about(snapshot: Snapshot, name: str) -> Iterator[Choice]:
    """Yield the findings about a namespace or an object."""
    if any(resource.namespace == name for resource in snapshot):
        yield Choice(f"Findings in namespace {name}", address("/findings", namespace=name))
    for resource in objects(snapshot, name):
        if resource.kind != "Pod":
            yield Choice(f"Findings about {resource.reference}", address("/findings", policy=str(resource.reference)))


def of_kind(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    """Yield the objects of a kind: `netpol`, `all network policies`. Pods are on the page Network."""
    word = re.sub(r"^(?:(?:all|the|every|any|list|show)\s+)+", "", text.lower()).replace(" ", "")
    plurals = _kinds(snapshot).get(word, frozenset())
    for resource in snapshot if plurals else ():
        if resource.kind.lower() in plurals and resource.kind != "Pod":
            yield Choice(str(resource.reference), object_address(resource))


def objects(snapshot: Snapshot, name: str) -> Iterator[Resource]:
    """Yield the objects that have a name: alone, with a namespace, or after a kind, as kubectl writes it."""
    kind, _, rest = name.replace(" ", "/", 1).partition("/")
    plurals = _kinds(snapshot).get(kind.lower().partition(".")[0], frozenset()) | {kind.lower()}
    for resource in snapshot:
        is_kind = bool(rest) and resource.kind.lower() in plurals
        if is_named(resource, name) or (is_kind and is_named(resource, rest)):
            yield resource


def object_address(resource: Resource) -> str:
    """Return the address of an object's own page."""
    return policy_address(resource.reference, resource.group)


def change_address(resource: Resource) -> str:
    """Return the address of the editor that begins with an object."""
    return address("/change", object=str(resource.reference))


@per_snapshot
def _kinds(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Return the kinds, in small letters, by their plural, singular and short names."""
    kinds: dict[str, set[str]] = {}
    for served in api_resources(snapshot):
        names = (served.plural, *served.other_names)
        for each in names:
            kinds.setdefault(each, set()).update(names)
    for resource in snapshot:
        small = resource.kind.lower()
        plural = f"{small[:-1]}ies" if small.endswith("y") else f"{small}s"
        kinds.setdefault(plural, set()).add(small)
    return {name: frozenset(members) for name, members in kinds.items()}


def names(snapshot: Snapshot) -> Iterator[str]:
    """Yield the names that a single word may be, for hints."""
    yield from (
        *named.ends(snapshot),
        *pod_namespaces(snapshot),
        *named.users(snapshot),
        *named.groups(snapshot),
        *_PAGES,
    )
    yield from (caller.rpartition("/")[2] for caller in named.callers(snapshot))
    yield from (resource.name for resource in snapshot if resource.kind != "Pod")
