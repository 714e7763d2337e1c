"""Cutting open connections that the policies now forbid.

Established traffic passes before any rule is asked, so a new policy alone would leave open connections open. Each
tracked connection is judged as a new one would be, on the address and port behind a Service; a forbidden one is
forgotten by the connection tracking, so that its next packet is judged as new and dropped. Of a TCP connection the
other end's packets would then look like a connection of its own, opened in the middle; they are dropped for as long
as an idle connection asks whether its peer still lives.
"""

from __future__ import annotations

from tierwall.core.verdict import StepVerdict
from tierwall.engines.nftables.compile import Compiler
from tierwall.engines.nftables.conntrack import Connection, connections, forget
from tierwall.engines.nftables.elements import add_flows
from tierwall.engines.nftables.nflog import Flow
from tierwall.network.decide import decide
from tierwall.network.model.addresses import Address
from tierwall.network.model.ends import End, address_end
from tierwall.network.model.model import Model

# Linux sends the first keepalive after two hours and gives up eleven minutes later.
_SECONDS = 3 * 60 * 60


def cut(model: Model, compiler: Compiler) -> int:
    """Cut what a model of the enforced policies forbids; how many connections that were."""
    judge = _Judge(model, compiler)
    found = [one for one in connections() if judge.forbids(one)]
    add_flows((_answers(one) for one in found if one.flow.protocol == "TCP"), _SECONDS)
    return sum(forget(one) for one in found)


class _Judge:
    def __init__(self, model: Model, compiler: Compiler) -> None:
        self._model, self._compiler = model, compiler
        self._nodes = {address: node for node in model.nodes for address in node.addresses}

    def forbids(self, one: Connection) -> bool:
        """Whether a new connection like this one would be dropped by the table."""
        source, destination = self._at(one.flow.source), self._at(one.reply.source)
        judged = [self._compiler.is_judged(end) for end in (source, destination)]
        if not any(judged) or source is destination:
            return False
        decision = decide(self._model, source, destination, one.flow.protocol, one.reply.source_port)
        outcomes = (decision.egress.outcome.verdict, decision.ingress.outcome.verdict)
        return any(
            ours and verdict in (StepVerdict.DENY, StepVerdict.CONDITIONAL)
            for ours, verdict in zip(judged, outcomes, strict=True)
        )

    def _at(self, address: Address) -> End:
        return self._model.at(address) or self._nodes.get(address) or address_end(address)


def _answers(one: Connection) -> Flow:
    """The packets that the other end sends, as the table sees them."""
    return Flow(one.flow.protocol, one.reply.source, one.reply.source_port, one.flow.source, one.flow.source_port)
