"""Finds an object on which the expression of a policy fails, by leaving out each field that the expression reads.

The full object has all these fields, with values that the comparisons of the expression suggest. Then each field is
left out in turn. A failure is only reported if the expression does not fail on the full object, so that a wrong guess
at the type of a field does not count as a fault of the policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.api.algebra.condition import ConditionError
from tierwall.api.algebra.request import OPERATIONS, UNKNOWN, WRITE_VERBS, Attributes
from tierwall.api.authorizers.cel_policies import CelPolicy
from tierwall.api.authorizers.demands import GROUPS, demands
from tierwall.api.authorizers.expression import evaluate_bool, program_of
from tierwall.cel.partial_evaluation.tree import operands
from tierwall.cel.syntax.ast import Call, Comprehension, Expr, Has, Literal, bound_bodies, path_of

Path = tuple[str, ...]
_OBJECTS = ("object", "oldObject", "namespaceObject", "options")
# Fields of every stored object.
_ALWAYS = (("metadata",), ("metadata", "name"), ("apiVersion",), ("kind",))
_OF_BOOLS = ("_&&_", "_||_", "!_", "_?_:_")
MAX_FIELDS = 40


def failing_field(policy: CelPolicy) -> tuple[str, Path] | None:
    """Return the verb and the field whose absence makes a policy fail, or None if there is no such field."""
    if policy.tree is None:
        return None
    run = program_of(policy.tree)
    fields: dict[Path, Any] = {}
    for field, value in _fields(policy.tree):
        fields.setdefault(field, value)  # a use comes before a mere mention
    prefixes = sorted({path[:end] for path in fields for end in range(2, len(path) + 1)})[:MAX_FIELDS]
    for verb in sorted(demands(policy.tree).get("verb", WRITE_VERBS) & WRITE_VERBS):
        attributes = matching_request(policy, verb)
        data = _data(fields, verb)
        if _fails(run, attributes, data):
            continue
        for path in prefixes:
            if path[1:] in _ALWAYS or data.get(path[0]) is None:
                continue
            if _fails(run, attributes, {**data, path[0]: _without(data[path[0]], path[1:])}):
                return verb, path
    return None


def matching_request(policy: CelPolicy, verb: str = "") -> Attributes:
    """Return a request that meets the unconditional demands of a policy."""
    needed = demands(policy.tree) if policy.tree is not None else {}
    attributes: dict[str, Any] = {field: min(values) for field, values in needed.items() if field != GROUPS and values}
    if policy.namespace:
        attributes["namespace"] = policy.namespace
    if verb:
        attributes["verb"] = verb
    groups = tuple(sorted(needed.get(GROUPS, ())))
    return Attributes(groups=groups, is_resource_request="path" not in attributes, **attributes)


def object_paths(tree: Expr) -> Iterator[Path]:
    """Yield every path below an object that an expression reads."""
    return (path for path, _ in _fields(tree))


def _fields(tree: Expr) -> Iterator[tuple[Path, Any]]:
    """Yield every path below an object, with a value that fits its use."""
    todo = [tree]
    if (root := _object_path(tree)) is not None:
        yield root, True
    while todo:
        node = todo.pop()
        if isinstance(node, Call) and node.function in _OF_BOOLS:
            # Only the condition of `?:` is certainly a bool.
            for operand in node.args[:1] if node.function == "_?_:_" else node.args:
                if (path := _object_path(operand)) is not None:
                    yield path, True
        if isinstance(node, Call) and len(node.args) == 2 and node.target is None:
            left, right = node.args
            for place, other in ((left, right), (right, left)):
                path = _object_path(place)
                if path is not None and isinstance(other, Literal):
                    yield path, other.value
        if isinstance(node, Comprehension) and (path := _object_path(node.target)) is not None:
            yield path, []
        if isinstance(node, Has) and (above := path_of(node.operand)) is not None and above[0] in _OBJECTS:
            yield (*above, node.field), "x"
        elif (path := _object_path(node)) is not None:
            yield path, "x"
            continue
        todo.extend(operands(node))
        todo.extend(bound_bodies(node)[1])


def _object_path(node: Expr) -> Path | None:
    path = path_of(node)
    return path if path is not None and path[0] in _OBJECTS else None


def _data(fields: dict[Path, Any], verb: str) -> dict[str, Any]:
    """Return the objects of a request with every field set. The verb decides which objects there are."""
    objects: dict[str, Any] = {"namespaceObject": _whole_object(), "options": {}}
    objects["object"] = _whole_object() if verb not in ("delete", "deletecollection") else None
    objects["oldObject"] = _whole_object() if verb != "create" else None
    for path in sorted(fields, key=len):
        place = objects[path[0]]
        for key in path[1:-1]:
            if not isinstance(place, dict):
                break
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        if isinstance(place, dict) and len(path) > 1 and not isinstance(place.get(path[-1]), dict):
            place[path[-1]] = fields[path]
    return {**objects, "operation": OPERATIONS[verb]}


def _whole_object() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}}


def _without(value: Any, path: Path) -> Any:
    if not isinstance(value, dict):
        return value
    if len(path) == 1:
        return {key: inner for key, inner in value.items() if key != path[0]}
    return {key: _without(inner, path[1:]) if key == path[0] else inner for key, inner in value.items()}


def _fails(run: Any, attributes: Attributes, data: dict[str, Any]) -> bool:
    try:
        evaluate_bool(run, {**dict.fromkeys(UNKNOWN), **data, "request": attributes.request()})
    except ConditionError:
        return True
    return False
