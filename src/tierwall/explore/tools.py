"""`/tools`: callers by tools, one matrix per backend; `?caller=` is what `tierwall tools` lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.core.diagnostics import InputError
from tierwall.explore import named
from tierwall.explore.asked.meaning import asking
from tierwall.explore.markup import Markup, joined, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    counted,
    decider_links,
    failed,
    first,
    link,
    object_link,
    omission_list,
    opening,
    row,
    table,
    verdict_mark,
)
from tierwall.render.formats import View
from tierwall.render.json import dump, omission_documents
from tierwall.render.tool import tools_document
from tierwall.resources.resource import Resource
from tierwall.tool.grants import Grants, ToolRow
from tierwall.tool.possible import OTHER
from tierwall.world import World

# The most callers of a matrix, and the words beside the field that filters a table.
MAX_CALLERS, FILTER = 60, "Filter these rows"


def tools(explored: ExploredWorld, query: Query) -> Page:
    """Show what callers may call: all that policies name, or the one of `?caller=`."""
    caller = first(query, "caller")
    known = (caller,) if caller else named.callers(explored.world.snapshot)
    gateway, backend = (first(query, name) or None for name in ("gateway", "backend"))

    def granted_to(callers: Iterable[str]) -> list[tuple[str, Grants]]:
        return [(name, explored.world.grants(_caller(name), gateway, backend)) for name in callers]

    try:
        granted = granted_to(known[:MAX_CALLERS])
    except InputError as error:
        return failed("Who may call which tool", error, "tools")

    def document() -> str:
        every = [*granted, *granted_to(known[MAX_CALLERS:])]
        documents = [tools_document((grants, True), View(not_considered=grants.not_considered)) for _, grants in every]
        left_out = dict.fromkeys(omission for _, grants in every for omission in grants.not_considered)
        return dump(documents[0] if caller else {"callers": documents, "notConsidered": omission_documents(left_out)})

    omissions = dict.fromkeys(omission for _, grants in granted for omission in grants.not_considered)
    narrow = (("caller", caller), ("gateway", gateway), ("backend", backend))
    words = [part for name, value in narrow if value for part in (f"--{name}", value)]
    where = f"{f' of {backend}' if backend else ''}{f' through {gateway}' if gateway else ''}"
    title = f"What {caller} may call{where}" if caller else f"Who may call which tool{where}"
    cut = f"The first {MAX_CALLERS} of {counted(len(known), 'caller')}." if len(known) > MAX_CALLERS else None
    body = joined(
        opening(title, link("Show all", "/tools") if caller or where else None, cut),
        *_matrices(granted),
        tag("p", "No policy names a caller, and no backend a tool.", class_="empty")
        if not any(grants.rows for _, grants in granted)
        else None,
        omission_list(omissions),
    )
    return Page(
        title, document, body, command=explored.command("tools", *words, "--all") if caller else "", room="tools"
    )


def _caller(name: str) -> str | dict[str, str]:
    return name if name.startswith("spiffe://") else {"serviceAccount": name}


def _matrices(granted: list[tuple[str, Grants]]) -> Iterator[Markup]:
    """Yield a matrix for each way: a row for each caller, a column for each tool, `*` for any other.

    Most Services of a cluster offer no tools: backends where every caller gets one answer share a table.
    """
    plain: list[Markup] = []
    ways: dict[tuple[str, str, str], dict[str, dict[str, ToolRow]]] = {}
    for caller, grants in granted:
        for rows in grants.ways:
            key = str(rows[0].backend), str(rows[0].gateway), rows[0].listener
            ways.setdefault(key, {})[caller] = {each.tool: each for each in rows}
    for (backend, gateway, listener), by_caller in ways.items():
        columns = sorted({tool for rows in by_caller.values() for tool in rows}, key=lambda tool: (tool == OTHER, tool))
        some = next(iter(next(iter(by_caller.values())).values()))
        if (
            columns == [OTHER]
            and len({(rows[OTHER].verdict, rows[OTHER].conditions) for rows in by_caller.values()}) == 1
        ):
            plain.append(row(object_link(some.backend), f"{gateway}#{listener}", _cell("", some)))
            continue
        heads = ["Caller", *("any other tool" if tool == OTHER else tool for tool in columns)]
        rows_shown = [
            row(link(caller, f"/tools?caller={_quoted(caller)}"), *(_cell(caller, rows.get(tool)) for tool in columns))
            for caller, rows in by_caller.items()
        ]
        yield tag(
            "section",
            tag("h2", object_link(some.backend), tag("span", f" through {gateway}#{listener}", class_="quiet-text")),
            table(heads, rows_shown, f"Callers by tools of {backend}", class_="matrix"),
        )
    if plain:
        who = "Every caller gets" if len(granted) > 1 else "This caller gets"
        yield tag(
            "section",
            tag("h2", "Backends of which no tool is named"),
            tag("p", f"{who} the same answer for any tool.", class_="hint"),
            table(("Backend", "Through", "Any tool"), plain, "Backends of which no tool is named", data_filter=FILTER),
        )


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _cell(caller: str, permit: ToolRow | None) -> Markup:
    if permit is None:
        return verdict_mark("NoMatch", "—")
    conditions = [tag("p", "if ", tag("code", condition)) for condition in permit.conditions]
    why = tag("p", decider_links(permit.decided_by), class_="why") if permit.decided_by else None
    if permit.tool == OTHER:
        return joined(verdict_mark(permit.verdict), conditions, why)
    terms = {
        "gateway": f"{permit.gateway.namespace}/{permit.gateway.name}",
        "listener": permit.listener,
        "backend": str(permit.backend),
        "caller": caller,
        "method": "tools/call",
        "tool": permit.tool,
    }
    mark = link(
        verdict_mark(permit.verdict),
        asking("tool", **terms),
        aria_label=f"{permit.verdict}: {caller} calls {permit.tool}",
    )
    return joined(mark, conditions, why)


def decided_tools(world: World, resource: Resource) -> Iterator[tuple[str, str]]:
    """Yield what an AccessPolicy takes part in deciding, with the address of the question."""
    policy = str(resource.reference)
    for caller in named.callers(world.snapshot)[:MAX_CALLERS]:
        for permit in world.grants(_caller(caller)).rows:
            if permit.tool != OTHER and any(str(decider.policy) == policy for decider in permit.decided_by):
                gateway = f"{permit.gateway.namespace}/{permit.gateway.name}"
                terms = {"gateway": gateway, "listener": permit.listener, "backend": str(permit.backend)}
                href = asking("tool", **terms, caller=caller, method="tools/call", tool=permit.tool)
                yield f"{permit.verdict}: {caller} calls {permit.tool} of {permit.backend}", href
