"""The sentence of a path answer."""

from __future__ import annotations

from collections.abc import Sequence

from tierwall.core.answer import Answer
from tierwall.core.verdict import StepVerdict, Verdict

_NETWORK = "network"


def sentence(source: str, call: str, hops: Sequence[Answer], stop: Answer | None, reason: str) -> str:
    """Say whether a pod can make a call, and which hop stops it; `reason` says why the tool plane decides as it does.

    `stop` is the first hop that does not allow it, or None.
    """
    if stop is None:
        unjudged = [hop for hop in hops if hop.verdict == StepVerdict.NOT_APPLICABLE]
        if not unjudged:
            return f"{source} can {call}: every hop allows it"
        connections = "both connections" if len(unjudged) > 1 else "one connection"
        return f"{source} may {call} ({reason}), but {connections} could not be judged"
    words = stop.sentence if stop.plane == _NETWORK else reason
    if stop.verdict == Verdict.CONDITIONAL:
        return f"whether {source} can {call} depends on a connection: {words}"
    return f"{source} cannot {call}, because {words}"
