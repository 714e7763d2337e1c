"""The growing table: counters and chains by what they mean, and how a rule ends.

Each policy rule has one named counter, whatever number of nftables rules it becomes, so that counts survive when
chains are replaced. A verdict that is logged leads to a chain that logs within a rate and then does the same.

NetworkPolicies are a union, so their rules may be asked in any order. Where a pod has many of them, those about one
port stand in a chain of their own that a verdict map leads to, and a connection meets only the rules of its port.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tierwall.engines.nftables.table.matches import RuleLine
from tierwall.engines.nftables.table.names import MOST_PREFIX, Label, UniqueNames, comment
from tierwall.engines.nftables.table.options import LogScope, TableOptions
from tierwall.engines.nftables.table.sets import SetBuilder
from tierwall.engines.nftables.table.table import ACCEPT, RETURN, ChainVerdict, RuleChain, VerdictWord
from tierwall.network.model.rules import Direction, RuleAction

# How logged packets are told from those of other programs.
LEAD = "tierwall "

ALLOW = {Direction.EGRESS: RETURN, Direction.INGRESS: ACCEPT}


class TableBuilder:
    """Counters and chains made so far."""

    def __init__(self, sets: SetBuilder, names: UniqueNames, options: TableOptions) -> None:
        self.sets, self.names, self.options = sets, names, options
        self.counters: dict[str, str] = {}
        self.chains: dict[str, RuleChain] = {}
        # What the log prefixes stand for.
        self.logged: dict[str, Label] = {}

    def chain(self, word: str, rules: Iterable[str], note: str = "") -> str:
        """The name of the chain with these rules."""
        lines = tuple(rules)
        name = self.names.name(word, "\n".join((note, *lines)))
        self.chains[name] = RuleChain(lines, comment(note))
        return name

    def counted(self, label: Label) -> str:
        """The statement that counts a policy rule; the label is its counter's comment."""
        name = self.names.name("hits", label.meaning)
        self.counters[name] = label.text()
        return f"counter name {name}"

    def rule_ending(self, label: Label, verdict: ChainVerdict | None, logs: bool = True) -> str:
        """Count, log if asked, and give the verdict; without one the question goes on behind the line."""
        counted = self.counted(label)
        remark = f'comment "{label.remark()}"'
        given = f"{verdict} " if verdict is not None else ""
        if not logs or not self._is_logged(label, verdict):
            return f"{counted} {given}{remark}"
        prefix = label.text(MOST_PREFIX, lead=LEAD)
        self.logged[prefix] = label
        log = f'log prefix "{prefix}" group {self.options.group} snaplen 128'
        if not self.options.rate:
            return f"{counted} {log} {given}{remark}"
        lines = [f"limit rate {self.options.rate}/second burst {2 * self.options.rate} packets {log}"]
        if len(LEAD) + len(label.meaning) > MOST_PREFIX:
            # The names do not fit: a reader finds them here, one a line.
            lines[:0] = [f'continue comment "{owner}"' for owner in label.owners()]
        if verdict is not None:
            lines.append(str(verdict))
        chain = self.chain("log", lines, label.meaning)
        return f"{counted} {ChainVerdict(VerdictWord.JUMP if verdict is None else VerdictWord.GOTO, chain)} {remark}"

    def _is_logged(self, label: Label, verdict: ChainVerdict | None) -> bool:
        if label.action is not RuleAction.DENY and verdict is not None and verdict.word is VerdictWord.GOTO:
            return False  # the tiers below have the last word
        log = self.options.log
        return log is LogScope.ALL or (log is LogScope.DROP and (label.shadow or label.action is RuleAction.DENY))


# Fewer lines than this are quicker asked one after the other.
FEW = 16


def by_port(builder: TableBuilder, lines: Sequence[RuleLine], leave: VerdictWord, ending: list[str]) -> list[str]:
    """The lines, and `ending` for what none of them matches.

    With `goto` a port's chain has the ending too, so that a `return` in it leaves for good; with `jump` it comes back.
    """
    if sum(line.match.at is not None for line in lines) < FEW:
        return [*map(str, lines), *ending]
    out = [str(line) for line in lines if line.match.at is None]
    ports: dict[str, dict[int, list[str]]] = {}
    for line in lines:
        if line.match.at is not None:
            protocol, port = line.match.at
            ports.setdefault(protocol, {}).setdefault(port, []).append(str(line))
    for protocol, by_number in sorted(ports.items()):
        chains = {
            port: builder.chain("at", [*texts, *(ending if leave is VerdictWord.GOTO else ())], f"{protocol} {port}")
            for port, texts in sorted(by_number.items())
        }
        name = builder.sets.of_index({port: ChainVerdict(leave, chain) for port, chain in chains.items()})
        out.append(f"{protocol} dport vmap @{name}")
    return [*out, *ending]
