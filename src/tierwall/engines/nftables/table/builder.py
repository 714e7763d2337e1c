"""The builder of a table: counters and chains by meaning, and the ending of each rule.

Each policy rule has one named counter, however many nftables rules it becomes, so counts survive when chains are
replaced. A logged verdict leads to a chain that logs within the rate and then gives the same verdict.

NetworkPolicies are a union, so their rules may be asked in any order. Where a pod has many, the rules about one port
stand in a chain of their own. A verdict map leads there, so a connection meets only the rules of its port.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tierwall.engines.nftables.table.matches import RuleLine
from tierwall.engines.nftables.table.names import MAX_PREFIX_BYTES, Label, UniqueNames, comment
from tierwall.engines.nftables.table.options import LogScope, TableOptions
from tierwall.engines.nftables.table.sets import SetBuilder
from tierwall.engines.nftables.table.table import ACCEPT, RETURN, ChainVerdict, RuleChain, VerdictWord
from tierwall.network.model.rules import Direction, RuleAction

# The prefix that tells our logged packets from those of other programs.
LEAD = "tierwall "

ALLOW = {Direction.EGRESS: RETURN, Direction.INGRESS: ACCEPT}


class TableBuilder:
    """The counters and chains built so far."""

    def __init__(self, sets: SetBuilder, names: UniqueNames, options: TableOptions) -> None:
        self.sets, self.names, self.options = sets, names, options
        self.counters: dict[str, str] = {}
        self.chains: dict[str, RuleChain] = {}
        # The label of each log prefix.
        self.logged: dict[str, Label] = {}

    def chain(self, word: str, rules: Iterable[str], note: str = "") -> str:
        """Add a chain with these rules, and return its name."""
        lines = tuple(rules)
        name = self.names.name(word, "\n".join((note, *lines)))
        self.chains[name] = RuleChain(lines, comment(note))
        return name

    def counter_statement(self, label: Label) -> str:
        """Return the statement that counts a policy rule; its label becomes the counter's comment."""
        name = self.names.name("hits", label.meaning)
        self.counters[name] = label.shortened()
        return f"counter name {name}"

    def rule_ending(self, label: Label, verdict: ChainVerdict | None, logs: bool = True) -> str:
        """Count, log if asked, and give the verdict. Without a verdict, the next line is asked."""
        counter = self.counter_statement(label)
        remark = f'comment "{label.remark()}"'
        statement = f"{verdict} " if verdict is not None else ""
        if not logs or not self._is_logged(label, verdict):
            return f"{counter} {statement}{remark}"
        prefix = label.shortened(MAX_PREFIX_BYTES, lead=LEAD)
        self.logged[prefix] = label
        log = f'log prefix "{prefix}" group {self.options.group} snaplen 128'
        if not self.options.rate:
            return f"{counter} {log} {statement}{remark}"
        lines = [f"limit rate {self.options.rate}/second burst {2 * self.options.rate} packets {log}"]
        if len(LEAD) + len(label.meaning) > MAX_PREFIX_BYTES:
            # The names do not fit: a reader finds them here, one per line.
            lines[:0] = [f'continue comment "{owner}"' for owner in label.owners()]
        if verdict is not None:
            lines.append(str(verdict))
        chain = self.chain("log", lines, label.meaning)
        return f"{counter} {ChainVerdict(VerdictWord.JUMP if verdict is None else VerdictWord.GOTO, chain)} {remark}"

    def _is_logged(self, label: Label, verdict: ChainVerdict | None) -> bool:
        if label.action is not RuleAction.DENY and verdict is not None and verdict.word is VerdictWord.GOTO:
            return False  # the tiers below decide
        log = self.options.log
        return log is LogScope.ALL or (log is LogScope.DROP and (label.shadow or label.action is RuleAction.DENY))


# Fewer lines than this are faster to ask one after the other.
MIN_LINES_FOR_MAP = 16


def by_port(builder: TableBuilder, lines: Sequence[RuleLine], leave: VerdictWord, ending: list[str]) -> list[str]:
    """Return the lines, followed by `ending` for connections that none of them matches.

    With `goto`, the chain of a port has the ending too, so a `return` in it leaves for good. With `jump`, it comes
    back.
    """
    if sum(line.match.at is not None for line in lines) < MIN_LINES_FOR_MAP:
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
