"""The growing table: counters and chains by what they mean, and how a verdict is written down.

Each policy rule has one named counter, whatever number of nftables rules it becomes, so that counts survive when
chains are replaced. A verdict that is logged leads to a chain that logs within a rate and then does the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierwall.engines.nftables.names import MOST_PREFIX, Names, comment, several
from tierwall.engines.nftables.options import Log, Options
from tierwall.engines.nftables.sets import Sets
from tierwall.engines.nftables.table import Chain
from tierwall.network.model.rules import Action, Direction, Rule

# How logged packets are told from those of other programs.
MARK = "tierwall"
SHADOW = "Shadow"
# Where the absence of a rule drops: the place is the policy itself, `egress:spec` or `ingress:spec`.
ISOLATES = "spec"

ALLOW = {Direction.EGRESS: "return", Direction.INGRESS: "accept"}


class Parts:
    """Counters and chains made so far."""

    def __init__(self, sets: Sets, names: Names, options: Options) -> None:
        self.sets, self.names, self.options = sets, names, options
        self.counters: dict[str, str] = {}
        self.chains: dict[str, Chain] = {}

    def chain(self, word: str, rules: Iterable[str], note: str = "") -> str:
        """The name of the chain with these rules."""
        lines = tuple(rules)
        name = self.names.name(word, "\n".join((note, *lines)))
        self.chains[name] = Chain(lines, comment(note))
        return name

    def counted(self, action: Action | str, place: str, policies: str) -> str:
        """The statement that counts a policy rule; `Deny egress[0] AdminNetworkPolicy/x` is its counter's comment."""
        told = comment(f"{action} {place} {policies}")
        name = self.names.name("hits", f"{action} {place} {policies}")
        self.counters[name] = told
        return f"counter name {name}"

    def ending(self, action: Action, verdict: str, place: str, policies: tuple[str, ...], shadow: bool = False) -> str:
        """Count, log if asked, and give the verdict; nothing is given for a policy in shadow mode."""
        names = several(policies)
        word = f"{SHADOW}{action}" if shadow else str(action)
        counted = self.counted(word, place, names)
        if not self._logs(action, shadow) or (action is not Action.DENY and verdict.startswith("goto")):
            return f"{counted} {verdict}".rstrip()
        prefix = comment(f"{MARK} {word} {place} {names}", MOST_PREFIX)
        log = f'log prefix "{prefix}" group {self.options.group} snaplen 128'
        if not self.options.rate:
            return f"{counted} {log} {verdict}".rstrip()
        lines = [f"limit rate {self.options.rate}/second burst {2 * self.options.rate} packets {log}"]
        if len(prefix) == MOST_PREFIX:
            # The names do not fit: a reader finds them here, one a line.
            lines[:0] = [f'continue comment "{comment(one)}"' for one in policies]
        # Without a verdict the question goes on behind the line, so its chain must be returned from.
        if verdict:
            lines.append(verdict)
        chain = self.chain("log", lines, f"{word} {place} {names}")
        return f"{counted} {'goto' if verdict else 'jump'} {chain}"

    def _logs(self, action: Action, shadow: bool) -> bool:
        log = self.options.log
        return log is Log.ALL or (log is Log.DROP and (shadow or action is Action.DENY))


def told(text: str) -> str:
    """A name as it stands in comments: what separates words there is no part of it."""
    return comment(text).replace(" ", "?").replace(",", "?")


def remark(rule: Rule) -> str:
    """The comment of a policy rule's nftables rules: policy and rule."""
    return f'comment "{comment(f"{told(str(rule.policy))} {rule.place}")}"'
