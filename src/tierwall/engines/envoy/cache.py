"""What compilations keep for the next one: what policies compile to, names of checkpoints, messages.

What a policy compiles to is kept as long as the policy stays as it is: a change of one policy compiles one policy.

A policy whose text alone changes keeps its checkpoints' names: the filter that has it is replaced, and no route. Where
more than one object changes, or a policy gets other targets, policies that do get a new tag, so that their checkpoints
get new names and the routes switch to all that is new at once; else a restriction that moves from one policy to another
could be in neither for a moment. So does a policy that changes before all proxies have taken the last change of any
other object, also of one that comes or goes: they may get both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from tierwall.attach.index import ACCESS_POLICIES
from tierwall.attach.target import entries
from tierwall.engines.envoy.checkpoints import Checkpoint, Shards
from tierwall.engines.envoy.rbac import Guard
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.model import follow, inherit

# How many checkpoints are known that routes have left while not every proxy has; or as many as there are others.
MOST_LEFT = 1000
MOST_GONE = 10_000

# What tells a policy from others: group, kind, namespace and name.
Key = tuple[str, str, str, str]


class Cache:
    """What compilations keep for the next one; one for each sequence of snapshots."""

    def __init__(self) -> None:
        self._guards: dict[Key, tuple[Resource, dict[Any, Guard]]] = {}
        self._tags: dict[Key, str] = {}
        # Objects that changed, with the number of the compilation, until every proxy has taken it.
        self._unsettled: dict[Key, int] = {}
        # Policies whose tags are not the digests of their texts.
        self._drifted: set[Key] = set()
        self.number = 0
        self._messages: dict[tuple[str, str], Any] = {}
        self._before: Snapshot | None = None
        self._shards = Shards()
        self._passed: dict[str, Checkpoint] = {}
        # With the number of the compilation whose routes left them.
        self._left: dict[str, tuple[int, Checkpoint]] = {}
        self._settled = 0
        # Whether everything that is compiled stands where the snapshot says.
        self.is_exact = True
        # The last compilation, as its compiler left it.
        self.last: Any = None
        self._undo: Any = None, {}, {}, set(), {}, {}, None

    def begin(self, snapshot: Snapshot, exactly: bool) -> tuple[Snapshot, bool]:
        """A compilation of this snapshot begins: the snapshot to compile, and whether it differs in policies only.

        Unless it must be exactly this one, objects that were read anew and say what they said are those from before,
        so that what is known of them is known still; only where they stand in files may be wrong.
        """
        self._undo = (
            self._before,
            dict(self._tags),
            dict(self._unsettled),
            set(self._drifted),
            self._passed,
            self._left,
            self.last,
        )
        self.number += 1
        settled = self._settled
        self._unsettled = {key: one for key, one in self._unsettled.items() if one > settled}
        before, self._before = self._before, snapshot
        self.is_exact = True
        if before is None:
            return snapshot, False
        changes = list(snapshot.changes(before))
        texts = [(old, new) for old, new in changes if not _is_same_text(old, new)]
        self._retag(texts)
        if len(texts) < len(changes) and not exactly:
            dropped = [old for old, new in texts if old is not None and new is None]
            snapshot = self._before = before.changed([new for _, new in texts if new is not None], dropped)
            self.is_exact, changes = False, texts
        gone = [old for old, _ in changes if old is not None]
        come = [new for _, new in changes if new is not None]
        if all((one.group, one.kind) in ACCESS_POLICIES for one in (*gone, *come)):
            if before is not snapshot:
                follow(before, snapshot, gone, come)
            return snapshot, True
        inherit(before, snapshot)
        return snapshot, False

    def _retag(self, changes: list[tuple[Resource | None, Resource | None]]) -> None:
        changed = {_key(one): one for pair in changes if (one := pair[1] or pair[0]) is not None}
        # INVARIANT: a name keeps its meaning but for the text of one policy, from the last state that every proxy has.
        keeps = len(changed | self._unsettled) == 1 and all(_stays(old, new) for old, new in changes)
        self._drifted |= changed.keys() & self._tags.keys()
        for key, one in changed.items():
            if key in self._tags and not keeps:
                # Follows on the old tag, so that a text that comes back is still another.
                self._tags[key] = _digest(one, self._tags[key])
            self._unsettled[key] = self.number

    @property
    def is_drifted(self) -> bool:
        """Whether names of checkpoints are others than a compilation without a cache would give."""
        return bool(self._drifted)

    def straighten(self) -> None:
        """Give policies the tags that their texts give by themselves; a compilation of the same snapshot follows.

        A control plane that starts anew then gives the names that proxies have.
        """
        for key in self._drifted:
            if key in self._guards:
                self._tags[key] = _digest(self._guards[key][0])
                self._unsettled[key] = self.number
            else:
                self._tags.pop(key, None)
        self._drifted = set()

    def settle(self, number: int) -> None:
        """Every proxy has taken this compilation, and with it all before it. May be called while one is running."""
        self._settled = max(self._settled, number)

    def undo(self) -> None:
        """Forget the last compilation: it did not come into force, so the next one does not follow on it."""
        self._before, self._tags, self._unsettled, self._drifted, self._passed, self._left, self.last = self._undo

    def of(self, policy: Resource) -> dict[Any, Guard]:
        """What is kept for a policy: nothing, if it has changed, or if it stands elsewhere and that was to be said."""
        key = _key(policy)
        kept = self._guards.get(key)
        if kept is None or (kept[0] is not policy and (not policy.says_what(kept[0]) or _is_noted(kept[1]))):
            kept = self._guards[key] = policy, {}
        return kept[1]

    def tag(self, policy: Resource) -> str:
        """What stands for the text of a policy in names of checkpoints: first its digest, so that a control plane that
        starts anew finds the names again of what has not changed since.
        """
        key = _key(policy)
        if key not in self._tags:
            self._tags[key] = _digest(policy)
        return self._tags[key]

    def filters(self, passed: Mapping[str, Checkpoint]) -> Mapping[str, Any]:
        """The filters of all checkpoints that routes pass now, and of those that routes may not have left yet."""
        left = {**self._left, **{name: (self.number, one) for name, one in self._passed.items()}}
        kept = [
            (name, (number, one))
            for name, (number, one) in left.items()
            if name not in passed and number > self._settled
        ]
        self._left = dict(kept[-max(MOST_LEFT, len(passed)) :])
        self._passed = dict(passed)
        return self._shards.of((*passed.values(), *(one for _, one in self._left.values())))

    def same(self, kind: str, name: str, message: Any) -> Any:
        """The message of the last compilation if it was equal: equal objects are compared faster than messages."""
        before = self._messages.get((kind, name))
        if before is message or (before is not None and before == message):
            return before
        self._messages[kind, name] = message
        return message

    def forget(self, those: Iterable[Resource], messages: set[tuple[str, str]]) -> None:
        """Keep only these policies and messages."""
        policies = set(map(_key, those))
        self._guards = {name: kept for name, kept in self._guards.items() if name in policies}
        # Tags of policies that went are kept for a while: they may come back with another text.
        if len(self._tags) > 2 * len(policies) + MOST_GONE:
            self._tags = {name: kept for name, kept in self._tags.items() if name in policies}
        self._messages = {key: kept for key, kept in self._messages.items() if key in messages}


def _is_same_text(old: Resource | None, new: Resource | None) -> bool:
    return old is not None and new is not None and new.says_what(old)


def _stays(old: Resource | None, new: Resource | None) -> bool:
    """Whether an object stands where it stood, whatever it says now."""
    if old is None or new is None:
        return False
    return old.seniority == new.seniority and list(entries(old)) == list(entries(new))


def _digest(policy: Resource, after: str = "") -> str:
    text = repr((after, policy.version, policy.spec)).encode(errors="surrogatepass")
    return blake2b(text, digest_size=8).hexdigest()


def _is_noted(guards: Mapping[Any, Guard]) -> bool:
    return any(one.diagnostics for one in guards.values())


def _key(resource: Resource) -> Key:
    return resource.group, resource.kind, resource.namespace, resource.name
