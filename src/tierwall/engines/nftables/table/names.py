"""Names, comments and labels of the table.

A chain or set is named by a digest of its meaning. The same policies always give the same names, and two parts with the
same meaning become one. A string from a user never becomes an identifier; in a comment it is reduced to harmless
characters and to the length that nftables accepts.

A label says which rule a counter or a log line belongs to. In `Deny egress[0] AdminNetworkPolicy/guard (deny-finance)`
it gives the action, the place of the rule, its policy, and the rule's name if it has one. A drop by isolation names
every isolating policy: `Deny ingress:spec NetworkPolicy/shop/a, NetworkPolicy/shop/b`. The audit runs in another
process and sees only what the kernel keeps: 127 bytes of each label. A name that does not fit is shortened, or left out
where not even a part of it fits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from tierwall.core.answer import Decider
from tierwall.core.reference import Reference
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy

# nftables accepts 128 bytes including the closing zero.
MAX_COMMENT_BYTES = 127
# The kernel has the same limit for a log prefix (NF_LOG_PREFIXLEN).
MAX_PREFIX_BYTES = 127

_HARMFUL = re.compile(r"[^A-Za-z0-9 /._:;,()\[\]#=!*+-]")
_SHORT, _STEP = 12, 8


class UniqueNames:
    """Gives each meaning its own name. Two meanings never share a name, even if someone searches for collisions."""

    def __init__(self) -> None:
        self._meanings: dict[str, str] = {}

    def name(self, kind: str, meaning: str) -> str:
        """Return `kind_<digest>` for a meaning."""
        digest = hashlib.sha256(meaning.encode(errors="surrogatepass")).hexdigest()
        for length in range(_SHORT, len(digest) + 1, _STEP):
            name = f"{kind}_{digest[:length]}"
            if self._meanings.setdefault(name, meaning) == meaning:
                return name
        raise AssertionError("two strings with the same SHA-256 digest")


def comment(string: str, limit: int = MAX_COMMENT_BYTES) -> str:
    """Make a string fit for a comment. If it is too long, keep its start and append a digest of the whole string."""
    clean = _HARMFUL.sub("?", string)
    if len(clean) <= limit:
        return clean
    digest = hashlib.sha256(string.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{clean[: limit - 9]}+{digest}"


def with_digest(rules: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return rules with their digest as the comment of the first, and the mark that stands for them."""
    lines = tuple(rules)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_SHORT]
    return (f'{lines[0]} comment "{digest}"', *lines[1:]), f"{digest} {len(lines)}"


# Prefix of the action of a policy in shadow mode, which only would have acted.
SHADOW = "Shadow"
# The rule of a drop by isolation: no rule allowed the connection, and the policy as a whole denies the rest.
ISOLATES = "spec"
# A shortened name, including its digest, is useful from this many characters on.
_SHORTEST = 16
_SEPARATOR = ", "
_FORM = re.compile(
    rf"(?P<shadow>{SHADOW})?(?P<action>{'|'.join(RuleAction)})"
    rf" (?P<direction>{'|'.join(Direction)})(?P<rule>\[\d+\]|:{ISOLATES})"
    r" (?P<policies>[^ ]+(?:, [^ ]+)*?)(?: \((?P<name>.*)\))?"
)


class Label(NamedTuple):
    """The action of a rule and the policies it belongs to; isolation belongs to several policies."""

    action: RuleAction
    direction: Direction
    decided_by: tuple[Decider, ...]
    shadow: bool = False

    @classmethod
    def of_rule(cls, rule: NetworkRule, shadow: bool = False) -> Label:
        """Return the label of a policy's rule."""
        return cls(rule.action, rule.direction, (rule.decider,), shadow)

    @classmethod
    def of_isolation(cls, direction: Direction, policies: Iterable[TieredPolicy], shadow: bool = False) -> Label:
        """Return the label of a drop by isolation, which several policies share."""
        return cls(RuleAction.DENY, direction, tuple(policy.decider for policy in policies), shadow)

    @classmethod
    def parse(cls, string: str) -> Label | None:
        """Read a label back; None if the string is not a label."""
        fields = _FORM.fullmatch(string)
        if fields is None:
            return None
        direction = Direction(fields["direction"])
        rule = ISOLATES if fields["rule"] == f":{ISOLATES}" else f"{direction}{fields['rule']}"
        policies = fields["policies"].split(_SEPARATOR)
        decided_by = tuple(Decider(Reference.parse_or_string(policy), rule, fields["name"]) for policy in policies)
        return cls(RuleAction(fields["action"]), direction, decided_by, bool(fields["shadow"]))

    @property
    def meaning(self) -> str:
        """The whole label, however long: labels of two rules always differ here."""
        return f"{self._head} {self._policies}" + (f" ({self._name})" if self._name else "")

    def shortened(self, limit: int = MAX_COMMENT_BYTES, lead: str = "") -> str:
        """Return the label, cut to so many characters."""
        return _with_name(comment(f"{lead}{self._head} {self._policies}", limit), self._name, limit)

    def remark(self) -> str:
        """Return the comment of an nftables rule: policies, place and name, as answers write them."""
        return _with_name(comment(f"{self._policies} {self.decided_by[0].rule}"), self._name, MAX_COMMENT_BYTES)

    def owners(self) -> tuple[str, ...]:
        """Return one comment per policy and one for the name, for labels that do not fit in a single comment."""
        name = (f"({comment(self._name, MAX_COMMENT_BYTES - 2)})",) if self._name else ()
        return (*(comment(_word(decider)) for decider in self.decided_by), *name)

    def owned_by(self, owners: Iterable[str]) -> Label:
        """Return this label with the policies and the name that `owners` wrote."""
        name: str | None = None
        policies: list[str] = []
        for owner in owners:
            if owner.startswith("("):
                name = owner[1:-1]
            else:
                policies.append(owner)
        rule = self.decided_by[0].rule
        return self._replace(
            decided_by=tuple(Decider(Reference.parse_or_string(policy), rule, name) for policy in policies)
        )

    @property
    def _head(self) -> str:
        rule = self.decided_by[0].rule
        place = f"{self.direction}:{ISOLATES}" if rule == ISOLATES else rule
        return f"{SHADOW if self.shadow else ''}{self.action} {place}"

    @property
    def _policies(self) -> str:
        return _SEPARATOR.join(map(_word, self.decided_by))

    @property
    def _name(self) -> str:
        return self.decided_by[0].name or ""


def may_be_shortened(string: str, limit: int) -> bool:
    """Whether a label limited to so many characters may have lost characters or its name."""
    return len(string) + len(" ()") + _SHORTEST > limit


def _word(decider: Decider) -> str:
    """Write a policy as one word of a label: without the characters that separate words there."""
    return comment(str(decider.policy)).replace(" ", "?").replace(",", "?")


def _with_name(string: str, name: str, limit: int) -> str:
    room = limit - len(string) - len(" ()")
    if not name or room < min(len(name), _SHORTEST):
        return string
    return f"{string} ({comment(name, room)})"
