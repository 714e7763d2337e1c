"""How the table says whose rule a counter or a log line belongs to, and how that is read back.

`Deny egress[0] AdminNetworkPolicy/guard (deny-finance)`: what the rule does, where it stands, whose it is, and its own
name where it has one. A drop by isolation names every isolating policy:
`Deny ingress:spec NetworkPolicy/shop/a, NetworkPolicy/shop/b`.

The audit runs in another process and knows only what the kernel keeps of these texts, which is 127 octets of each: a
name that does not fit is shortened, and left out where there is no room for a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tierwall.core.answer import Decider
from tierwall.core.reference import Reference
from tierwall.engines.nftables.names import MOST_COMMENT, comment
from tierwall.network.model.rules import Action, Direction, Policy, Rule

# Stands before the action where a policy in shadow mode would have done so.
SHADOW = "Shadow"
# The rule of a drop by isolation: no rule allowed it, and the whole policy denies all else.
ISOLATES = "spec"
# A shortened name is of use with this many characters, the digest among them.
_SHORTEST = 16
_SEPARATOR = ", "
_FORM = re.compile(
    rf"(?P<shadow>{SHADOW})?(?P<action>{'|'.join(Action)})"
    rf" (?P<direction>{'|'.join(Direction)})(?P<rule>\[\d+\]|:{ISOLATES})"
    r" (?P<policies>[^ ]+(?:, [^ ]+)*?)(?: \((?P<name>.*)\))?"
)


class Label(NamedTuple):
    """What a rule does and who it belongs to; isolation belongs to several policies."""

    action: Action
    direction: Direction
    decided_by: tuple[Decider, ...]
    shadow: bool = False

    @classmethod
    def of_rule(cls, rule: Rule, shadow: bool = False) -> Label:
        """The label of a policy's rule."""
        return cls(rule.action, rule.direction, (rule.decider,), shadow)

    @classmethod
    def of_isolation(cls, direction: Direction, policies: Iterable[Policy], shadow: bool = False) -> Label:
        """The label of what policies drop together because no rule of theirs allows it."""
        return cls(Action.DENY, direction, tuple(policy.decider for policy in policies), shadow)

    @classmethod
    def parse(cls, text: str) -> Label | None:
        """Read a label back; None if the text is not one."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        direction = Direction(found["direction"])
        rule = ISOLATES if found["rule"] == f":{ISOLATES}" else f"{direction}{found['rule']}"
        policies = found["policies"].split(_SEPARATOR)
        decided_by = tuple(Decider(Reference.or_text(policy), rule, found["name"]) for policy in policies)
        return cls(Action(found["action"]), direction, decided_by, bool(found["shadow"]))

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
