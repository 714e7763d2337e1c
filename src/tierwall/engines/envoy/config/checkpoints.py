"""Where policies stand: the policies of one level on a way are a checkpoint, and filters know many checkpoints.

A route says in a header which checkpoint of each level its requests pass, and turns on one filter for each policy of
it. A filter looks the checkpoint up and goes on with the tree of the policy; one that it does not know, it denies. So
routes carry names only, and policies ride in filter configurations (ECDS), which are replaced under open connections.

A name stands for a list of policies, and for all that routes and filters must agree about: another list, authorizer or
reading of arguments is another name (`PolicyTags` says when another text is). Routes with a new name come after the
filters that know it, and filters know a name for a while after the routes have left it, so that on the way from one
configuration to the next a request meets the old policies or the new ones, and never some of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

from envoy.config.core.v3 import extension_pb2
from envoy.config.rbac.v3 import rbac_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.target import entries
from tierwall.engines.envoy.config.matchers import OnMatch, header, lookup, matcher, packed
from tierwall.engines.envoy.config.names import CHECKPOINT, SHARDS, SLOTS, SLOTS_PER_LEVEL, Slot
from tierwall.engines.envoy.config.rbac import CompiledPolicy, MatcherTrees, action
from tierwall.resources.resource import Resource

# What denies a request at a checkpoint that its filter does not know.
UNKNOWN = "Default"
# How many checkpoints are known that routes have left while not every proxy has; or as many as there are others.
MOST_RETIRED = 1000
# How many tags of policies that are gone are kept, besides one for each policy that stands.
MOST_GONE = 10_000
# What tells an object from others: group, kind, namespace and name.
Key = tuple[str, str, str, str]
# An object before and after; it came if there is none before, and is gone if there is none after.
Change = tuple[Resource | None, Resource | None]


class Checkpoint(Struct, frozen=True, eq=False):
    """The policies of one level on a way, in their order."""

    level: str
    name: str
    guards: tuple[CompiledPolicy, ...]
    # The slot of each policy, where there is room another first one than others have, and the filter in the shard.
    slots: tuple[Slot, ...]
    filters: tuple[str, ...]

    @classmethod
    def of(cls, level: str, identities: Iterable[object], guards: Iterable[CompiledPolicy]) -> Checkpoint:
        """A checkpoint named after its policies; an identity is what tells a policy from others, and has a `repr`."""
        kept = tuple(guards)
        known = blake2b(level.encode(), digest_size=8)
        for identity, guard in zip(identities, kept, strict=True):
            known.update(repr((identity, sorted(guard.arguments))).encode())
            known.update(guard.authorizer.value if guard.authorizer is not None else b"")
        shard, first = divmod(int.from_bytes(known.digest()), SLOTS_PER_LEVEL - len(kept) + 1)
        slots = tuple(Slot(level, first + number) for number in range(len(kept)))
        filters = tuple(slot.policy_filter(shard % SHARDS[level]) for slot in slots)
        return cls(level, known.hexdigest(), kept, slots, filters)

    def says(self, plain: bool) -> str:
        """What a route says to mean this checkpoint."""
        return f"{self.name}/http" if plain else self.name

    def settings(self) -> dict[str, Any]:
        """What a route through it says to filters: which are on, and whom the policies ask."""
        out: dict[str, Any] = {}
        for slot, name, guard in zip(self.slots, self.filters, self.guards, strict=True):
            out[name] = on()
            if guard.authorizer is not None:
                out[slot.authorizer_filter] = guard.authorizer
        return out


@cache
def on() -> Any:
    """A route's setting for a filter that is only to be turned on; Envoy reads it faster than any other."""
    out = route_components_pb2.FilterConfig()
    out.config.SetInParent()
    return packed(out)


def filter_names() -> Iterable[tuple[Slot, str]]:
    """Every slot with the filters of its shards, in the order of filters."""
    return ((slot, slot.policy_filter(shard)) for slot in SLOTS for shard in slot.shards)


class PolicyFilters(Struct, frozen=True, eq=False):
    """The checkpoints that filters know, and what the filters are; what has not changed is the same message."""

    passed: Mapping[str, Checkpoint] = {}
    # Checkpoints that routes have left, with the number of the compilation, until every proxy has taken it.
    retired: Mapping[str, tuple[int, Checkpoint]] = {}
    # By filter: its checkpoints by name with the policies that it has of them, and its configuration.
    shards: Mapping[str, tuple[tuple[tuple[str, CompiledPolicy], ...], Any]] = {}

    @classmethod
    def of(cls, passed: Mapping[str, Checkpoint]) -> PolicyFilters:
        """The filters of a compilation that follows none."""
        return cls().after(passed, number=1, acknowledged=0)

    @property
    def messages(self) -> Mapping[str, Any]:
        """The filter configurations, one for every filter."""
        return {name: message for name, (_, message) in self.shards.items()}

    def after(self, passed: Mapping[str, Checkpoint], number: int, acknowledged: int) -> PolicyFilters:
        """The filters of this compilation, whose routes pass these checkpoints; others may have left them not yet."""
        retired = {**self.retired, **{name: (number, checkpoint) for name, checkpoint in self.passed.items()}}
        kept = [
            (name, (since, checkpoint))
            for name, (since, checkpoint) in retired.items()
            if name not in passed and since > acknowledged
        ]
        retired = dict(kept[-max(MOST_RETIRED, len(passed)) :])
        return PolicyFilters(
            passed, retired, self._shards((*passed.values(), *(checkpoint for _, checkpoint in retired.values())))
        )

    def _shards(
        self, checkpoints: Iterable[Checkpoint]
    ) -> dict[str, tuple[tuple[tuple[str, CompiledPolicy], ...], Any]]:
        """Every filter; one without policies denies all."""
        by_filter: dict[str, list[tuple[str, CompiledPolicy]]] = {name: [] for _, name in filter_names()}
        for checkpoint in checkpoints:
            for name, guard in zip(checkpoint.filters, checkpoint.guards, strict=True):
                by_filter[name].append((checkpoint.name, guard))
        out = {}
        for slot, name in filter_names():
            policies = tuple(sorted(by_filter[name], key=lambda entry: entry[0]))
            shard = self.shards.get(name)
            if shard is None or shard[0] != policies:
                message = extension_pb2.TypedExtensionConfig(name=name)
                message.typed_config.CopyFrom(packed(_shard(slot, policies)))
                shard = policies, message
            out[name] = shard
        return out


def _shard(slot: Slot, policies: Iterable[tuple[str, CompiledPolicy]]) -> Any:
    """The filter of a shard: by checkpoint, what the policy in this slot decides and asks about."""
    out = rbac_filter_pb2.RBAC(rules_stat_prefix=slot.prefix, shadow_rules_stat_prefix=slot.prefix)
    trees: dict[str, MatcherTrees] = {}
    for name, guard in policies:
        trees[name] = guard.mcp
        trees[f"{name}/http"] = guard.plain
    asked: dict[str, OnMatch] = {name: tree.asked for name, tree in trees.items() if tree.asked is not None}
    decisions = {name: tree.decision for name, tree in trees.items()}
    where = header(CHECKPOINT[slot.level])
    out.matcher.CopyFrom(matcher(lookup(where, decisions, action(UNKNOWN, rbac_pb2.RBAC.DENY))))
    if asked:
        out.shadow_matcher.CopyFrom(matcher(lookup(where, asked, None)))
    return out


def digest(policy: Resource, after: str = "") -> str:
    """The tag of a policy that follows on another tag; on none, a control plane that starts anew gives the same."""
    text = repr((after, policy.version, policy.spec)).encode(errors="surrogatepass")
    return blake2b(text, digest_size=8).hexdigest()


class PolicyTags(Struct, frozen=True, eq=False):
    """What stands for the text of each policy in the names of checkpoints.

    A policy whose text alone changes keeps its tag, and so its checkpoints' names: the filter that has it is replaced,
    and no route. Where more than one object changes, or a policy gets other targets, policies that do get a new tag, so
    that their checkpoints get new names and the routes switch to all that is new at once; else a restriction that moves
    from one policy to another could be in neither for a moment. So does a policy that changes before all proxies have
    taken the last change of any other object, also of one that comes or goes: they may get both together.
    """

    by_policy: Mapping[Key, str] = {}
    # Objects that changed, with the number of the compilation, until every proxy has taken it.
    unacknowledged: Mapping[Key, int] = {}
    # Policies whose tags are not the digests of their texts.
    noncanonical: frozenset[Key] = frozenset()

    def after(self, changes: Sequence[Change], number: int, acknowledged: int) -> PolicyTags:
        """The tags of this compilation, in which texts changed; every proxy has taken the one that is settled."""
        unacknowledged = {key: since for key, since in self.unacknowledged.items() if since > acknowledged}
        changed = {resource.identity: resource for old, new in changes if (resource := new or old) is not None}
        # INVARIANT: a name keeps its meaning but for the text of one policy, from the last state that every proxy has.
        keeps = len(changed | unacknowledged) == 1 and all(_stays(old, new) for old, new in changes)
        known = self.by_policy
        if not keeps:
            # Follows on the old tag, so that a text that comes back is still another.
            known = {**known, **{key: digest(policy, known[key]) for key, policy in changed.items() if key in known}}
        return PolicyTags(
            known,
            {**unacknowledged, **dict.fromkeys(changed, number)},
            self.noncanonical | (changed.keys() & known.keys()),
        )

    def canonical(self, policies: Mapping[Key, Resource], number: int) -> PolicyTags:
        """The tags that the texts of the policies that stand give by themselves."""
        known, unacknowledged = dict(self.by_policy), dict(self.unacknowledged)
        for key in self.noncanonical:
            if key in policies:
                known[key] = digest(policies[key])
                unacknowledged[key] = number
            else:
                known.pop(key, None)
        return PolicyTags(known, unacknowledged)

    def keeping(self, known: Mapping[Key, str], policies: Iterable[Key]) -> PolicyTags:
        """The same with all tags that a compilation knows; those of policies that went may come back, for a while."""
        in_use = set(policies)
        if len(known) > 2 * len(in_use) + MOST_GONE:
            known = {key: tag for key, tag in known.items() if key in in_use}
        return replace(self, by_policy=known)


def _stays(old: Resource | None, new: Resource | None) -> bool:
    """Whether an object stands where it stood, whatever it says now."""
    if old is None or new is None:
        return False
    return old.seniority == new.seniority and list(entries(old)) == list(entries(new))
