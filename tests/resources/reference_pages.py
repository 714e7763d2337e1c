"""Writes the reference pages of the kinds from their schemas, one page per API group.

A test keeps those in `docs/reference/kinds` equal to the schemas; `pytest --renew tests/resources` writes them anew.
A fragment that a kind uses in several places is described at the first, and the others refer to it.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET

from tierwall.resources.admission.wording import go_value
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema, ValidationRule

_WORTH_POINTING_AT = 2  # fields; smaller fragments are simply repeated


def pages() -> dict[str, str]:
    """Return the pages by file name: one per API group, and an index."""
    groups: dict[str, list[Kind]] = {}
    for kind in all_kinds():
        groups.setdefault(kind.group, []).append(kind)
    out = {f"{group or 'core'}.md": _page(group, kinds) for group, kinds in groups.items()}
    out["index.md"] = _index(groups)
    return out


def _index(groups: dict[str, list[Kind]]) -> str:
    lines = [
        "# Kinds",
        "",
        "Every kind that Tierwall judges or reads. Policy kinds are strict: an unknown field is an error. Kinds that",
        "are only read tolerate fields that no decision looks at. `tierwall crds` prints the custom resources.",
        "",
        "| kind | apiVersion | scope | |",
        "|---|---|---|---|",
    ]
    for group, kinds in groups.items():
        for kind in kinds:
            scope = {"None": "a file"}.get(kind.scope, kind.scope)
            link = f"[{kind.kind}]({group or 'core'}.md#{_anchor(kind)})"
            lines.append(f"| {link} | `{kind.api_version}` | {scope} | {kind.description} |")
    return "\n".join(lines) + "\n"


def _anchor(kind: Kind) -> str:
    return f"{kind.kind}-{kind.version}".lower()


def _page(group: str, kinds: Iterable[Kind]) -> str:
    lines = [f"# {group or 'core (v1)'}", ""]
    done: dict[bytes, Kind] = {}
    for kind in kinds:
        lines += [f"## {kind.kind} {kind.version}", ""]
        facts = [f"`{kind.api_version}`", {"None": "a file"}.get(kind.scope, kind.scope.lower())]
        facts += [f"short name {', '.join(f'`{name}`' for name in kind.short_names)}"] if kind.short_names else []
        facts.append("strict" if kind.strict else "only read: unknown fields are tolerated")
        lines += [f"{kind.description} ({'; '.join(facts)})".strip(), ""]
        same = done.setdefault(msgspec.json.encode(kind.schema), kind)
        if same is not kind:
            lines += [f"The fields are those of [{same.kind} {same.version}](#{_anchor(same)}).", ""]
        else:
            lines += [*_rules(kind.schema.rules, ""), *_fields(kind.schema, "", 0, {}), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fields(schema: Schema, path: str, depth: int, seen: dict[Schema, str]) -> Iterator[str]:
    for part in schema.properties:
        name = f"{path}.{part.name}" if path else part.name
        inner, suffix = _inside(part.schema)
        text = " ".join(filter(None, (part.description or part.schema.description, _limits(part.schema))))
        need = ", required" if part.required else ""
        line = f"{'    ' * depth}* `{part.name}` ({_type(part.schema)}{need})" + (f": {text}" if text else "")
        known = seen.get(inner)
        if known is not None:
            yield f"{line} Same as `{known}`."
            continue
        yield line
        yield from _rules(part.schema.rules, "    " * (depth + 1))
        if inner is not part.schema:
            yield from _rules(inner.rules, "    " * (depth + 1))
        if len(inner.properties) >= _WORTH_POINTING_AT:
            seen[inner] = name + suffix
        yield from _fields(inner, name + suffix, depth + 1, seen)


def _inside(schema: Schema) -> tuple[Schema, str]:
    """Return the schema of the items of a list or the values of a map, whose fields are listed."""
    suffix = ""
    while schema.items is not None or schema.additional is not None:
        inner = schema.items or schema.additional
        suffix += "[]" if schema.items is not None else ".*"
        assert inner is not None
        schema = inner
    return schema, suffix


def _type(schema: Schema) -> str:
    if schema.int_or_string:
        return "integer or string"
    if schema.items is not None:
        return f"list of {_type(schema.items)}"
    if schema.additional is not None:
        return f"map to {_type(schema.additional)}"
    return schema.type or "any value"


def _limits(schema: Schema) -> str:
    inner, _ = _inside(schema)
    facts: list[str] = []
    for node in (schema,) if inner is schema else (schema, inner):
        facts += _bounds("items", node.min_items, node.max_items)
        facts += _bounds("characters", node.min_length, node.max_length)
        facts += _bounds("fields", node.min_properties, node.max_properties)
        if node.minimum is not None or node.maximum is not None:
            facts += _bounds("", _plain(node.minimum), _plain(node.maximum))
        if node.enum:
            facts.append("one of " + ", ".join(f"`{value}`" for value in node.enum))
        if node.pattern:
            facts.append(f"matches `` {node.pattern} ``")
        if node.format:
            facts.append(f"format `{node.format}`")
        if node.list_type == "set":
            facts.append("no repeats")
        if node.list_map_keys:
            facts.append(f"unique {', '.join(f'`{name}`' for name in node.list_map_keys)}")
        if node.default is not UNSET:
            facts.append(f"default `{go_value(node.default)}`")
    return f"({'; '.join(facts)})" if facts else ""


def _plain(number: float | None) -> int | None:
    return None if number is None else int(number)


def _bounds(what: str, least: int | None, most: int | None) -> list[str]:
    tail = f" {what}" if what else ""
    if least is not None and most is not None:
        return [f"exactly {least}{tail}".removesuffix("s") if least == most == 1 else f"{least} to {most}{tail}"]
    if least is not None:
        return [f"at least {least}{tail}"]
    return [f"at most {most}{tail}"] if most is not None else []


def _rules(rules: Iterable[ValidationRule], indent: str) -> Iterator[str]:
    for rule in rules:
        word = "warning" if rule.warning else "rule"
        message = (rule.message or rule.message_expression or "must hold").replace("\n", " ")
        # A pattern inside the message would be read as a link or as emphasis.
        if "](" in message or "*" in message:
            message = re.sub(r"[\\\[\]*]", r"\\\g<0>", message)
        yield f"{indent}* *{word}:* {message}: `` {' '.join(rule.expression.split())} ``"


def write(folder: Path) -> None:
    """Write all pages into `folder`, and remove pages of groups that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
