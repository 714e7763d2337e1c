"""The detail of a path answer (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from msgspec import Struct

from tierwall.core.answer import Answer
from tierwall.core.reference import Reference


class PathDetail(Struct, frozen=True):
    """The hops of a path in order, each an answer of its plane, and the stations between them.

    The hops are the connection to the Gateway, the call, and the connection to the backend. A connection that cannot be
    judged is `NotApplicable`, and has no detail.
    """

    hops: tuple[Answer, ...]
    source: str
    caller: str
    gateway: Reference
    backend: Reference
    # The pods of the Gateway, if they are known, and where the backend leads.
    gateway_pods: tuple[str, ...] = ()
    leads_to: str = ""
