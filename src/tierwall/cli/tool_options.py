"""The options with which `explain tool` and `tools` say who asks, and what an HTTP request has."""

from __future__ import annotations

from typing import Any

import click

caller_option = click.option(
    "--caller", metavar="ID", help="SPIFFE id or NS/SERVICEACCOUNT; without it a caller without an identity."
)


def caller(text: str | None) -> Any:
    """`caller` of a question: a SPIFFE id as it is, anything else as a ServiceAccount `namespace/name`."""
    if text is None or text.startswith("spiffe:"):
        return text
    return {"serviceAccount": text}


def pairs(given: tuple[str, ...], option: str, separator: str) -> dict[str, str]:
    """`NAME=VALUE` (or `NAME: VALUE`) options as a map."""
    out: dict[str, str] = {}
    for text in given:
        key, found, value = text.partition(separator)
        if not found or not key.strip():
            raise click.UsageError(f"expected NAME{separator}VALUE for {option}, found `{text}`")
        out[key.strip()] = value.strip()
    return out
