"""What evaluation costs: Kubernetes' runtime model (cel-go interpreter/runtimecost.go, apiserver library/cost.go).

Reading a name or a field costs 1, a call 1 unless its overload says more, literals nothing. A list costs 10 to make and
a map 30. Functions that walk a text pay a tenth of its length; regular expressions pay text times pattern.
Costs are known before the call is made, so the limit also bounds the time and memory of the one call that exceeds it.

Two deviations, both upwards and both to bound memory, which Kubernetes' Go code bounds by laziness: concatenating long
lists pays a tenth of the result, and a text longer than `MAX_TEXT` is never made.
"""

from __future__ import annotations

from typing import Final

from tierwall.cel.failure import CostExceeded
from tierwall.cel.values import size_of

CALL_LIMIT: Final = 1_000_000
NAME: Final = 1
LIST: Final = 10
MAP: Final = 30
MESSAGE: Final = 40
# The longest text or list that a call may make.
MAX_TEXT: Final = 16_000_000
MAX_LIST: Final = 4_000_000
# The longest list whose concatenation costs 1, as in Kubernetes.
CHEAP_LIST: Final = 64


def scan(value: object) -> int:
    """Walking a text once."""
    return -(-size_of(value) // 10)


def scan_first(value: object, *_: object) -> int:
    """Walking the first argument once."""
    return -(-size_of(value) // 10)


def scan_first_twice(value: object, *_: object) -> int:
    """Walking the first argument and building a result of its length."""
    return -(-size_of(value) // 5)


def scan_second(_: object, value: object) -> int:
    """Walking the second argument once."""
    return -(-size_of(value) // 10)


def scan_shorter(left: object, right: object) -> int:
    """Comparing two values of any size."""
    return -(-min(size_of(left), size_of(right)) // 10)


def scan_both(left: object, right: object) -> int:
    """Copying two texts into one."""
    size = size_of(left) + size_of(right)
    bound_text(size)
    return -(-size // 10)


def concatenate(left: object, right: object) -> int:
    """Copying two lists into one."""
    size = size_of(left) + size_of(right)
    bound_list(size)
    return 1 if size <= CHEAP_LIST else 1 + size // 10


def search(text: object, part: object) -> int:
    """Looking for one text in another."""
    return scan(text) * scan(part)


def regex(text: object, pattern: object, *_: object) -> int:
    """Matching a regular expression."""
    return -(-(1 + size_of(text)) // 10) * -(-size_of(pattern) // 4)


def length_of_second(_: object, container: object) -> int:
    """Looking through a list."""
    return size_of(container)


def traversal(value: object, *_: object) -> int:
    """Walking a value as a tree; texts a tenth of their length, all else 1 a leaf."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is list:
            stack.extend(item)  # type: ignore[arg-type]
        elif kind is dict:
            stack.extend(item)  # type: ignore[arg-type]
            stack.extend(item.values())  # type: ignore[attr-defined]
        elif kind is str:
            total += len(item.encode("utf-8", "surrogatepass")) // 10  # type: ignore[attr-defined]
        elif kind is bytes:
            total += len(item) // 10  # type: ignore[arg-type]
        else:
            total += 1
    return total


def product(left: object, right: object) -> int:
    """Comparing every element of one list with every one of another."""
    return 1 + size_of(left) * size_of(right)


def new_list(size: int) -> int:
    """A call that makes a list of this size."""
    bound_list(size)
    return size + 1 + LIST


def self_compare(items: object) -> int:
    """A call that compares the elements of a list with each other and makes a new one."""
    size = size_of(items)
    squared = size * size
    textual = isinstance(items, list) and bool(items) and type(items[0]) in (str, bytes)
    return (21 * squared // 10 if textual else 2 * squared) + 1 + LIST


def bound_text(size: int) -> None:
    """Refuse to make a text beyond what the cost limit stands for."""
    if size > MAX_TEXT:
        raise CostExceeded(f"operation cancelled: a text of {size} characters exceeds {MAX_TEXT}")


def bound_list(size: int) -> None:
    """Refuse to make a list beyond what the cost limit stands for."""
    if size > MAX_LIST:
        raise CostExceeded(f"operation cancelled: a list of {size} elements exceeds {MAX_LIST}")
