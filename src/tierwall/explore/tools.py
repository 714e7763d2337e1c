"""`/tools`: callers by tools, one matrix per backend; `?caller=` is what `tierwall tools` lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.core.diagnostics import InputError
from tierwall.explore import named
from tierwall.explore.asked.meaning import asking
from tierwall.explore.markup import Markup, joined, tag
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
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
from tierwall.render.json import omission_documents
from tierwall.render.tool import tools_document
from tierwall.resources.resource import Resource
from tierwall.tool.grants import Grants, ToolRow
from tierwall.tool.possible import OTHER
from tierwall.world import World

# The most callers of a matrix.
MAX_CALLERS = 60


def tools(explored: ExploredWorld, query: Query) -> Page:
    """Show what callers may call: all that policies name, or the one of `?caller=`."""
    caller = first(query, "caller")
    callers = (caller,) if caller else named.callers(explored.world.snapshot)[:MAX_CALLERS]
    gateway, backend = (first(query, name) or None for name in ("gateway", "backend"))
    try:
        granted = [(name, explored.world.grants(_caller(name), gateway, backend)) for name in callers]
    except InputError as error:
        return failed("Who may call which tool", error, "tools")
    documents = [tools_document((grants, True), View(not_considered=grants.not_considered)) for _, grants in granted]
    document: dict[str, Any] = documents[0] if caller else {"callers": documents}
    omissions = dict.fromkeys(omission for _, grants in granted for omission in grants.not_considered)
    if not caller:
        document["notConsidered"] = omission_documents(omissions)
    words = ["--caller", caller] if caller else []
    title = f"What {caller} may call" if caller else "Who may call which tool"
    total = len(named.callers(explored.world.snapshot))
    cut = f"The first {MAX_CALLERS} of {total:,} callers." if total > MAX_CALLERS else None
    body = joined(
        opening(title, link("All callers", "/tools") if caller else cut),
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
    """Yield a matrix for each way: a row for each caller, a column for each tool, `*` for any other."""
    ways: dict[tuple[str, str, str], dict[str, dict[str, ToolRow]]] = {}
    for caller, grants in granted:
        for rows in grants.ways:
            key = str(rows[0].backend), str(rows[0].gateway), rows[0].listener
            ways.setdefault(key, {})[caller] = {each.tool: each for each in rows}
    for (backend, gateway, listener), by_caller in ways.items():
        columns = sorted({tool for rows in by_caller.values() for tool in rows}, key=lambda tool: (tool == OTHER, tool))
        some = next(iter(next(iter(by_caller.values())).values()))
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


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _cell(caller: str, permit: ToolRow | None) -> Markup:
    if permit is None:
        return verdict_mark("NoMatch", "—")
    conditions = [tag("p", "if ", tag("code", condition)) for condition in permit.conditions]
    if permit.tool == OTHER:
        return joined(verdict_mark(permit.verdict), conditions)
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
    why = tag("p", decider_links(permit.decided_by), class_="why")
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
