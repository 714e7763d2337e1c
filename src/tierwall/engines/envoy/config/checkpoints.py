"""Checkpoints: the policies of one level on a way. Routes name the checkpoints, and filters hold their policies.

A route names one checkpoint per level in a header, and turns on one filter for each policy of the checkpoint. A filter
looks the checkpoint up and goes on with the tree of its policy. It denies requests at a checkpoint that it does not
know. So routes carry only names. The policies are in filter configurations (ECDS), which Envoy replaces under open
connections.

A name stands for a list of policies and for everything that routes and filters must agree on. Another list, another
authorizer, other arguments or headers, or a first rule about paths give another name; `PolicyTags` says when other
policy content does. Routes with a new name are sent after the filters that know it, and filters keep a name for a while
after routes have dropped it. While Envoy goes from one configuration to the next, a request therefore meets the old
policies or the new ones, never a mix.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from envoy.config.core.v3 import extension_pb2
from envoy.config.rbac.v3 import rbac_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.closing import NO_SCOPE, closing_scope
from tierwall.attach.target import entries
from tierwall.engines.envoy.config.matchers import OnMatch, header, lookup, matcher, packed
from tierwall.engines.envoy.config.names import CHECKPOINT, SHARDS, SLOTS, SLOTS_PER_LEVEL, Slot
from tierwall.engines.envoy.config.rbac import CompiledPolicy, MatcherTrees, action
from tierwall.resources.resource import Identity, Resource

# The name of the denial of a request at a checkpoint that its filter does not know.
UNKNOWN = "Default"
# The most retired checkpoints that filters keep, or as many as are in use if those are more.
MAX_RETIRED = 1000
# The most tags of deleted policies to keep, besides one for each policy in use.
MAX_DELETED = 10_000
# An object before and after a change; None before if it is new, None after if it was deleted.
Change = tuple[Resource | None, Resource | None]


class Checkpoint(Struct, frozen=True, eq=False):
    """The policies of one level on a way, in their order."""

    level: str
    name: str
    policies: tuple[CompiledPolicy, ...]
    # The slot of each policy, and its filter in the shard. Checkpoints start at different slots where there is room.
    slots: tuple[Slot, ...]
    filters: tuple[str, ...]

    @classmethod
    def of(cls, level: str, identities: Iterable[object], policies: Iterable[CompiledPolicy]) -> Checkpoint:
        """Return a checkpoint named after its policies; the `repr` of an identity distinguishes policies."""
        policies = tuple(policies)
        content = blake2b(level.encode(), digest_size=8)
        for identity, policy in zip(identities, policies, strict=True):
            content.update(repr((identity, sorted(policy.arguments), policy.reads_path)).encode())
            content.update(policy.authorizer.value if policy.authorizer is not None else b"")
            content.update("".join(f"\0{name}" for name in sorted(policy.headers)).encode())
        shard, first = divmod(int.from_bytes(content.digest()), SLOTS_PER_LEVEL - len(policies) + 1)
        slots = tuple(Slot(level, first + number) for number in range(len(policies)))
        filters = tuple(slot.policy_filter(shard % SHARDS[level]) for slot in slots)
        return cls(level, content.hexdigest(), policies, slots, filters)

    def header(self, plain: bool) -> str:
        """Return the header value by which a route names this checkpoint."""
        return f"{self.name}/http" if plain else self.name

    def settings(self) -> dict[str, Any]:
        """Return the filter settings of a route through it: the filters that are on, and the services to ask."""
        out: dict[str, Any] = {}
        for slot, name, policy in zip(self.slots, self.filters, self.policies, strict=True):
            out[name] = on()
            if policy.authorizer is not None:
                out[slot.authorizer_filter] = policy.authorizer
        return out


@cache
def on() -> Any:
    """Return the route setting that only turns a filter on; Envoy parses it faster than any other."""
    out = route_components_pb2.FilterConfig()
    out.config.SetInParent()
    return packed(out)


def filter_names() -> Iterable[tuple[Slot, str]]:
    """Return every slot with the filter of each of its shards, in filter order."""
    return ((slot, slot.policy_filter(shard)) for slot in SLOTS for shard in slot.shards)


class PolicyFilters(Struct, frozen=True, eq=False):
    """The checkpoints that filters know, and the filters themselves. An unchanged filter stays the same message."""

    passed: Mapping[str, Checkpoint] = {}
    # Checkpoints that routes no longer name, with the compilation that dropped them, until every proxy acknowledges it.
    retired: Mapping[str, tuple[int, Checkpoint]] = {}
    # By filter: its policies with their checkpoint names, and its configuration.
    shards: Mapping[str, tuple[tuple[tuple[str, CompiledPolicy], ...], Any]] = {}
    # The compilation since which each checkpoint has had its policies.
    began: Mapping[str, int] = {}

    @classmethod
    def of(cls, passed: Mapping[str, Checkpoint]) -> PolicyFilters:
        """Return the filters of a first compilation."""
        return cls().after(passed, number=1, acknowledged=0)

    @property
    def messages(self) -> Mapping[str, Any]:
        """The filter configurations, by filter name."""
        return {name: message for name, (_, message) in self.shards.items()}

    def after(
        self,
        passed: Mapping[str, Checkpoint],
        number: int,
        acknowledged: int,
        refused: Collection[Identity] = (),
        counts: bool = False,
    ) -> PolicyFilters:
        """Return the filters for routes that pass these checkpoints; proxies may still use earlier ones.

        Earlier checkpoints of policies that Envoy refuses are dropped: it would refuse the filters with them again.
        `counts` lets Envoy count the verdicts of every rule (`metrics`); it is the same in all compilations.
        """
        retired = {**self.retired, **{name: (number, checkpoint) for name, checkpoint in self.passed.items()}}
        kept = [
            (name, (since, checkpoint))
            for name, (since, checkpoint) in retired.items()
            if name not in passed
            and since > acknowledged
            and not (refused and any(policy.policy in refused for policy in checkpoint.policies))
        ]
        retired = dict(kept[-max(MAX_RETIRED, len(passed)) :])
        shards = self._shards((*passed.values(), *(checkpoint for _, checkpoint in retired.values())), counts)
        began = {
            name: self.began[name] if before is not None and before.policies == checkpoint.policies else number
            for name, checkpoint in passed.items()
            for before in (self.passed.get(name),)
        }
        return PolicyFilters(passed, retired, shards, {name: self.began[name] for name in retired} | began)

    def unaccepted(self, acknowledged: int) -> frozenset[str]:
        """Return the retired checkpoints that not every proxy has accepted with their policies."""
        return frozenset(name for name in self.retired if self.began[name] > acknowledged)

    def without(self, dropped: Collection[str]) -> PolicyFilters:
        """Return the filters for the next compilation, without some retired checkpoints."""
        return replace(self, retired={name: item for name, item in self.retired.items() if name not in dropped})

    def _shards(
        self, checkpoints: Iterable[Checkpoint], counts: bool
    ) -> dict[str, tuple[tuple[tuple[str, CompiledPolicy], ...], Any]]:
        """Return every filter. A filter without policies denies everything."""
        by_filter: dict[str, list[tuple[str, CompiledPolicy]]] = {name: [] for _, name in filter_names()}
        for checkpoint in checkpoints:
            for name, policy in zip(checkpoint.filters, checkpoint.policies, strict=True):
                by_filter[name].append((checkpoint.name, policy))
        out = {}
        for slot, name in filter_names():
            policies = tuple(sorted(by_filter[name], key=itemgetter(0)))
            shard = self.shards.get(name)
            if shard is None or shard[0] != policies:
                message = extension_pb2.TypedExtensionConfig(name=name)
                message.typed_config.CopyFrom(packed(_shard(slot, policies, counts)))
                shard = policies, message
            out[name] = shard
        return out


def _shard(slot: Slot, policies: Iterable[tuple[str, CompiledPolicy]], counts: bool) -> Any:
    """Return the filter of a shard: by checkpoint, the decision of the policy in this slot and what it asks about."""
    out = rbac_filter_pb2.RBAC(rules_stat_prefix=slot.prefix, shadow_rules_stat_prefix=slot.prefix)
    out.track_per_rule_stats = counts
    trees: dict[str, MatcherTrees] = {}
    for name, policy in policies:
        trees[name] = policy.mcp
        trees[f"{name}/http"] = policy.plain
    asked: dict[str, OnMatch] = {name: tree.asked for name, tree in trees.items() if tree.asked is not None}
    decisions = {name: tree.decision for name, tree in trees.items()}
    checkpoint = header(CHECKPOINT[slot.level])
    out.matcher.CopyFrom(matcher(lookup(checkpoint, decisions, action(UNKNOWN, rbac_pb2.RBAC.DENY))))
    if asked:
        out.shadow_matcher.CopyFrom(matcher(lookup(checkpoint, asked, None)))
    return out


def digest(policy: Resource, after: str = "") -> str:
    """Return the tag of a policy, derived from its content and an earlier tag.

    Without an earlier tag the result is canonical: a restarted control plane gives the same, and so does one that reads
    the policy from a file with its keys in another order.
    """
    text = json.dumps((after, policy.version, policy.spec), sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


class PolicyTags(Struct, frozen=True, eq=False):
    """The tag of each policy: it stands for the policy's content in checkpoint names.

    If the content of a single policy changes and nothing else, the policy keeps its tag, and its checkpoints keep their
    names: only its filter is replaced, no route. If several objects change, or a policy gets other targets, every
    changed policy gets a new tag. Its checkpoints then get new names, and routes switch to all that is new at once.
    Otherwise a restriction that moves from one policy to another could be in neither for a moment.

    A policy also gets a new tag if it changes before all proxies have acknowledged the last change, creation or
    deletion of another object: they may receive both changes together.
    """

    by_policy: Mapping[Identity, str] = {}
    # Changed objects with the number of the compilation, until every proxy has acknowledged it.
    unacknowledged: Mapping[Identity, int] = {}
    # Policies whose tag is not the digest of their content.
    noncanonical: frozenset[Identity] = frozenset()

    def after(self, changes: Sequence[Change], number: int, acknowledged: int) -> PolicyTags:
        """Return the tags of a compilation with these changes; `acknowledged` is the last one that every proxy has."""
        unacknowledged = {key: since for key, since in self.unacknowledged.items() if since > acknowledged}
        changed = {resource.identity: resource for old, new in changes if (resource := new or old) is not None}
        # INVARIANT: compared to the last state that every proxy has, a name keeps its meaning, except that the content
        # of one policy may have changed.
        keeps = len(changed | unacknowledged) == 1 and all(_stays(old, new) for old, new in changes)
        known = self.by_policy
        if not keeps:
            # Derived from the old tag, so that content that comes back still gets a new tag.
            known = {**known, **{key: digest(policy, known[key]) for key, policy in changed.items() if key in known}}
        return PolicyTags(
            known,
            {**unacknowledged, **dict.fromkeys(changed, number)},
            self.noncanonical | (changed.keys() & known.keys()),
        )

    def canonical(self, policies: Mapping[Identity, Resource], number: int) -> PolicyTags:
        """Return the tags with the digest of its content for each of these policies."""
        known, unacknowledged = dict(self.by_policy), dict(self.unacknowledged)
        for key in self.noncanonical:
            if key in policies:
                known[key] = digest(policies[key])
                unacknowledged[key] = number
            else:
                known.pop(key, None)
        return PolicyTags(known, unacknowledged)

    def keeping(self, known: Mapping[Identity, str], policies: Iterable[Identity]) -> PolicyTags:
        """Return the same with these tags. Tags of deleted policies are kept for a while, as policies may come back."""
        in_use = set(policies)
        if len(known) > 2 * len(in_use) + MAX_DELETED:
            known = {key: tag for key, tag in known.items() if key in in_use}
        return replace(self, by_policy=known)


def _stays(old: Resource | None, new: Resource | None) -> bool:
    """Whether an object keeps its targets and its precedence, whatever else changes."""
    if old is None or new is None:
        return False
    # Where targets cannot be read, it depends on the whole policy what it closes.
    if closing_scope(old) is not NO_SCOPE or closing_scope(new) is not NO_SCOPE:
        return False
    return old.seniority == new.seniority and list(entries(old)) == list(entries(new))
