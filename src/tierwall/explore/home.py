"""`/`: the ask field, what is loaded, and three questions worth asking about this very world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tierwall.core.words import count_noun
from tierwall.explore import named
from tierwall.explore.asked.meaning import Choice, asking
from tierwall.explore.asked.settings import place_terms
from tierwall.explore.markup import joined, tag
from tierwall.explore.page import ExploredWorld, Page, Query, address, link, omission_list
from tierwall.explore.review import checked
from tierwall.gateway.model.places import reachable_places
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import INGRESS, PortRange
from tierwall.render.json import omission_documents
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import model
from tierwall.tool.ways import routed_ways, unrouted_ways

QUESTIONS = 3
# The most pods that are looked at for a question worth asking.
_MAX_LOOKED = 2000
# RFC 3339 as people read it.
_SPOKEN = str.maketrans({"T": " ", "Z": " UTC"})


def home(explored: ExploredWorld, query: Query) -> Page:
    """Show what is loaded."""
    world, result = explored.world, checked(explored)
    kinds = Counter(resource.kind for resource in world.objects())
    worth = list(_worth_asking(world.snapshot))[:QUESTIONS]
    problems = dict(result.severities)
    document: dict[str, Any] = {
        "source": explored.source,
        **({"asOf": explored.as_of} if explored.as_of else {}),
        "objects": dict(sorted(kinds.items())),
        "problems": problems,
        "questions": [{"words": choice.words, "href": choice.href} for choice in worth],
        "notConsidered": omission_documents(result.not_considered),
    }
    words = ", ".join(count_noun(problems[word], word) for word in ("error", "warning", "note") if problems.get(word))
    questions = [tag("li", link(choice.words, choice.href)) for choice in worth]
    body = joined(
        tag(
            "section",
            tag("h1", "What do you want to know?"),
            tag("p", "Ask above, as you would ask a colleague: ", tag("kbd", "/"), " moves to the field."),
            tag("h2", "Worth asking here"),
            tag("ul", questions, class_="choices") if questions else tag("p", _nothing(len(world.snapshot))),
            class_="hero",
        ),
        tag(
            "section",
            tag("h2", "What is loaded"),
            tag(
                "p",
                f"{count_noun(len(world.snapshot), 'object')} from {explored.source}",
                joined(", as of ", tag("time", explored.as_of.translate(_SPOKEN), datetime=explored.as_of))
                if explored.as_of
                else None,
                ". ",
                link(words or "No problems", "/findings"),
                ".",
            ),
            tag(
                "ul",
                [tag("li", tag("span", number, class_="amount"), " ", kind) for kind, number in kinds.most_common()],
                class_="kinds",
            ),
        ),
        omission_list(result.not_considered),
    )
    return Page("Tierwall explorer", document, body, command=explored.command("check"), room="home")


def _nothing(objects: int) -> str:
    if objects:
        return "Nothing yet: no policy is loaded."
    return "Nothing yet: no objects were found. As soon as there are some, this page shows them."


def _worth_asking(snapshot: Snapshot) -> Iterator[Choice]:
    """Yield at most one question per plane, the most telling planes first."""
    for find in (_of_network, _of_tool, _of_gateway, _of_api):
        yield from find(snapshot)


def _of_network(snapshot: Snapshot) -> Iterator[Choice]:
    """Ask about a pod that policies isolate: may the first pod that is not like it reach it on a port they name?"""
    network = network_model(snapshot)
    pods = network.pods[:_MAX_LOOKED]
    for pod in pods:
        for tier in network.stack(pod, INGRESS) if pod.under_policy else ():
            ports = (
                port for policy in tier.policies for rule in policy.rules(INGRESS) or () for port in rule.ports or ()
            )
            port = next((port for port in ports if isinstance(port, PortRange) and port.first == port.last), None)
            source = next((other for other in pods if other.workload != pod.workload and other is not pod), None)
            if port is None or source is None:
                continue
            here, there = (
                f"{end.namespace}/{end.workload.name}" if end.workload else str(end) for end in (source, pod)
            )
            terms = {"from_": here, "to": there, "port": port.first, "protocol": port.protocol}
            words = f"May {here} reach {there} on {port.protocol} port {port.first}?"
            yield Choice(words, asking("network", **terms), "network")
            return


def _of_tool(snapshot: Snapshot) -> Iterator[Choice]:
    callers = named.callers(snapshot)
    for way in routed_ways(snapshot) or unrouted_ways(snapshot):
        tools = sorted(offered_tools(model(snapshot), way.resource))
        if callers and tools:
            gateway = f"{way.gateway.namespace}/{way.gateway.name}"
            terms = {"gateway": gateway, "listener": way.listener.name, "backend": str(way.backend.reference)}
            href = asking("tool", **terms, caller=callers[0], method="tools/call", tool=tools[-1])
            yield Choice(f"May {callers[0]} call {tools[-1]} of {way.backend.reference}?", href, "tool")
            return


def _of_gateway(snapshot: Snapshot) -> Iterator[Choice]:
    for place in reachable_places(snapshot):
        yield Choice(f"Which settings are in force at {place}?", asking("gateway", **place_terms(place)), "gateway")
        return


def _of_api(snapshot: Snapshot) -> Iterator[Choice]:
    for user in named.users(snapshot)[:1]:
        yield Choice(f"What may {user} do?", address("/permissions", user=user), "api")
