"""`/ask`: the answer to a question, as a sentence, a walk through the tiers, and the lines that decide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode
from msgspec.structs import replace

from tierwall.core.answer import Answer, Step
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.question import Question
from tierwall.core.verdict import StepVerdict
from tierwall.explore.asked.meaning import MAX_CHOICES, Choice, Meanings
from tierwall.explore.asking import meanings
from tierwall.explore.manifest import quoted_steps
from tierwall.explore.markup import Child, Markup, joined, spoken, tag
from tierwall.explore.named import completions
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    decider_links,
    failed,
    first,
    given,
    link,
    object_link,
    omission_list,
    opening,
    policy_address,
    verdict_mark,
)
from tierwall.explore.stack import settings_stack
from tierwall.planes import plane
from tierwall.render.json import answer_document
from tierwall.render.text import phrase
from tierwall.tool.protocol import CALL
from tierwall.values.addresses import parse_address

PLANES = ("network", "tool", "gateway", "api")
_ROOMS = {"network": "network", "tool": "tools", "gateway": "settings", "api": "permissions"}
_LISTS, _NUMBERS = frozenset({"groups", "parents"}), frozenset({"port", "rule"})
# The keys whose values are maps or lists: in an address they are JSON.
_STRUCTURED = frozenset(
    ("arguments", "http", "externalAuth", "request", "extra", "webhooks", "labelSelector", "fieldSelector", "object")
) | {"oldObject", "options", "namespaceObject", "impersonatedRequest"}
# The options of the command that asks the same, by key; others have no option that takes a value.
_OPTIONS = {key: key for key in ("from", "to", "port", "protocol", "gateway", "listener", "route", "rule", "backend")}
_OPTIONS |= {key: key for key in ("caller", "method", "tool", "uri", "arguments", "time", "profile", "phase")}
_OPTIONS |= {key: key for key in ("user", "uid", "verb", "resource", "group", "version", "subresource", "namespace")}
_OPTIONS |= {"name": "name", "path": "path", "operation": "operation", "groups": "as-group", "parents": "parent"}
_OPTIONS |= {"listenerSet": "listener-set", "backendSection": "backend-section"}
_SILENT = (StepVerdict.NO_MATCH, StepVerdict.NOT_APPLICABLE)
# The most policies without a match that a walk names one by one.
MAX_SILENT = 12


def ask(explored: ExploredWorld, query: Query) -> Page:
    """Answer a question in words (`q`) or by its terms (`plane` and the keys of a policy test)."""
    if text := first(query, "complete"):
        completed = completions(explored.world.snapshot, text)
        return Page("Completions", {"completions": completed}, tag("ul", [tag("li", word) for word in completed]))
    if first(query, "plane"):
        return _by_terms(explored, query, first(query, "q"))
    text = first(query, "q")
    meant = meanings(explored.world, text)
    if meant.problems:
        return _unclear(text, meant)
    if len(meant.choices) > 1:
        return _choices(text, meant.choices)
    (choice,) = meant.choices
    if not choice.plane:
        return Page(choice.words, {"choices": [_choice_document(choice)]}, Markup(""), moved_to=choice.href)
    return _by_terms(explored, parse_query(choice.href), text)


def parse_query(href: str) -> Query:
    """Return the parameters of an address."""
    from urllib.parse import parse_qsl

    parameters: dict[str, tuple[str, ...]] = {}
    for name, value in parse_qsl(href.partition("?")[2], keep_blank_values=True, max_num_fields=100):
        parameters[name] = (*parameters.get(name, ()), value)
    return parameters


def _unclear(text: str, meant: Meanings) -> Page:
    """Say what is not clear, and offer questions about what the text names."""
    page = failed("That is not clear yet", InputError(meant.problems), "", asked=text)
    if not meant.mentioned:
        return page
    offered = tag("ul", [tag("li", link(choice.words, choice.href)) for choice in meant.mentioned], class_="choices")
    document = {**page.document, "mentioned": list(map(_choice_document, meant.mentioned))}
    return replace(page, document=document, body=joined(page.body, tag("h2", "It names these"), offered))


def _choices(text: str, choices: Iterable[Choice]) -> Page:
    choices = list(choices)
    items = [tag("li", link(choice.words, choice.href)) for choice in choices]
    number, hint = f"{len(choices)} things", "Choose one. Nothing is guessed."
    if len(choices) >= MAX_CHOICES:
        number, hint = (
            "many things",
            f"These are the first {len(choices)}. A namespace or a kind before a name leaves fewer.",
        )
    body = joined(
        opening(f"“{text}” may mean {number}", hint, announced=True),
        tag("ul", items, class_="choices"),
    )
    return Page("Which one?", {"choices": [_choice_document(choice) for choice in choices]}, body, asked=text)


def _choice_document(choice: Choice) -> dict[str, str]:
    return {"words": choice.words, "href": choice.href, **({"plane": choice.plane} if choice.plane else {})}


def question_of(query: Query) -> Question:
    """Make the question that some terms ask; InputError names every key that does not exist."""
    name = first(query, "plane")
    if name not in PLANES:
        raise InputError([Diagnostic("TW703", f"expected one of {', '.join(PLANES)} as `plane`, found `{name}`")])
    terms: dict[str, Any] = {}
    for key, values in query.items():
        if key in ("plane", "q", "format") or not any(values):
            continue
        terms[key] = list(given(query, key)) if key in _LISTS else _value(name, key, values[-1].strip())
    return plane(name).QUESTION.from_dict(terms)


def _value(plane_name: str, key: str, text: str) -> Any:
    if key in _STRUCTURED:
        # What is no JSON, or too deep, is a text, and the question says what it expects.
        with suppress(DecodeError, RecursionError):
            return decode(text)
    if key in _NUMBERS and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if plane_name == "network" and key in ("from", "to"):
        if parse_address(text) is not None:
            return {"ip": text}
        return {"node": text.removeprefix("node:")} if text.startswith("node:") else text
    if plane_name == "tool" and key == "caller":
        return text if text.startswith("spiffe://") else {"serviceAccount": text}
    return text


def _by_terms(explored: ExploredWorld, query: Query, text: str) -> Page:
    name = first(query, "plane")
    try:
        question = question_of(query)
        if name == "api":
            from tierwall.api.question import ApiQuestion
            from tierwall.api.resource_names import resolve

            assert isinstance(question, ApiQuestion)
            question = resolve(explored.world.snapshot, question).question
        answer = explored.world.ask(question)
    except InputError as error:
        return failed("No answer", error, _ROOMS.get(name, ""), asked=text)
    title = answer.sentence.partition(": ")[0]
    return Page(
        title,
        answer_document(answer),
        answer_body(explored, answer),
        command=_command(explored, name, query),
        room=_ROOMS[name],
        asked=text,
    )


def _command(explored: ExploredWorld, plane_name: str, query: Query) -> str:
    """Return the command that asks the same; empty if it takes a part of the question from a file, or means another."""
    keys = [key for key in query if key not in ("plane", "q", "format") and given(query, key)]
    means_call = "tool" in keys and "method" not in keys
    if any(key not in _OPTIONS for key in keys) or means_call or (plane_name == "api" and explored.has_namespace):
        return ""
    words = ["effective"] if plane_name == "gateway" else ["explain", plane_name]
    for key in keys:
        # The method that is asked about if none is named.
        if (key, first(query, key)) != ("method", CALL):
            words += [part for value in given(query, key) for part in (f"--{_OPTIONS[key]}", value)]
    return explored.command(*words)


def answer_body(explored: ExploredWorld, answer: Answer) -> Markup:
    """Show an answer: sentence, walk, lines, what was left out."""
    deciding = [step for step in answer.steps if step.verdict not in _SILENT]
    # The sentence about settings names each of them.
    head, rest = answer.sentence, ""
    if answer.plane == "gateway":
        head, _, rest = answer.sentence.partition(": ")
    manifests = [
        joined(tag("h3", object_link(resource.reference)), shown)
        for resource, shown in quoted_steps(deciding or answer.steps, explored.world.line)
    ]
    if answer.plane == "gateway":
        walk = settings_stack(answer)
    else:
        walk = tag("section", tag("h2", "The walk through the tiers"), *_walks(answer), class_="walks")
    return joined(
        tag(
            "section",
            tag("p", verdict_mark(answer.verdict), class_="headline") if answer.verdict is not None else None,
            tag("h1", spoken(head)),
            tag("p", spoken(rest[:1].upper() + rest[1:])) if rest else None,
            tag("p", "Decided by ", decider_links(answer.decided_by), class_="deciders") if answer.decided_by else None,
            class_="answer",
            role="status",
        ),
        walk,
        _otherwise(answer),
        _conditions(answer),
        tag("section", tag("h2", "The lines that count"), *manifests) if manifests else None,
        omission_list(answer.not_considered),
    )


def _walks(answer: Answer) -> Iterator[Markup]:
    """Draw the walk of each direction: one station per policy, in order."""
    directions = dict.fromkeys(step.direction or "" for step in answer.steps)
    for direction in directions:
        steps = [step for step in answer.steps if (step.direction or "") == direction]
        title = {"egress": "Leaving: egress of the source", "ingress": "Arriving: ingress of the destination"}
        heading = tag("h3", title.get(direction, direction)) if direction else None
        yield tag("div", heading, tag("ol", _stations(steps), class_="walk"), class_="direction")


def _stations(steps: list[Step]) -> Iterator[Markup]:
    silent = [step for step in steps if step.verdict is StepVerdict.NO_MATCH]
    hidden = set(map(id, silent[MAX_SILENT:]))
    for number, step in enumerate(steps):
        if id(step) in hidden:
            continue
        is_last = number == len(steps) - 1
        subject: Child = tag("span", "no policy", class_="quiet-text")
        if step.policy is not None:
            rule = f" {step.rule}" if step.rule and step.rule != "spec" else ""
            subject = joined(object_link(step.policy), rule, f" ({step.name})" if step.name else "")
        at = step.at
        place = None
        if at is not None and step.policy is not None:
            anchor = "" if at.is_in_cluster else f"#L{at.line}"
            href = f"{policy_address(step.policy)}{anchor}"
            place = tag("p", link(at.beside_object, href, class_="place"), class_="at")
        yield tag(
            "li",
            tag("span", step.tier, class_="tier"),
            tag("span", subject, class_="subject"),
            verdict_mark(step.verdict, phrase(step.verdict, step.reason)),
            tag("p", spoken(step.note), class_="note") if step.note else None,
            place,
            class_="station last" if is_last else "station",
        )
    if hidden:
        yield tag("li", f"and {len(hidden)} more policies without a match", class_="station")


def _otherwise(answer: Answer) -> Markup | None:
    """Say why the answer is not another one: who would have decided otherwise, and who had nothing to say."""
    if answer.plane == "gateway":
        return None  # The stack says it, level by level.
    notes = [joined(_subject(step), ": ", spoken(step.note)) for step in answer.steps if step.note]
    notes += map(spoken, getattr(answer.detail, "notes", ()))
    shadow = getattr(answer.detail, "shadow", None)
    if shadow is not None:
        notes.append(spoken(shadow.sentence))
    silent = [step for step in answer.steps if step.verdict is StepVerdict.NO_MATCH and step.policy is not None]
    passed = [step for step in answer.steps if step.verdict is StepVerdict.PASS]
    items: list[Child] = [tag("li", note) for note in dict.fromkeys(notes)]
    items += [
        tag("li", object_link(step.policy), " has no rule for this" if step in silent else " passed it on")
        for step in (*silent, *passed)[:MAX_SILENT]
        if step.policy is not None
    ]
    return tag("section", tag("h2", "Why not otherwise"), tag("ul", items)) if items else None


def _subject(step: Step) -> Markup:
    return object_link(step.policy) if step.policy is not None else tag("span", step.tier, class_="tier")


def _conditions(answer: Answer) -> Markup | None:
    """Show what a conditional answer depends on."""
    sets = getattr(answer.detail, "condition_sets", ())
    items = [
        tag("li", tag("span", str(condition.effect)), " if ", tag("code", condition.text))
        for opinion in sets
        for condition in opinion.conditions
    ]
    items += [tag("li", "the name looked up is ", tag("code", name)) for name in getattr(answer.detail, "domains", ())]
    return tag("section", tag("h2", "On these conditions"), tag("ul", items, class_="conditions")) if items else None
