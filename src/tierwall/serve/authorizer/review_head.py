"""The head of an AdmissionReview: everything before its objects, for reviews that are too long or too deep to be read.

API servers write the objects last, before the options, so the head has who does what to which resource. Where no
condition is about that, the objects do not matter, and such an object locks nobody out
(docs/authorizer.md#long-objects).
"""

from __future__ import annotations

import re

# Groups and extra fields of a user may be long; no API server writes as much of them.
MAX_HEAD_BYTES = 1 << 20
# Strings and brackets; everything between them is skipped. A string that is cut off is one, or every quote inside it
# would be tried as the beginning of another.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)
_OBJECTS = frozenset((b'"object"', b'"oldObject"'))
# The depth of the fields of `request`.
_DEPTH = 2


def review_head(body: bytes) -> bytes | None:
    """Return a review without its objects and what follows them, given its first bytes; None if they have no head."""
    depth = 0
    for token in _TOKENS.finditer(body, 0, MAX_HEAD_BYTES):
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == _DEPTH and text in _OBJECTS and body[token.end() : token.end() + 16].lstrip().startswith(b":"):
            before = body[: token.start()].rstrip()
            if not before.endswith(b","):
                return None
            return before[:-1] + b"}" * _DEPTH
    return None
