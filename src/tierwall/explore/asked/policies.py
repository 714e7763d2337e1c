"""Questions about the policies of one end, and about its state: `which policies apply to db`, `why is web blocked`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tierwall.explore import named
from tierwall.explore.asked import network, tools
from tierwall.explore.asked.api import permissions
from tierwall.explore.asked.ends import AskedEnd, behind, ends, is_end, split_port
from tierwall.explore.asked.meaning import Choice, Meanings, bounded
from tierwall.explore.asked.settings import at_place
from tierwall.explore.asked.things import object_address
from tierwall.explore.page import address
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import EGRESS, INGRESS
from tierwall.resources.snapshot import Snapshot

_POLICIES = r"(?:(?:network\s+)?polic(?:y|ies)|rules?)"
_OF_END = re.compile(
    rf"(?:(?:which|what|the|all|any)\s+)*{_POLICIES}\s+(?:(?:that|which)\s+)?(?:(?:is|are|do|does)\s+)?"
    r"(?:(?:(?:apply|applies|applied|applying|relevant|in\s+force)\s+)?(?:to|for|of|on|at)"
    r"|selects?|selecting|affects?|affecting|protects?|protecting|covers?|covering|isolates?)\s+(?P<end>\S.*)"
    r"|what\s+(?:protects|selects|isolates)\s+(?P<it>\S.*)",
    re.IGNORECASE,
)
_STATE = re.compile(
    r"(?:why\s+)?(?:is|are|was|were|isn['’]?t|aren['’]?t)\s+(?P<end>\S+)\s+(?:not\s+)?"
    r"(?:blocked|denied|refused|rejected|closed|cut\s+off)",
    re.IGNORECASE,
)
_DIRECTION = re.compile(
    r"(?P<end>\S+?)(?:['’]s)?\s+(?:(?P<arriving>ingress|inbound|incoming)|egress|outbound|outgoing)"
    r"(?:\s+(?:connections?|traffic))?",
    re.IGNORECASE,
)


def about(snapshot: Snapshot, text: str) -> Meanings | None:
    """Return what a question means that is about the policies, the state or a direction of one end; None otherwise."""
    if match := _OF_END.fullmatch(text):
        return _policies_of(snapshot, match["end"] or match["it"])
    if match := _STATE.fullmatch(text):
        choices = list(_state_of(snapshot, match["end"]))
        return bounded(iter(choices)) if choices else None
    if (match := _DIRECTION.fullmatch(text)) and any(ends(snapshot, match["end"], is_target=True)):
        # The last word may be the name of an end itself.
        last = text.split()[-1]
        if last not in named.ends(snapshot) and last not in named.services(snapshot):
            word = "ingress" if match["arriving"] else "egress"
            return network.about_one_end(snapshot, f"{word} of {match['end']}")
    return None


def _policies_of(snapshot: Snapshot, text: str) -> Meanings | None:
    known = list(ends(snapshot, split_port(text)[0], is_target=True))
    choices = [*_of_ends(snapshot, known), *at_place(snapshot, text)]
    return bounded(iter(choices)) if choices else None


def _of_ends(snapshot: Snapshot, known: list[AskedEnd]) -> Iterator[Choice]:
    """Yield each policy that selects a pod of these ends, in the order in which they decide, and the end itself."""
    for end in known:
        directions: dict[str, set[str]] = {}
        hrefs: dict[str, str] = {}
        pods = list(_pods(snapshot, end))
        there = f"pods of {end.name}" if end.is_namespace else end.name
        for pod in pods:
            for direction in (INGRESS, EGRESS):
                for tier in network_model(snapshot).stack(pod, direction):
                    for policy in tier.policies:
                        name = str(policy.reference)
                        directions.setdefault(name, set()).add(direction.value)
                        hrefs[name] = object_address(policy.resource)
        for name, said in directions.items():
            words = f"{name} applies to {there}, for {' and '.join(sorted(said, reverse=True))}"
            yield Choice(words, hrefs[name])
        if pods:
            none = "" if directions else " (no network policy selects it)"
            yield Choice(f"Who reaches {end.name}, and whom it reaches{none}", address("/network", focus=end.name))


def _pods(snapshot: Snapshot, end: AskedEnd) -> Iterator[Endpoint]:
    """Yield the pods that an end stands for, those behind a Service among them."""
    meant = behind(snapshot, end.name) if end.name.startswith("Service/") else (end.name,)
    for pod in network_model(snapshot).pods:
        if (end.is_namespace and pod.namespace == end.name) or any(_is(pod, name) for name in meant):
            yield pod


def _is(pod: Endpoint, name: str) -> bool:
    """Whether a name is that of a pod or its workload, and the kind before it, if there is one, theirs."""
    kind = name.partition("/")[0] if name.count("/") == 2 else ""
    kinds = {"", "Pod" if name.endswith(f"/{pod.name}") else "", pod.workload.kind if pod.workload is not None else ""}
    return kind in kinds and is_end(pod, name)


def _state_of(snapshot: Snapshot, name: str) -> Iterator[Choice]:
    """Yield both directions of an end, and what a user or agent of this name may do: nobody said what is meant."""
    for end in ends(snapshot, name, is_target=True):
        if any(_pods(snapshot, end)):
            yield Choice(f"Who reaches {end.name}", address("/network", to=end.name))
            yield Choice(f"Whom {end.name} reaches", address("/network", from_=end.name))
    yield from tools.all_of(snapshot, name)
    yield from permissions(snapshot, name)
