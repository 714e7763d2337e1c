"""The region of a proof about the tool plane: which requests it is about (docs/prove.md#regions)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.cel.syntax.ast import Expr
from tierwall.proofs.expression import read_expression
from tierwall.proofs.reader import ProofReader, shown
from tierwall.proofs.value_set import SetForm, ValueSet
from tierwall.tool.rules import is_spiffe_id, service_account_id

PLACES = ("gateway", "listener", "backend")
NAMES = ("method", "tool", "uri")
HTTP = ("method", "path", "host", "headers")


class ToolRegion(Struct, frozen=True):
    """Requests on one way: the values that each part may have, and an expression that must be true."""

    gateway: str | None = None
    listener: str | None = None
    backend: str | None = None
    # None is anybody; an empty list is a caller without an identity.
    caller: ValueSet | None = None
    names: Mapping[str, ValueSet] = {}
    http: Mapping[str, ValueSet] = {}
    headers: Mapping[str, ValueSet] = {}
    where: Expr | None = None


def read_region(value: object, reader: ProofReader) -> ToolRegion:
    """Read a region. Everything wrong with it is noted by the reader."""
    given = reader.map(value, "`tool`", (*PLACES, "caller", *NAMES, "http", "where"))
    places: dict[str, str] = {}
    for key in PLACES:
        if key in given:
            if isinstance(given[key], str):
                places[key] = given[key]
            else:
                reader.at(key).refuse(f"expected one name as `{key}`, found {shown(given[key])}")
        elif key != "listener":
            reader.refuse(f"expected `{key}` in `tool`: a proof is about one way")
    http = reader.at("http").map(given.get("http", {}), "`http`", HTTP)
    headers = http.get("headers", {})
    if not isinstance(headers, Mapping):
        reader.at("http", "headers").refuse(f"expected a map as `http.headers`, found {shown(headers)}")
        headers = {}
    return ToolRegion(
        places.get("gateway"),
        places.get("listener"),
        places.get("backend"),
        _caller(given["caller"], reader.at("caller")) if "caller" in given else None,
        {key: reader.at(key).value_set(given[key], key) for key in NAMES if key in given},
        {key: reader.at("http", key).value_set(http[key], f"http.{key}") for key in HTTP[:3] if key in http},
        {
            str(name).lower(): reader.at("http", "headers", name).value_set(values, f"http.headers.{name}")
            for name, values in headers.items()
        },
        read_expression(given.get("where"), "where", ENVIRONMENT, reader.at("where"), is_checked=True),
    )


def _caller(value: object, reader: ProofReader) -> ValueSet:
    if value == "none" or value is None:
        return ValueSet(SetForm.IN, ())
    if isinstance(value, Mapping) and set(value) == {"serviceAccount"}:
        account = value["serviceAccount"]
        if isinstance(account, str) and account.count("/") == 1 and all(account.split("/")):
            namespace, _, name = account.partition("/")
            return ValueSet(SetForm.IN, (service_account_id(namespace, name),))
        reader.refuse(f"expected namespace/name as `serviceAccount`, found {shown(account)}")
        return ValueSet(SetForm.IN, ())
    values = reader.value_set(value, "caller")
    if values.form in (SetForm.IN, SetForm.NOT):
        for text in values.values:
            if not is_spiffe_id(text):
                reader.refuse(
                    f"expected a SPIFFE id as `caller`, found `{text}`",
                    "write {serviceAccount: namespace/name}, or none",
                )
    return values
