"""Objects and definitions that are made to cost much: refusals stay short, and work does not multiply.

Nothing is timed. What would take minutes is counted instead: letters that are printed, values that are compared.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.resources.test_definitions import definition, judged, snapshot, widget
from tierwall.resources.admission import values
from tierwall.resources.admission.values import value_checks
from tierwall.resources.schema import Schema
from tierwall.resources.validity import admission_problems

LONG = "k" * 300_000


def refused(schema: dict[str, Any], spec: Any) -> list[str]:
    """Return the messages about an object whose spec has this schema."""
    whole = definition()
    whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    return [problem.message for problem in judged(whole, {**widget(), "spec": spec})]


def items(**schema: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema}


@pytest.mark.parametrize(
    ("schema", "spec"),
    [
        (items(type="string", enum=[f"v{number}" for number in range(5_000)]), ["w"] * 100),
        (items(type="string", enum=[LONG, LONG + "x"]), ["w"] * 100),
        (items(type="string", pattern=LONG), ["w"] * 100),
        ({"type": "object", "additionalProperties": items(type="integer")}, {LONG: ["w"] * 100}),
        (items(type="object", properties={"a": {"type": "integer"}}), [{LONG: 1}] * 100),
        (items(type="integer"), [LONG] * 100),
        (items(type="integer"), [{LONG: {LONG: LONG}}] * 100),
    ],
)
def test_no_refusal_is_longer_than_a_page(schema: dict[str, Any], spec: Any) -> None:
    messages = refused(schema, spec)
    assert messages
    assert max(map(len, messages)) < 5_000


def test_a_definition_cannot_make_its_own_refusal_long() -> None:
    fields = {f"p{number}": {"type": "wrong"} for number in range(50)}
    whole = definition()
    whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][LONG] = {
        "type": "object",
        "properties": fields,
    }
    world = snapshot(whole)
    messages = [problem.message for resource in world for problem in admission_problems(world, resource)]
    assert messages
    assert max(map(len, messages)) < 5_000


def test_a_long_list_of_supported_values_is_counted() -> None:
    choices = [f"v{number}" for number in range(1_234)]
    (message,) = refused({"type": "string", "enum": choices}, "w")
    assert message.endswith('"v98", "v99", … and 1,134 more')


def test_a_number_is_not_compared_with_every_value_of_an_enum(monkeypatch: pytest.MonkeyPatch) -> None:
    (check, *_) = value_checks(Schema(enum=tuple(range(10_000))), native=False)
    looked_at: list[Any] = []
    is_integer = values._is_integer

    def counted(value: Any) -> bool:
        looked_at.append(value)
        return is_integer(value)

    monkeypatch.setattr(values, "_is_integer", counted)
    problems: list[Any] = []
    assert check(9_999, None, problems)
    assert check(9_999.0, None, problems)
    assert problems == []
    check(10_000, None, problems)
    assert len(problems) == 1
    assert len(looked_at) < 10


@pytest.mark.parametrize(
    ("enum", "value", "listed"),
    [
        ((1, 2), 2, True),
        ((1, 2), 2.0, True),
        ((1, 2), 2.5, True),
        ((1.5,), 1.5, True),
        ((1.5,), 1, False),
        ((2**63,), 2.0**63, True),
        ((-(2**63),), 2.0**63, True),
        (("A",), 65, True),
        (("A",), 66, False),
        (("\ufffd",), -1, True),
        ((True,), 1, False),
        (("1",), 1, False),
    ],
)
def test_numbers_are_listed_as_go_converts_them(enum: tuple[Any, ...], value: float, listed: bool) -> None:
    (check, *_) = value_checks(Schema(enum=enum), native=False)
    problems: list[Any] = []
    check(value, None, problems)
    assert (not problems) is listed
