"""The function libraries, one file each; `OVERLOADS` is the one function table, all releases and extensions in it."""

from __future__ import annotations

from tierwall.cel.library import (
    addresses,
    authorizer,
    conversions,
    format,
    lists,
    math,
    operators,
    optionals,
    quantity,
    regex,
    semver,
    strings,
    time,
    url,
)
from tierwall.cel.library.table import Overload

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
        addresses,
        format,
        semver,
        optionals,
        authorizer,
        math,
    )
    for overload in library.OVERLOADS
)
