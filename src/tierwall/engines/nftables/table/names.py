"""Names, comments and labels of the table.

A chain or set is named by a digest of what it stands for, so that the same policies always give the same names and
two parts that mean the same are one. User text never becomes an identifier; in comments it is reduced to harmless
characters and to the length that nftables takes.

A label says whose rule a counter or a log line belongs to: `Deny egress[0] AdminNetworkPolicy/guard (deny-finance)` is
what the rule does, where it stands, whose it is, and its own name where it has one. A drop by isolation names every
isolating policy: `Deny ingress:spec NetworkPolicy/shop/a, NetworkPolicy/shop/b`. The audit runs in another process and
knows only what the kernel keeps of these texts, which is 127 octets of each: a name that does not fit is shortened, and
left out where there is no room for a part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from tierwall.core.answer import Decider
from tierwall.core.reference import Reference
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy

# nftables takes 128 octets with the closing zero.
MOST_COMMENT = 127
# A log prefix has the same limit in the kernel (NF_LOG_PREFIXLEN).
MOST_PREFIX = 127

_HARMFUL = re.compile(r"[^A-Za-z0-9 /._:;,()\[\]#=!*+-]")
_SHORT, _STEP = 12, 8


class UniqueNames:
    """Gives each meaning its own name; two meanings never share one, even if someone seeks collisions."""

    def __init__(self) -> None:
        self._meanings: dict[str, str] = {}

    def name(self, kind: str, meaning: str) -> str:
        """`kind_<digest>`."""
        digest = hashlib.sha256(meaning.encode(errors="surrogatepass")).hexdigest()
        for length in range(_SHORT, len(digest) + 1, _STEP):
            name = f"{kind}_{digest[:length]}"
            if self._meanings.setdefault(name, meaning) == meaning:
                return name
        raise AssertionError("two texts with one SHA-256 digest")


def comment(text: str, most: int = MOST_COMMENT) -> str:
    """A text fit for a comment; one that is too long keeps its start and gets a digest of the whole."""
    clean = _HARMFUL.sub("?", text)
    if len(clean) <= most:
        return clean
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{clean[: most - 9]}+{digest}"


def marked(rules: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Rules with a digest of them as the comment of the first, and their mark."""
    lines = tuple(rules)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_SHORT]
    return (f'{lines[0]} comment "{digest}"', *lines[1:]), f"{digest} {len(lines)}"


# Stands before the action where a policy in shadow mode would have done so.
SHADOW = "Shadow"
# The rule of a drop by isolation: no rule allowed it, and the whole policy denies all else.
ISOLATES = "spec"
# A shortened name is of use with this many characters, the digest among them.
_SHORTEST = 16
_SEPARATOR = ", "
_FORM = re.compile(
    rf"(?P<shadow>{SHADOW})?(?P<action>{'|'.join(RuleAction)})"
    rf" (?P<direction>{'|'.join(Direction)})(?P<rule>\[\d+\]|:{ISOLATES})"
    r" (?P<policies>[^ ]+(?:, [^ ]+)*?)(?: \((?P<name>.*)\))?"
)


class Label(NamedTuple):
    """What a rule does and who it belongs to; isolation belongs to several policies."""

    action: RuleAction
    direction: Direction
    decided_by: tuple[Decider, ...]
    shadow: bool = False

    @classmethod
    def of_rule(cls, rule: NetworkRule, shadow: bool = False) -> Label:
        """The label of a policy's rule."""
        return cls(rule.action, rule.direction, (rule.decider,), shadow)

    @classmethod
    def of_isolation(cls, direction: Direction, policies: Iterable[TieredPolicy], shadow: bool = False) -> Label:
        """The label of what policies drop together because no rule of theirs allows it."""
        return cls(RuleAction.DENY, direction, tuple(policy.decider for policy in policies), shadow)

    @classmethod
    def parse(cls, text: str) -> Label | None:
        """Read a label back; None if the text is not one."""
        fields = _FORM.fullmatch(text)
        if fields is None:
            return None
        direction = Direction(fields["direction"])
        rule = ISOLATES if fields["rule"] == f":{ISOLATES}" else f"{direction}{fields['rule']}"
        policies = fields["policies"].split(_SEPARATOR)
        decided_by = tuple(Decider(Reference.or_text(policy), rule, fields["name"]) for policy in policies)
        return cls(RuleAction(fields["action"]), direction, decided_by, bool(fields["shadow"]))

    @property
    def meaning(self) -> str:
        """The whole label, however long: two labels that differ here are two rules."""
        return f"{self._head} {self._policies}" + (f" ({self._name})" if self._name else "")

    def text(self, most: int = MOST_COMMENT, lead: str = "") -> str:
        """The label in so many characters."""
        return _with_name(comment(f"{lead}{self._head} {self._policies}", most), self._name, most)

    def remark(self) -> str:
        """The comment of an nftables rule: policies, place and name, as answers write them."""
        return _with_name(comment(f"{self._policies} {self.decided_by[0].rule}"), self._name, MOST_COMMENT)

    def owners(self) -> tuple[str, ...]:
        """One comment each for the policies and the name, for where they do not fit into one."""
        name = (f"({comment(self._name, MOST_COMMENT - 2)})",) if self._name else ()
        return (*(comment(_word(decider)) for decider in self.decided_by), *name)

    def owned_by(self, owners: Iterable[str]) -> Label:
        """This label with the policies and the name that `owners` wrote."""
        name: str | None = None
        policies: list[str] = []
        for owner in owners:
            if owner.startswith("("):
                name = owner[1:-1]
            else:
                policies.append(owner)
        rule = self.decided_by[0].rule
        return self._replace(decided_by=tuple(Decider(Reference.or_text(policy), rule, name) for policy in policies))

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


def may_be_shortened(text: str, most: int) -> bool:
    """Whether a label in so many characters may have lost some, or its name."""
    return len(text) + len(" ()") + _SHORTEST > most


def _word(decider: Decider) -> str:
    """A policy as it stands in labels: what separates words there is not a part of it."""
    return comment(str(decider.policy)).replace(" ", "?").replace(",", "?")


def _with_name(text: str, name: str, most: int) -> str:
    room = most - len(text) - len(" ()")
    if not name or room < min(len(name), _SHORTEST):
        return text
    return f"{text} ({comment(name, room)})"
