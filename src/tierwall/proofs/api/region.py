"""The region of a proof about the api plane: which requests it is about (docs/prove.md#regions)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.cel.syntax.ast import Expr
from tierwall.proofs.expression import read_expression
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.value_set import ValueSet

FIELDS = ("user", "verb", "group", "version", "resource", "subresource", "namespace", "name", "path")


class ApiRegion(Struct, frozen=True):
    """Requests: the values that each attribute may have, groups, and an expression that must be true."""

    fields: Mapping[str, ValueSet] = {}
    has_groups: tuple[str, ...] = ()
    lacks_groups: tuple[str, ...] = ()
    where: Expr | None = None


def read_region(value: object, reader: ProofReader) -> ApiRegion:
    """Read a region. Everything wrong with it is noted by the reader."""
    given = reader.map(value, "`api`", (*FIELDS, "groups", "where"))
    fields = {key: reader.at(key).value_set(given[key], key) for key in FIELDS if key in given}
    groups = reader.at("groups").map(given.get("groups", {}), "`groups`", ("has", "lacks"))
    has, lacks = (
        reader.at("groups", key).strings(groups[key], key, "a list of groups") if key in groups else ()
        for key in ("has", "lacks")
    )
    return ApiRegion(fields, has, lacks, read_expression(given.get("where"), "where", ENVIRONMENT, reader.at("where")))
