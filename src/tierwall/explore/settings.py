"""`/settings`: the settings in force along Gateway, listener, route, rule and backend, as a stack.

docs/explorer.md#look. `?gateway=`, `?route=` and the other keys of a question name one place.
"""

from __future__ import annotations

from itertools import islice

from tierwall.explore.ask import ask
from tierwall.explore.asked.meaning import asking
from tierwall.explore.asked.settings import place_terms
from tierwall.explore.markup import joined, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    first,
    link,
    omission_list,
    opening,
    page_links,
    page_number,
)
from tierwall.explore.stack import place_title, settings_stack
from tierwall.gateway.model.places import reachable_places
from tierwall.gateway.question import PLACE_KEYS
from tierwall.render.formats import View
from tierwall.render.json import answers_document, dump

# The most places on a page.
PAGE = 20


def settings(explored: ExploredWorld, query: Query) -> Page:
    """Show every place that a request can reach, or the place of the query."""
    if any(first(query, key) for key in PLACE_KEYS):
        return ask(explored, {**query, "plane": ("gateway",)})
    world = explored.world
    page = page_number(query)
    begin = (page - 1) * PAGE
    places = list(islice(reachable_places(world.snapshot), begin, begin + PAGE + 1))
    answers = list(islice(world.effective_everywhere(), begin, begin + PAGE))
    omissions = world.omissions("gateway")
    sections = [
        tag(
            "section",
            settings_stack(answer, place_title(answer)),
            tag("p", link("Ask about this place", asking("gateway", **place_terms(place)))),
            class_="place",
        )
        for place, answer in zip(places, answers, strict=False)
    ]
    last = page if len(places) <= PAGE else None
    pages = page_links("/settings", page, last, "Pages of the places") if page > 1 or last is None else None
    body = joined(
        opening("Settings in force", "The most specific level wins; who lost is struck out and says why."),
        sections or tag("p", "No route leads through a Gateway here." if page == 1 else "No more.", class_="empty"),
        pages,
        omission_list(omissions),
    )

    def every_place() -> str:
        return dump(answers_document(list(world.effective_everywhere()), View(not_considered=omissions)))

    command = explored.command("effective", "--all")
    return Page("Settings in force", every_place, body, command=command, room="settings")
