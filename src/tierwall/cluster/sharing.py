"""Parts that objects of a cluster have in common are kept once: the pods of a workload differ in little but names.

A value never changes once it was read, so objects can share parts.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

# By their bytes: maps cannot be looked up. Text stands for itself.
SharedParts: TypeAlias = dict[bytes | str, Any]

_PARTS = {
    "metadata": ("namespace", "labels", "ownerReferences", "creationTimestamp"),
    "spec": ("containers", "initContainers", "nodeName", "serviceAccountName", "podSelector", "ingress", "egress"),
    "status": ("phase", "hostIP"),
}
# A follower sees other parts as time goes by, and must not keep those of long ago.
_MAX_PARTS = 200_000
_encode = msgspec.msgpack.Encoder().encode


def share_parts(value: dict[str, Any], parts: SharedParts) -> None:
    """Replace parts of an object by equal ones of earlier objects, and remember those that are new."""
    if len(parts) > _MAX_PARTS:
        parts.clear()
    for section, keys in _PARTS.items():
        fields = value.get(section)
        if isinstance(fields, dict):
            for key in keys:
                if key in fields:
                    part = fields[key]
                    try:
                        fields[key] = parts.setdefault(part if isinstance(part, str) else _encode(part), part)
                    except (OverflowError, RecursionError, TypeError, ValueError):
                        # Of a strange form: numbers of any length, say.
                        continue
