"""The function libraries, one file each; `OVERLOADS` is the one function table, all releases and extensions in it."""

from __future__ import annotations

from tierwall.cel.library import (
    authorizer,
    cidr,
    conversions,
    encoders,
    format,
    ip,
    jsonpatch,
    lists,
    math,
    operators,
    optionals,
    quantity,
    regex,
    semver,
    sets,
    strings,
    time,
    url,
)
from tierwall.cel.table import Overload

OVERLOADS: tuple[Overload, ...] = tuple(
    overload
    for library in (
        operators,
        conversions,
        time,
        strings,
        lists,
        regex,
        url,
        quantity,
        ip,
        cidr,
        format,
        semver,
        sets,
        optionals,
        authorizer,
        jsonpatch,
        math,
        encoders,
    )
    for overload in library.OVERLOADS
)
