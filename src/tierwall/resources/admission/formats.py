"""Formats of strings by name, in the API server's words.

Formats that begin with `k8s-` are apimachinery's checks (`values/names.py`), which give every reason at once.
The others are OpenAPI's (`values/formats.py`), which have no reasons beyond their name.
"""

from collections.abc import Callable
from typing import Any

from tierwall.cel.library.url import request_uri_problem
from tierwall.values import formats, names
from tierwall.values.addresses import read_cidr

Reasons = Callable[[Any], list[str]]


def port(value: int | str) -> list[str]:
    """A port number, or a port's name."""
    if isinstance(value, str):
        return names.port_name(value)
    return [] if 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]


def cidr(text: str) -> list[str]:
    """A CIDR as fields older than strict validation take it: host bits and leading zeros are let through."""
    if read_cidr(text) is None:
        return ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
    return []


def _named(reasons: names.Reasons) -> Reasons:
    """An empty name is a missing one; that is for a rule to say."""
    return lambda text: reasons(text) if text else []


KUBERNETES: dict[str, Reasons] = {
    "k8s-long-name": _named(names.dns_subdomain),
    "k8s-short-name": _named(names.dns_label),
    "k8s-service-name": _named(names.dns_label_1035),
    "k8s-path-segment-name": names.path_segment,
    "k8s-long-name-prefix": _named(names.prefix_of(names.dns_subdomain)),
    "k8s-short-name-prefix": _named(names.prefix_of(names.dns_label)),
    "k8s-service-name-prefix": _named(names.prefix_of(names.dns_label_1035)),
    "k8s-path-segment-name-prefix": names.path_segment_prefix,
    "k8s-label-key": names.label_key,
    "k8s-annotation-key": names.annotation_key,
    "k8s-label-value": names.label_value,
    "k8s-port-name": names.port_name,
    "k8s-port": port,
    "k8s-cidr": cidr,
}

_OPENAPI: dict[str, Callable[[str], bool]] = {
    **formats.FORMATS,
    "uri": lambda text: request_uri_problem(text) is None,
}


def openapi(name: str) -> Callable[[str], bool] | None:
    """What a text of a format of OpenAPI is like; None if nobody knows. Dashes in the name are without meaning."""
    return _OPENAPI.get(name.replace("-", ""))
