"""Where policies stand: the policies of one level on a way are a checkpoint, and filters know many checkpoints.

A route says in a header which checkpoint of each level its requests pass, and turns on one filter for each policy of
it. A filter looks the checkpoint up and goes on with the tree of the policy; one that it does not know, it denies. So
routes carry names only, and policies ride in filter configurations (ECDS), which are replaced under open connections.

A name stands for a list of policies, and for all that routes and filters must agree about: another list, authorizer or
reading of arguments is another name (`tags` says when another text is). Routes with a new name come after the filters
that know it, and filters know a name for a while after the routes have left it, so that on the way from one
configuration to the next a request meets the old policies or the new ones, and never some of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

from envoy.config.core.v3 import extension_pb2
from envoy.config.rbac.v3 import rbac_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from msgspec import Struct

from tierwall.engines.envoy.matchers import OnMatch, header, lookup, matcher, packed
from tierwall.engines.envoy.names import CHECKPOINT, SHARDS, SLOTS, SLOTS_PER_LEVEL, Slot
from tierwall.engines.envoy.rbac import Guard, Trees, action

# What denies a request at a checkpoint that its filter does not know.
UNKNOWN = "Default"
# How many checkpoints are known that routes have left while not every proxy has; or as many as there are others.
MOST_LEFT = 1000


class Checkpoint(Struct, frozen=True, eq=False):
    """The policies of one level on a way, in their order."""

    level: str
    name: str
    guards: tuple[Guard, ...]
    # The slot of each policy, where there is room another first one than others have, and the filter in the shard.
    slots: tuple[Slot, ...]
    filters: tuple[str, ...]

    @classmethod
    def of(cls, level: str, identities: Iterable[object], guards: Iterable[Guard]) -> Checkpoint:
        """A checkpoint named after its policies; an identity is what tells a policy from others, and has a `repr`."""
        kept = tuple(guards)
        known = blake2b(level.encode(), digest_size=8)
        for identity, one in zip(identities, kept, strict=True):
            known.update(repr((identity, sorted(one.arguments))).encode())
            known.update(one.authorizer.value if one.authorizer is not None else b"")
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
        for slot, name, one in zip(self.slots, self.filters, self.guards, strict=True):
            out[name] = on()
            if one.authorizer is not None:
                out[slot.authorizer_filter] = one.authorizer
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


class Filters(Struct, frozen=True, eq=False):
    """The checkpoints that filters know, and what the filters are; what has not changed is the same message."""

    passed: Mapping[str, Checkpoint] = {}
    # Checkpoints that routes have left, with the number of the compilation, until every proxy has taken it.
    left: Mapping[str, tuple[int, Checkpoint]] = {}
    # By filter: its checkpoints by name with the policies that it has of them, and its configuration.
    shards: Mapping[str, tuple[tuple[tuple[str, Guard], ...], Any]] = {}

    @classmethod
    def of(cls, passed: Mapping[str, Checkpoint]) -> Filters:
        """The filters of a compilation that follows none."""
        return cls().after(passed, number=1, settled=0)

    @property
    def messages(self) -> Mapping[str, Any]:
        """The filter configurations, one for every filter."""
        return {name: message for name, (_, message) in self.shards.items()}

    def after(self, passed: Mapping[str, Checkpoint], number: int, settled: int) -> Filters:
        """The filters of this compilation, whose routes pass these checkpoints; others may have left them not yet."""
        left = {**self.left, **{name: (number, checkpoint) for name, checkpoint in self.passed.items()}}
        kept = [
            (name, (since, checkpoint))
            for name, (since, checkpoint) in left.items()
            if name not in passed and since > settled
        ]
        left = dict(kept[-max(MOST_LEFT, len(passed)) :])
        return Filters(passed, left, self._shards((*passed.values(), *(checkpoint for _, checkpoint in left.values()))))

    def _shards(self, checkpoints: Iterable[Checkpoint]) -> dict[str, tuple[tuple[tuple[str, Guard], ...], Any]]:
        """Every filter; one without policies denies all."""
        by_filter: dict[str, list[tuple[str, Guard]]] = {name: [] for _, name in filter_names()}
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


def _shard(slot: Slot, policies: Iterable[tuple[str, Guard]]) -> Any:
    """The filter of a shard: by checkpoint, what the policy in this slot decides and asks about."""
    out = rbac_filter_pb2.RBAC(rules_stat_prefix=slot.prefix, shadow_rules_stat_prefix=slot.prefix)
    trees: dict[str, Trees] = {}
    for name, guard in policies:
        trees[name] = guard.mcp
        trees[f"{name}/http"] = guard.plain
    asked: dict[str, OnMatch] = {name: one.asked for name, one in trees.items() if one.asked is not None}
    decisions = {name: one.decision for name, one in trees.items()}
    where = header(CHECKPOINT[slot.level])
    out.matcher.CopyFrom(matcher(lookup(where, decisions, action(UNKNOWN, rbac_pb2.RBAC.DENY))))
    if asked:
        out.shadow_matcher.CopyFrom(matcher(lookup(where, asked, None)))
    return out
