"""Questions about what a text names that cannot be read itself: a choice that is offered, never an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise, permutations

from tierwall.explore import named
from tierwall.explore.asked import api, tools
from tierwall.explore.asked.ends import AskedPort, ends
from tierwall.explore.asked.meaning import Choice
from tierwall.explore.asked.network import connections
from tierwall.explore.asked.settings import at_place
from tierwall.explore.asked.things import names, of_kind, things
from tierwall.explore.page import address
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot

# The most words of a text that are looked up, those of them that name something, questions for one, and in all.
MAX_WORDS, MAX_KNOWN, MAX_OF_WORD, MAX_MENTIONED = 40, 5, 4, 12
_WORDS = re.compile(r"[^\s,;()?!\"'`]+")
_PORT = re.compile(r"(?:tcp|udp|sctp)?/?(?P<port>\d{1,5})", re.IGNORECASE)


def mentioned(snapshot: Snapshot, text: str) -> tuple[Choice, ...]:
    """Return questions about what a text names: who may do what, connections of two ends, then each thing by itself."""
    words = list(dict.fromkeys(_WORDS.findall(text)))[:MAX_WORDS]
    known = [word for word in words if {word, word.rpartition("/")[2]} & _known(snapshot)][:MAX_KNOWN]
    unique: dict[str, Choice] = {}
    for choice in (*_done(snapshot, known, words), *_between(snapshot, known, words), *_about(snapshot, known, words)):
        unique.setdefault(choice.href, choice)
    return tuple(islice(unique.values(), MAX_MENTIONED))


@per_snapshot
def _known(snapshot: Snapshot) -> frozenset[str]:
    called = (*names(snapshot), *named.services(snapshot), *named.tools(snapshot))
    return frozenset((*called, "outside", "internet"))


def _done(snapshot: Snapshot, known: list[str], typed: list[str]) -> Iterator[Choice]:
    """Yield the questions whether somebody who is named may do what is named: a verb with a resource, or a tool."""
    users = [word for word in known if any(api.permissions(snapshot, word))]
    verbs = [(place, meant) for place, word in enumerate(typed) if (meant := api.verbs_of(word)) and word not in users]
    for user in users[:1]:
        for place, meant in verbs[:1]:
            what = " ".join(typed[place + 1 :])
            if api.is_resource(snapshot, what):
                yield from islice(api.requests(snapshot, user, meant, what), MAX_OF_WORD)
    for caller in (word for word in known if tools.callers(snapshot, word)):
        for tool in (word for word in known if word in named.tools(snapshot)):
            yield from islice(tools.calls(snapshot, f"{caller} {tool}"), MAX_OF_WORD)


def _between(snapshot: Snapshot, known: list[str], typed: list[str]) -> Iterator[Choice]:
    """Yield the questions about connections between the first two ends, in both directions."""
    of_word = [meant for word in known if (meant := list(ends(snapshot, word, is_target=True)))][:2]
    number = next((match["port"] for word in typed if (match := _PORT.fullmatch(word))), "")
    for sources, destinations in permutations(of_word, 2):
        asked = list(islice(connections(snapshot, sources, destinations, AskedPort(number)), MAX_OF_WORD))
        yield from asked
        if not asked:
            source, destination = sources[0].name, destinations[0].name
            words = f"What {source} reaches of {destination}"
            yield Choice(words, address("/network", from_=source, to=destination))


def _about(snapshot: Snapshot, known: list[str], words: list[str]) -> Iterator[Choice]:
    for word in known:
        of_word = [*at_place(snapshot, word), *things(snapshot, word)]
        if word in named.tools(snapshot) and not of_word:
            of_word = [Choice("Which tools each caller may call", address("/tools"))]
        yield from of_word[:MAX_OF_WORD]
    for kind in (*map(" ".join, pairwise(words)), *words):
        yield from islice(of_kind(snapshot, kind), MAX_OF_WORD)
