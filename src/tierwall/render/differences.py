"""Differences on every plane, for `diff`, as text, Markdown and JSON (docs/compare.md#differences)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tierwall.analyze.diff import PlaneComparison
from tierwall.analyze.difference import OF_CONNECTIONS, Difference, SettledVerdict
from tierwall.core.words import count_noun
from tierwall.gateway.detail import Setting
from tierwall.render import connections
from tierwall.render.connections import in_cell
from tierwall.render.formats import View
from tierwall.render.json import decider_documents, json_line, non_empty, omission_documents
from tierwall.render.quotation import shortened

SIGNS = {"opens": "+ ", "closes": "- ", "alters": "~ "}
_NOUNS = {"network": "connection", "tool": "tool request", "gateway": "setting", "api": "permission"}
_VERBS = {"opens": ("opens", "open"), "closes": ("closes", "close"), "alters": ("changes", "change")}
# The most items of a sentence, and the most reasons below it.
MAX_ITEMS, MAX_REASONS = 12, 3


def text(compared: PlaneComparison, view: View) -> Iterator[str]:
    """Write a summary, the connections, and one line for differences of other planes that agree in all but one part."""
    yield summary(compared)
    yield from connections.text(compared.connections, view)
    summaries = field_summaries(compared.differences)
    for together in grouped(compared.differences):
        if line := summaries.pop(together[0].field, ""):
            yield line
        yield f"{SIGNS[together[0].change]}{sentence(together)}"
        yield from (f"    {reason}" for reason in reasons(together))


def markdown(compared: PlaneComparison, view: View) -> Iterator[str]:
    """Write a summary, the table of connections, and a table of the differences of other planes."""
    yield summary(compared)
    if compared.connections:
        yield ""
        yield from connections.markdown(compared.connections, view)
    summaries = field_summaries(compared.differences)
    if summaries:
        yield ""
    yield from (f"* {in_cell(line)}" for line in summaries.values())
    if compared.differences:
        yield ""
        yield "| plane | change | what | because |"
        yield "|---|---|---|---|"
    for together in grouped(compared.differences):
        cells = map(in_cell, (together[0].plane, together[0].change, sentence(together)))
        why = "<br>".join(map(in_cell, reasons(together)))
        yield f"| {' | '.join(cells)} | {why} |"


def document(compared: PlaneComparison, view: View) -> Iterator[str]:
    """Write a document with one difference per line."""
    yield '{"differences": ['
    yield from connections.separated(json_line(difference_document(difference)) for difference in compared.differences)
    yield f'], "notConsidered": {json_line(omission_documents(view.not_considered))}}}'


def difference_document(difference: Difference) -> dict[str, Any]:
    """Return one difference; `field` is that of a setting, `covers` what the question stands for."""
    return {
        "plane": difference.plane,
        "change": difference.change,
        "question": dict(difference.question),
        **non_empty(field=difference.field),
        "before": _side(difference.before),
        "after": _side(difference.after),
        **non_empty(covers=dict(difference.covers) or None),
        "sentence": difference.sentence,
    }


def _side(side: SettledVerdict | Setting | None) -> dict[str, Any] | None:
    if side is None:
        return None
    if isinstance(side, Setting):
        return {"value": side.value, "from": side.written_from}
    return {
        "verdict": str(side.verdict),
        "decidedBy": decider_documents(side.decided_by),
        **non_empty(conditions=list(side.conditions) or None),
    }


def summary(compared: PlaneComparison) -> str:
    """Count what opens, closes and changes: `3 connections open, 1 closes; 2 settings change`."""
    counts: dict[tuple[str, str], int] = {}
    for entry in compared.connections:
        key = "network", OF_CONNECTIONS[entry.change]
        counts[key] = counts.get(key, 0) + 1
    for change, number in compared.more.items():
        counts["network", OF_CONNECTIONS[change]] = counts.get(("network", OF_CONNECTIONS[change]), 0) + number
    for difference in compared.differences:
        key = difference.plane, difference.change
        counts[key] = counts.get(key, 0) + 1
    planes = []
    for plane, noun in _NOUNS.items():
        numbers = [(change, counts[plane, change]) for change in SIGNS if (plane, change) in counts]
        if numbers:
            (first, number), *more = numbers
            least = "at least " if compared.cut and plane == "network" else ""
            words = [f"{least}{number:,} {noun}{'' if number == 1 else 's'} {_verb(first, number)}"]
            words += [f"{number:,} {_verb(change, number)}" for change, number in more]
            planes.append(", ".join(words))
    unchanged = "nothing changes in what was compared" if compared.not_considered else "nothing changes"
    return "; ".join(planes) or unchanged


def _verb(change: str, number: int) -> str:
    return _VERBS[change][number != 1]


def field_summaries(differences: Iterable[Difference]) -> dict[str, str]:
    """Say of each setting that differs at several places how many routes lose, change or get it, by field."""
    by_field: dict[str, list[Difference]] = {}
    for difference in differences:
        if difference.field:
            by_field.setdefault(difference.field, []).append(difference)
    return {field: _field_summary(field, several) for field, several in by_field.items() if len(several) > 1}


def _field_summary(field: str, differences: list[Difference]) -> str:
    """Write a line such as `traffic.jwtAuthentication: 14 routes lose it`."""
    places: dict[str, dict[str, None]] = {}
    for difference in differences:
        if difference.after is None:
            verb = "lose"
        elif difference.before is None:
            verb = "get"
        else:
            verb = "change"
        # A place without a route is one by itself: a Gateway, or a listener with models.
        place = difference.question.get("route") or json_line(difference.question)
        places.setdefault(verb, {})[place] = None
    is_of_routes = all(name.startswith(("HTTPRoute/", "GRPCRoute/")) for names in places.values() for name in names)
    noun = "route" if is_of_routes else "place"
    parts = [
        f"{count_noun(len(places[verb]), noun)} {verb if len(places[verb]) > 1 else f'{verb}s'} it"
        for verb in ("lose", "change", "get")
        if verb in places
    ]
    return f"{field}: {', '.join(parts)}"


def grouped(differences: Iterable[Difference]) -> Iterator[list[Difference]]:
    """Yield the differences that one sentence can tell; those of one setting follow each other."""
    together: dict[tuple[object, ...], list[Difference]] = {}
    for difference in differences:
        before, _, after = difference.words
        settings = ""
        if difference.plane == "gateway":
            settings = json_line([_side(difference.before), _side(difference.after)])
        together.setdefault((difference.plane, difference.change, before, after, settings), []).append(difference)
    order = list(dict.fromkeys((several[0].plane, several[0].field) for several in together.values()))
    yield from sorted(together.values(), key=lambda several: order.index((several[0].plane, several[0].field)))


def sentence(together: list[Difference]) -> str:
    """Write one sentence for differences that agree in all but one part."""
    before, _, after = together[0].words
    items = list(dict.fromkeys(difference.words[1] for difference in together))
    if together[0].plane in ("tool", "api"):
        items = _shared_words(items)
    shown = items[:MAX_ITEMS]
    if len(items) > len(shown):
        shown.append(f"{len(items) - len(shown)} more")
    separator = "; " if together[0].plane == "gateway" else ", "
    return " ".join(filter(None, (before, separator.join(shown), after)))


def _shared_words(items: list[str]) -> list[str]:
    """Write `get, list pods` for `get pods` and `list pods`, and then `call a, b` for `call a` and `call b`."""
    heads: dict[str, list[str]] = {}
    for item in items:
        head, _, tail = item.partition(" ")
        heads.setdefault(tail, []).append(head)
    tails: dict[str, list[str]] = {}
    for tail, members in heads.items():
        tails.setdefault(", ".join(members), []).append(tail)
    return [f"{head} {', '.join(members)}" for head, members in tails.items()]


def reasons(together: list[Difference]) -> list[str]:
    """Return what decided before and what decides now, for each way in which the differences are decided."""
    lines = dict.fromkeys(
        f"before, {_why(difference.before)}; now, {_why(difference.after)}" for difference in together
    )
    shown = list(lines)[:MAX_REASONS]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return shown


def _why(side: SettledVerdict | Setting | None) -> str:
    if side is None:
        return "nothing"
    if isinstance(side, Setting):
        return shortened(json_line(side.value))
    conditions = f" ({shortened('; '.join(side.conditions))})" if side.conditions else ""
    return f"{side}{conditions}"
