"""`/`: the ask field, what is loaded, and three questions worth asking about this very world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

from tierwall.explore import named
from tierwall.explore.asked.ends import AskedPort, ports_of
from tierwall.explore.asked.meaning import Choice, asking
from tierwall.explore.asked.settings import place_terms
from tierwall.explore.markup import joined, tag
from tierwall.explore.page import ExploredWorld, Page, Query, address, counted, link, omission_list
from tierwall.explore.review import checked
from tierwall.gateway.model.places import reachable_places
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import INGRESS
from tierwall.network.reach.naming import OUTSIDE
from tierwall.render.json import omission_documents
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import offered_tools
from tierwall.tool.model import model
from tierwall.tool.ways import routed_ways, unrouted_ways

QUESTIONS = 3
# The most pods that are looked at for a question worth asking.
_MAX_LOOKED = 500
# RFC 3339 as people read it.
_SPOKEN = str.maketrans({"T": " ", "Z": " UTC"})


def home(explored: ExploredWorld, query: Query) -> Page:
    """Show what is loaded."""
    world, result = explored.world, checked(explored)
    kinds = Counter(resource.kind for resource in world.snapshot)
    worth = list(islice(_worth_asking(world.snapshot), QUESTIONS))
    problems = dict(result.severities)
    document: dict[str, Any] = {
        "source": explored.source,
        **({"asOf": explored.as_of} if explored.as_of else {}),
        "objects": dict(sorted(kinds.items())),
        "problems": problems,
        "questions": [{"words": choice.words, "href": choice.href} for choice in worth],
        "notConsidered": omission_documents(result.not_considered),
    }
    words = ", ".join(counted(problems[word], word) for word in ("error", "warning", "note") if problems.get(word))
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
                f"{counted(len(world.snapshot), 'object')} from {explored.source}",
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
        return "Nothing yet: neither a pod nor a policy is loaded."
    return "Nothing yet: no objects were found. As soon as there are some, this page shows them."


def _worth_asking(snapshot: Snapshot) -> Iterator[Choice]:
    """Yield questions of all planes in turn, the most telling planes and questions first."""
    for turn in zip_longest(*(find(snapshot) for find in (_of_network, _of_tool, _of_gateway, _of_api))):
        yield from filter(None, turn)


def _of_network(snapshot: Snapshot) -> Iterator[Choice]:
    """Ask about the pod that policies of the most tiers select: may the first pod that is not like it reach it?

    Then ask who reaches it at all, and what can be reached from outside.
    """
    network = network_model(snapshot)
    pods = [pod for pod in network.pods[:_MAX_LOOKED] if pod.under_policy]
    if not pods:
        return
    chosen = max(pods, key=lambda pod: sum(1 for tier in network.stack(pod, INGRESS) if tier.policies))
    there = _workload(chosen)
    others = [pod for pod in pods if _workload(pod) != there]
    # A neighbour is likelier to want something from it.
    source = min(others, key=lambda pod: pod.namespace != chosen.namespace, default=None)
    port = next(ports_of(snapshot, there, AskedPort()), None)
    if source is not None and port is not None:
        here = _workload(source)
        terms = {"from_": here, "to": there, "port": port.text, "protocol": port.protocol}
        words = f"May {here} reach {there} on {port.protocol} port {port.text}?"
        yield Choice(words, asking("network", **terms), "network")
    yield Choice(f"Who reaches {there}?", address("/network", to=there))
    yield Choice("What can be reached from outside?", address("/network", from_=OUTSIDE))


def _workload(pod: Endpoint) -> str:
    return f"{pod.namespace}/{pod.workload.name}" if pod.workload else str(pod)


def _of_tool(snapshot: Snapshot) -> Iterator[Choice]:
    callers = named.callers(snapshot)
    for way in routed_ways(snapshot) or unrouted_ways(snapshot):
        tools = sorted(offered_tools(model(snapshot), way.resource))
        if callers and tools:
            gateway = f"{way.gateway.namespace}/{way.gateway.name}"
            terms = {"gateway": gateway, "listener": way.listener.name, "backend": str(way.backend.reference)}
            href = asking("tool", **terms, caller=callers[0], method="tools/call", tool=tools[-1])
            yield Choice(f"May {callers[0]} call {tools[-1]} of {way.backend.reference}?", href, "tool")
            break
    if callers:
        yield Choice(f"Which tools may {callers[0]} call?", address("/tools", caller=callers[0]))


def _of_gateway(snapshot: Snapshot) -> Iterator[Choice]:
    place = None
    for place in reachable_places(snapshot):
        yield Choice(f"Which settings are in force at {place}?", asking("gateway", **place_terms(place)), "gateway")
    if place is not None:
        yield Choice("Which settings are in force at every place?", "/settings")


def _of_api(snapshot: Snapshot) -> Iterator[Choice]:
    for user in named.users(snapshot)[:1]:
        yield Choice(f"What may {user} do?", address("/permissions", user=user), "api")
        for verb, resource in (("delete", "secrets"), ("create", "pods")):
            href = asking("api", user=user, verb=verb, resource=resource)
            yield Choice(f"May {user} {verb} {resource}?", href, "api")
