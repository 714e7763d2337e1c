"""The objects that one question needs (`tierwall snapshot --for`, docs/clusters.md#one-question).

Nothing is derived from how planes decide: objects are left out, and the question is asked again. So the answer to what
is left is the same, whatever the question is about, and a bug of a decision stays in the file that reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tierwall.resources.resource import Resource
from tierwall.values.pattern import pattern

# Asking takes time. What is left after so many questions is small enough.
_MAX_QUESTIONS = 1000
_WORD = pattern(r"[^\s/#:,`'\"()]+")


def needed_objects(resources: Sequence[Resource], ask: Callable[[Sequence[Resource]], Any]) -> tuple[Resource, ...]:
    """Return objects of which none can be left out without another answer; `ask` gives the answer of some.

    Objects that the answer names come first, then those of the same namespaces, so that few others are ever tried.
    """
    wanted = ask(resources)
    words = frozenset(_words(wanted))
    named = [resource for resource in resources if resource.name in words and resource.namespace in (*words, "")]
    near = [resource for resource in resources if resource.namespace in words or not resource.namespace]
    left = next(tried for tried in (named, near, resources) if tried is resources or ask(tried) == wanted)
    likely = set(named)
    # What is least likely to be needed is tried first, in large groups.
    ordered = sorted(left, key=lambda resource: resource in likely)
    asked = 0
    size = len(ordered)
    while size and asked < _MAX_QUESTIONS:
        at, before = 0, len(ordered)
        while at < len(ordered) and asked < _MAX_QUESTIONS:
            fewer = [*ordered[:at], *ordered[at + size :]]
            asked += 1
            if ask(fewer) == wanted:
                ordered = fewer
            else:
                at += size
        # Without some objects, others may no longer be needed.
        size = size // 2 if size > 1 or len(ordered) == before else 1
    kept = set(ordered)
    return tuple(resource for resource in resources if resource in kept)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
    elif isinstance(value, str):
        yield from _WORD.findall(value)
