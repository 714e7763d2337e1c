"""The functions of each library. A library is one module; it is imported when an expression names one of its functions.

Where several libraries have a function (`indexOf` of strings and of lists), its overloads are tried in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from tierwall.cel.library.table import Overload

LIBRARIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        library: frozenset(functions.split())
        for library, functions in {
            "operators": "_?_:_ _&&_ _||_ !_ _==_ _!=_ @in _[_] _<_ _<=_ _>_ _>=_ _+_ _-_ _*_ _/_ _%_ -_ size",
            "conversions": """
                type dyn bool bytes double duration int string timestamp uint base64.encode base64.decode""",
            "time": """
                getFullYear getMonth getDayOfYear getDayOfMonth getDate getDayOfWeek getHours getMinutes getSeconds
                getMilliseconds""",
            "strings": """
                contains endsWith startsWith matches charAt indexOf lastIndexOf lowerAscii upperAscii replace split
                substring trim join format strings.quote reverse jsonpatch.escapeKey""",
            "lists": """
                isSorted max min sort @sortByAssociatedKeys sum indexOf lastIndexOf includes slice flatten lists.range
                reverse distinct sets.contains sets.equivalent sets.intersects""",
            "regex": "find findAll",
            "url": "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery",
            "quantity": """
                quantity isQuantity sign isGreaterThan isLessThan compareTo asApproximateFloat asInteger isInteger add
                sub""",
            "addresses": """
                ip isIP ip.isCanonical string family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast
                isGlobalUnicast cidr isCIDR containsIP containsCIDR prefixLength masked""",
            "format": """
                format.named validate format.dns1123Label format.dns1123Subdomain format.dns1035Label
                format.qualifiedName format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix
                format.labelValue format.uri format.uuid format.byte format.date format.datetime""",
            "semver": "semver isSemver isGreaterThan isLessThan compareTo major minor patch",
            "optionals": """
                optional.of optional.ofNonZeroValue optional.none optional.unwrap unwrapOpt value hasValue or orValue
                _[?_] _[_] first last""",
            "authorizer": """
                path group serviceAccount resource subresource namespace name fieldSelector labelSelector check errored
                error allowed reason""",
            "math": """
                math.greatest math.least math.ceil math.floor math.trunc math.round math.isNaN math.isInf
                math.isFinite math.abs math.sign math.sqrt math.bitAnd math.bitOr math.bitXor math.bitNot
                math.bitShiftLeft math.bitShiftRight""",
        }.items()
    }
)
FUNCTIONS: frozenset[str] = frozenset().union(*LIBRARIES.values())


def overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of a function in all releases and extensions; an unknown name has none."""
    return _overloads(function) if function in FUNCTIONS else ()


def library_overloads(library: str) -> tuple[Overload, ...]:
    """Return the overloads of one library."""
    declared: tuple[Overload, ...] = import_module(f"{__name__}.{library}").OVERLOADS
    return declared


@cache
def _overloads(function: str) -> tuple[Overload, ...]:
    return tuple(
        overload
        for library, functions in LIBRARIES.items()
        if function in functions
        for overload in library_overloads(library)
        if overload.function == function
    )
