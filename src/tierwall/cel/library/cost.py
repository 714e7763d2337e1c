"""The cost of evaluation: Kubernetes' runtime model (cel-go interpreter/runtimecost.go, apiserver library/cost.go).

Reading a name or a field costs 1, a call 1 unless its overload says more, literals nothing. A list costs 10 to make and
a map 30. Functions that walk a string cost a tenth of its length; regular expressions cost string times pattern.
Costs are known before the call is made, so the limit also bounds the time and memory of the one call that exceeds it.

Where that model lets an expression do a lot for almost nothing, this one charges more, always beyond what a sane
expression does: concatenating long lists, comparing or printing values of more than a thousand nodes, regular
expressions that compile to large programs, loops whose bodies are constants. No call makes a string longer than
`MAX_STRING`.
"""

from __future__ import annotations

from typing import Final

from tierwall.cel.errors import CostExceeded
from tierwall.cel.values import OptionalValue, size_of

CALL_LIMIT: Final = 1_000_000
NAME: Final = 1
LIST: Final = 10
MAP: Final = 30
# The longest string or list that a call may make.
MAX_STRING: Final = 16_000_000
MAX_LIST: Final = 4_000_000
_FREE_NODES: Final = 1_000
_MAX_NODES: Final = 1_000_000
# A cost that no limit allows.
UNBOUNDED: Final = 1 << 62
# The longest list whose concatenation costs 1, as in Kubernetes.
CHEAP_LIST: Final = 64


def scan(value: object, *_: object) -> int:
    """Return the cost of walking a string, the first argument, once."""
    return -(-size_of(value) // 10)


def scan_first_twice(value: object, *_: object) -> int:
    """Return the cost of walking the first argument and building a result of its length."""
    return -(-size_of(value) // 5)


def scan_second(_: object, value: object) -> int:
    """Return the cost of walking the second argument once."""
    return -(-size_of(value) // 10)


def scan_shorter(left: object, right: object) -> int:
    """Return the cost of comparing two values of any size."""
    shorter = -(-min(size_of(left), size_of(right)) // 10)
    kind = type(left)
    if kind is type(right) and (kind is list or kind is dict):
        return shorter + min(large_value_surcharge(left), large_value_surcharge(right))
    return shorter


def count_nodes(value: object) -> int:
    """Count the values inside a value, and the value itself; stop at `_MAX_NODES`.

    A value may hold another one many times (`[x, x]` of `[y, y]` of …), so there may be more than memory would suggest.
    """
    count = 0
    stack = [value]
    while stack and count < _MAX_NODES:
        count += 1
        item = stack.pop()
        if type(item) is list:
            stack.extend(item)
        elif type(item) is dict:
            stack.extend(item.values())
        elif type(item) is OptionalValue:
            stack.append(item.value)
    return count


def large_value_surcharge(value: object) -> int:
    """Return the surcharge for going through a large value."""
    if type(value) is not list and type(value) is not dict:
        return 0
    count = count_nodes(value)
    if count >= _MAX_NODES:
        return UNBOUNDED
    return count // 10 if count > _FREE_NODES else 0


def scan_both(left: object, right: object) -> int:
    """Return the cost of copying two strings into one."""
    size = size_of(left) + size_of(right)
    check_string_size(size)
    return -(-size // 10)


def concatenate(left: object, right: object) -> int:
    """Return the cost of copying two lists into one."""
    size = size_of(left) + size_of(right)
    check_list_size(size)
    return 1 if size <= CHEAP_LIST else 1 + size // 10


def search(string: object, part: object) -> int:
    """Return the cost of looking for one string in another."""
    return scan(string) * scan(part)


def regex(string: object, pattern_size: int) -> int:
    """Return the cost of matching a regular expression."""
    return -(-(1 + size_of(string)) // 10) * -(-pattern_size // 4)


def length_of_second(item: object, container: object) -> int:
    """Return the cost of looking through a list."""
    size = size_of(container)
    return size + large_value_surcharge(container) if type(item) is list or type(item) is dict else size


def traversal(value: object, *_: object) -> int:
    """Return the cost of walking a value as a tree: a string costs a tenth of its length, any other leaf 1."""
    total = visited = 0
    stack = [value]
    while stack:
        item = stack.pop()
        visited += 1
        if type(item) is list:
            stack.extend(item)
        elif type(item) is dict:
            stack.extend(item)
            stack.extend(item.values())
        elif type(item) is str:
            total += (len(item) if item.isascii() else len(item.encode("utf-8", "surrogatepass"))) // 10
        elif type(item) is bytes:
            total += len(item) // 10
        else:
            total += 1
        if visited >= _MAX_NODES:
            return UNBOUNDED
    return total


def rendering(template: object, values: object) -> int:
    """Return the cost of writing values into a string; as many as a message holds are free."""
    size = traversal(values)
    return scan(template) + (size if size > _FREE_NODES else 0)


def compare_all_pairs(left: object, right: object) -> int:
    """Return the cost of comparing every element of one list with every element of another."""
    return 1 + size_of(left) * size_of(right) + size_of(left) * large_value_surcharge(right)


def new_list(size: int) -> int:
    """Return the cost of a call that makes a list of this size."""
    check_list_size(size)
    return size + 1 + LIST


def self_compare(items: object) -> int:
    """Return the cost of a call that compares the elements of a list with each other and makes a new one."""
    size = size_of(items)
    squared = size * size
    textual = isinstance(items, list) and bool(items) and type(items[0]) in (str, bytes)
    return (21 * squared // 10 if textual else 2 * squared) + 1 + LIST + size * large_value_surcharge(items)


def check_string_size(size: int) -> None:
    """Refuse to make a string larger than the cost limit stands for."""
    if size > MAX_STRING:
        raise CostExceeded(f"operation cancelled: a string of {size} characters exceeds {MAX_STRING}")


def check_list_size(size: int) -> None:
    """Refuse to make a list larger than the cost limit stands for."""
    if size > MAX_LIST:
        raise CostExceeded(f"operation cancelled: a list of {size} elements exceeds {MAX_LIST}")
