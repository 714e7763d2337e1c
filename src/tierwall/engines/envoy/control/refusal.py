"""Finds the objects for which proxies refuse a resource (docs/semantics.md#what-an-engine-refuses-is-closed).

A filter or a RouteConfiguration holds the objects of many tenants, and a proxy refuses it as a whole without saying for
which object. So the search closes every object that may be at fault, which brings everything else into force at once.
Then it opens them again, group by group. A group that is refused is halved, down to the single object at fault.

A candidate contributes to a refused resource, and is new or changed since all proxies accepted everything. If there is
no such object, all that contribute are candidates. Policies are closed before the routes that lead to them, and routes
before Gateways; they are opened in the opposite order, because a policy behind a closed route is not tried at all.

INVARIANT: an object is compiled as written or closed, never as an earlier version of itself. What a proxy keeps while
it refuses a resource is the last state that it accepted, and from the second round on that state is closed, too.

A verdict is about the content of an object. A changed object gets another chance, alone, when everything else is in
force. So nobody delays others by editing an object that is refused, again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tierwall.attach.place import GATEWAY, LISTENER_SET, ROUTES, SERVICE, STREAM_ROUTES, X_LISTENER_SET
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import BACKENDS

# How often groups of one namespace are refused in one resource before they are not halved any more, and whole groups
# stay closed. Other namespaces are not charged for it.
MAX_HALVINGS = 40
# The shortest text of an object that counts if an error message repeats it.
MIN_TEXT = 4
WAITING = "it changed together with an object that is refused, and is tried again in a moment"
# Envoy's words if another program has the port; the Gateway is not at fault.
CANNOT_BIND = "cannot bind"
# The objects that contribute to a resource, by its type URL and name.
FindContributors = Callable[[str, str], Collection[Identity]]


class ObjectGroup(NamedTuple):
    """Closed candidates that are opened together, and the name of the resource that was refused with them.

    Answers about different resources do not depend on each other, so one group of each is open at a time. Objects that
    changed during the search have no resource yet.
    """

    identities: tuple[Identity, ...]
    resource: str = ""

    @property
    def rank(self) -> int:
        """How much depends on its objects."""
        return _rank(self.identities[0])


class ProxyRefusal(NamedTuple):
    """A resource in force that a proxy refuses, with the proxy's error message."""

    type_url: str
    name: str
    words: str

    @property
    def is_about_port(self) -> bool:
        """Whether the port of a listener cannot be opened."""
        return CANNOT_BIND in self.words

    def rank(self, identity: Identity) -> int:
        """Return a number that is lower for objects to close first."""
        kind, rank = self.type_url.rpartition(".")[2], _rank(identity)
        # A listener only names its certificates, which it may share with others.
        if kind == "Listener" and rank == _CERTIFICATE:
            return _LAST
        if kind == "Secret" and identity[1] != ("ConfigMap" if self.name.startswith("authority/") else "Secret"):
            return _LAST
        return rank

    def __str__(self) -> str:
        return f"{self.type_url.rpartition('.')[2]} {self.name}: {self.words}"


class ProxyAnswers(NamedTuple):
    """The answers of all proxies to the configuration in force."""

    # The refusals of each proxy.
    refusals: Mapping[Hashable, tuple[ProxyRefusal, ...]]
    # Whether no further answer is expected, and whether every proxy accepted everything.
    is_settled: bool
    is_accepted: bool


class RefusedObject(NamedTuple):
    """An object that proxies refuse: its content then, their words, and who said so."""

    resource: Resource
    words: str
    proxies: frozenset[Hashable]

    def is_about(self, now: Resource | None) -> bool:
        """Whether an object still has the content that was refused."""
        return now is not None and now.has_same_content(self.resource)


class RefusalSearch:
    """The search over all resources. Tell it what is published and what proxies answer; it says what to close.

    All methods are called by one task at a time, except the properties.
    """

    def __init__(self) -> None:
        self._snapshot = Snapshot.of(())
        self._closed: Mapping[Identity, str] = {}
        # The last configuration that all proxies accepted.
        self._accepted = self._snapshot
        self._accepted_closed: Mapping[Identity, str] = {}
        # The objects that proxies refuse.
        self._refused: dict[Identity, RefusedObject] = {}
        # Those of them that were closed since then: proxies have not accepted everything else yet.
        self._unconfirmed: set[Identity] = set()
        # Closed candidates, in the order in which they are opened.
        self._groups: list[ObjectGroup] = []
        self._halvings: Counter[tuple[str, str]] = Counter()
        # Proxies that refuse resources without any open object.
        self._at_fault: frozenset[Hashable] = frozenset()

    @property
    def refused(self) -> tuple[RefusedObject, ...]:
        """The objects that are closed because of what they contain, sorted by reference."""
        return tuple(sorted(self._refused.values(), key=lambda refused: str(refused.resource.reference)))

    @property
    def number_waiting(self) -> int:
        """The number of objects that are closed until they are tried."""
        return sum(len(group.identities) for group in self._groups)

    @property
    def at_fault(self) -> frozenset[Hashable]:
        """The proxies that refuse resources whatever the objects are; they are not waited for."""
        return self._at_fault

    def closed(self, snapshot: Snapshot) -> dict[Identity, str]:
        """Return the objects of a snapshot to compile closed, with the reason; nothing is published yet."""
        out = {
            identity: refused.words if refused.is_about(snapshot.get(*identity)) else WAITING
            for identity, refused in self._refused.items()
        }
        out |= dict.fromkeys(self._waiting, WAITING)
        if self._groups:
            # What changes during a search is tried in its turn: the proxies' answers are about one group at a time.
            out |= dict.fromkeys(self._changed(snapshot), WAITING)
        return {identity: words for identity, words in out.items() if snapshot.get(*identity) is not None}

    def publish(self, snapshot: Snapshot, closed: Mapping[Identity, str]) -> None:
        """Note that a snapshot with these objects closed is published."""
        self._refused = {
            identity: refused
            for identity, refused in self._refused.items()
            if refused.is_about(snapshot.get(*identity))
        }
        waiting = self._waiting
        self._groups = _without(self._groups, waiting - closed.keys())
        self._groups = _with(self._groups, closed.keys() - waiting - self._refused.keys())
        self._snapshot, self._closed = snapshot, closed

    def next_step(self, answers: ProxyAnswers, contributors: FindContributors) -> bool:
        """Process what proxies answered; return whether other objects are closed now, so that it must be published."""
        self._at_fault &= answers.refusals.keys()
        refusals = [
            (proxy, refusal)
            for proxy, refused in answers.refusals.items()
            if proxy not in self._at_fault
            for refusal in refused
        ]
        if refusals:
            return answers.is_settled and self._close(refusals, contributors)
        if not answers.is_accepted:
            return False
        self._accepted, self._accepted_closed = self._snapshot, self._closed
        self._unconfirmed.clear()
        if not self._groups:
            self._halvings.clear()
            return False
        highest = max(group.rank for group in self._groups)
        groups = [group for group in self._groups if group.rank == highest]
        # What changed during the search is opened alone: nobody knows yet which resources it is in.
        opened = {group.resource: group for group in reversed(groups) if group.resource} or {"": groups[0]}
        self._groups = [group for group in self._groups if group not in opened.values()]
        return True

    @property
    def _waiting(self) -> set[Identity]:
        return {identity for group in self._groups for identity in group.identities}

    def _close(self, refusals: Iterable[tuple[Hashable, ProxyRefusal]], contributors: FindContributors) -> bool:
        """Close the candidates of these refusals; return whether anything changes."""
        self._acquit(self._unconfirmed)
        closed = set(self._closed)
        for proxy, refusal in refusals:
            contributing = set(contributors(refusal.type_url, refusal.name)) - self._closed.keys()
            if refusal.is_about_port:
                contributing.clear()
            contributing = {identity for identity in contributing if self._snapshot.get(*identity) is not None}
            candidates = self._candidates(refusal, contributing)
            if candidates:
                self._blame(candidates, candidates - closed, proxy, refusal)
                closed |= candidates
            else:
                self._at_fault |= {proxy}
                self._acquit([key for key, refused in self._refused.items() if refused.proxies == {proxy}])
        return True

    def _candidates(self, refusal: ProxyRefusal, contributing: set[Identity]) -> set[Identity]:
        """Return those of some open objects to close first: the new ones, and of those the ones that hold no others."""
        keys = {identity: (self._is_accepted(identity), refusal.rank(identity)) for identity in contributing}
        first = min(keys.values(), default=None)
        return {identity for identity, key in keys.items() if key == first}

    def _blame(
        self, candidates: set[Identity], still_open: set[Identity], proxy: Hashable, refusal: ProxyRefusal
    ) -> None:
        """Give the verdict on candidates, or divide those that are still open."""
        namespaces = {identity[2] for identity in candidates}
        charged = min(namespaces), refusal.name
        self._halvings[charged] += len(namespaces) == 1
        if len(candidates) > 1 and (len(namespaces) > 1 or self._halvings[charged] <= MAX_HALVINGS):
            named = {identity for identity in still_open if self._is_named(identity, refusal.words)}
            # If the words repeat a text of some objects, the others are probably good.
            parts = [still_open - named, named] if named and named != still_open else [still_open]
            self._groups += [half for part in parts for half in _halves(part, refusal.name, len(parts) == 1)]
            return
        words = refusal.words
        if len(candidates) > 1:
            words = f"{words}; it is among {len(candidates)} objects of its namespace that are refused together"
        for identity in candidates:
            resource, known = self._snapshot.get(*identity), self._refused.get(identity)
            assert resource is not None
            proxies = known.proxies if known is not None else frozenset()
            self._refused[identity] = RefusedObject(resource, words, proxies | {proxy})
        self._unconfirmed |= candidates
        self._groups = _without(self._groups, candidates)

    def _acquit(self, identities: Iterable[Identity]) -> None:
        """Take the verdict on some objects back; they are tried again."""
        acquitted = set(identities)
        for identity in acquitted:
            self._refused.pop(identity, None)
        self._unconfirmed -= acquitted
        self._groups = _with(self._groups, acquitted)

    def _is_accepted(self, identity: Identity) -> bool:
        before, now = self._accepted.get(*identity), self._snapshot.get(*identity)
        if before is None or now is None or identity in self._accepted_closed:
            return False
        return before is now or before.has_same_content(now)

    def _is_named(self, identity: Identity, words: str) -> bool:
        resource = self._snapshot.get(*identity)
        return resource is not None and any(len(text) >= MIN_TEXT and text in words for text in _texts(resource.spec))

    def _changed(self, snapshot: Snapshot) -> Iterable[Identity]:
        """Yield the policies and routes of a snapshot that differ from what is published."""
        for old, new in snapshot.changes(self._snapshot):
            is_shared = new is not None and (new.group, new.kind) in (*ACCESS_POLICIES, *GATEWAY_POLICIES, *ROUTES)
            if new is not None and is_shared and (old is None or not old.has_same_content(new)):
                yield new.identity


# An object is only tried if all on the way to it are open: the Gateway, its certificates, the route, the backend.
_CERTIFICATE, _LAST = 3, 6
_RANKS = {
    **dict.fromkeys((*ACCESS_POLICIES, *GATEWAY_POLICIES), 0),
    **dict.fromkeys((*BACKENDS, SERVICE), 1),
    **dict.fromkeys((*ROUTES, *STREAM_ROUTES), 2),
    **dict.fromkeys((LISTENER_SET, X_LISTENER_SET), 4),
    GATEWAY: 5,
}


def _rank(identity: Identity) -> int:
    """Return a number that is higher for objects on which others depend."""
    return _RANKS.get(identity[:2], _CERTIFICATE)


def _without(groups: Iterable[ObjectGroup], dropped: Collection[Identity]) -> list[ObjectGroup]:
    """Return the groups without some objects."""
    kept = (
        group._replace(identities=tuple(identity for identity in group.identities if identity not in dropped))
        for group in groups
    )
    return [group for group in kept if group.identities]


def _with(groups: Iterable[ObjectGroup], identities: Iterable[Identity]) -> list[ObjectGroup]:
    """Return the groups with further objects: for those that changed, each namespace has one group of each rank.

    So a namespace with many changes has its turn as often as the others.
    """
    out = list(groups)
    places = {(group.identities[0][2], group.rank): place for place, group in enumerate(out) if not group.resource}
    for identity in sorted(identities):
        place = places.setdefault((identity[2], _rank(identity)), len(out))
        if place == len(out):
            out.append(ObjectGroup(()))
        out[place] = ObjectGroup((*out[place].identities, identity))
    return out


def _texts(value: object) -> Iterator[str]:
    """Yield every text in the values of a specification."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _halves(identities: Iterable[Identity], resource: str, divides: bool) -> list[ObjectGroup]:
    """Return objects in two groups, or in one; a namespace is divided only if it is the only one."""
    if not divides:
        return [ObjectGroup(tuple(sorted(identities)), resource)]
    ordered = sorted(identities, key=lambda identity: (identity[2], identity))
    namespaces = sorted({identity[2] for identity in ordered})
    if len(namespaces) > 1:
        first = set(namespaces[: len(namespaces) // 2])
        middle = sum(identity[2] in first for identity in ordered)
    else:
        middle = len(ordered) // 2
    return [ObjectGroup(half, resource) for half in (tuple(ordered[:middle]), tuple(ordered[middle:])) if half]
