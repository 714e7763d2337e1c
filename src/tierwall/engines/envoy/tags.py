"""What stands for the text of a policy in the names of checkpoints.

A policy whose text alone changes keeps its tag, and so its checkpoints' names: the filter that has it is replaced, and
no route. Where more than one object changes, or a policy gets other targets, policies that do get a new tag, so that
their checkpoints get new names and the routes switch to all that is new at once; else a restriction that moves from one
policy to another could be in neither for a moment. So does a policy that changes before all proxies have taken the last
change of any other object, also of one that comes or goes: they may get both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from tierwall.attach.target import entries
from tierwall.resources.resource import Resource

# How many tags of policies that are gone are kept, besides one for each policy that stands.
MOST_GONE = 10_000

# What tells an object from others: group, kind, namespace and name.
Key = tuple[str, str, str, str]
# An object before and after; it came if there is none before, and is gone if there is none after.
Change = tuple[Resource | None, Resource | None]


def key_of(resource: Resource) -> Key:
    """What tells an object from others."""
    return resource.group, resource.kind, resource.namespace, resource.name


def digest(policy: Resource, after: str = "") -> str:
    """The tag of a policy that follows on another tag; on none, a control plane that starts anew gives the same."""
    text = repr((after, policy.version, policy.spec)).encode(errors="surrogatepass")
    return blake2b(text, digest_size=8).hexdigest()


class Tags(Struct, frozen=True, eq=False):
    """The tags of policies, and what decides whether they stay when a policy changes."""

    by_policy: Mapping[Key, str] = {}
    # Objects that changed, with the number of the compilation, until every proxy has taken it.
    unsettled: Mapping[Key, int] = {}
    # Policies whose tags are not the digests of their texts.
    drifted: frozenset[Key] = frozenset()

    def after(self, changes: Sequence[Change], number: int, settled: int) -> Tags:
        """The tags of this compilation, in which texts changed; every proxy has taken the one that is settled."""
        unsettled = {key: since for key, since in self.unsettled.items() if since > settled}
        changed = {key_of(new_or_old): new_or_old for old, new in changes if (new_or_old := new or old) is not None}
        # INVARIANT: a name keeps its meaning but for the text of one policy, from the last state that every proxy has.
        keeps = len(changed | unsettled) == 1 and all(_stays(old, new) for old, new in changes)
        known = self.by_policy
        if not keeps:
            # Follows on the old tag, so that a text that comes back is still another.
            known = {**known, **{key: digest(one, known[key]) for key, one in changed.items() if key in known}}
        return Tags(
            known, {**unsettled, **dict.fromkeys(changed, number)}, self.drifted | (changed.keys() & known.keys())
        )

    def straight(self, policies: Mapping[Key, Resource], number: int) -> Tags:
        """The tags that the texts of the policies that stand give by themselves."""
        known, unsettled = dict(self.by_policy), dict(self.unsettled)
        for key in self.drifted:
            if key in policies:
                known[key] = digest(policies[key])
                unsettled[key] = number
            else:
                known.pop(key, None)
        return Tags(known, unsettled)

    def keeping(self, known: Mapping[Key, str], policies: Iterable[Key]) -> Tags:
        """The same with all tags that a compilation knows; those of policies that went may come back, for a while."""
        standing = set(policies)
        if len(known) > 2 * len(standing) + MOST_GONE:
            known = {key: tag for key, tag in known.items() if key in standing}
        return replace(self, by_policy=known)


def _stays(old: Resource | None, new: Resource | None) -> bool:
    """Whether an object stands where it stood, whatever it says now."""
    if old is None or new is None:
        return False
    return old.seniority == new.seniority and list(entries(old)) == list(entries(new))
