"""Lines of the decision log as JSON: what Envoy and the authorizer decided (docs/run.md, docs/authorizer.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tierwall.core.event import Event
from tierwall.render.json import given
from tierwall.tool.request import RequestSeen


def request_document(event: Event) -> dict[str, Any]:
    """A request to a tool; what is not known is left out."""
    request: RequestSeen = event.detail
    (decider,) = event.decided_by
    return given(
        time=time_text(event.time),
        plane=event.plane,
        caller=request.caller,
        gateway=request.gateway,
        listener=request.listener,
        backend=request.backend,
        method=request.method,
        tool=request.tool,
        uri=request.uri,
        http=request.http,
        status=request.status,
        verdict=str(event.verdict),
        level=request.level,
        policy=str(decider.policy),
        # Of a request that no policy was asked about, what was wrong with it.
        rule=request.said if request.refused else decider.rule,
        name=decider.name,
        detail=request.said,
        seconds=request.seconds,
    )


def review_document(record: msgspec.Struct, time: datetime, seconds: float) -> dict[str, Any]:
    """A request to the authorizer, which keeps of it what the log shows; what is empty is left out."""
    return {
        "time": time.isoformat(timespec="microseconds"),
        **msgspec.to_builtins(record),
        "seconds": round(seconds, 6),
    }


def time_text(time: datetime) -> str:
    """A time as logs have it: UTC, to the millisecond."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
