"""`tierwall.cel` as a Python programmer uses it."""

from __future__ import annotations

import pytest

import tierwall
from tierwall import cel


def test_a_program_is_called_with_the_values_of_its_variables() -> None:
    program = cel.compile("object.spec.replicas <= most")
    assert program(object={"spec": {"replicas": 2}}, most=3) is True
    assert program(object={"spec": {"replicas": 4}}, most=3) is False


def test_declared_variables_are_checked_and_every_problem_is_reported() -> None:
    assert cel.compile("names.all(name, name.size() < 3)", {"names": "list(string)"})(names=["a", "b"]) is True
    with pytest.raises(tierwall.InputError) as caught:
        cel.compile("size(names) + 'a' == name", {"names": "list(string)"})
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"TW705"}
    assert len(caught.value.diagnostics) == 2


def test_a_string_that_is_not_cel_is_an_input_error_with_its_place() -> None:
    with pytest.raises(tierwall.InputError) as caught:
        cel.compile("1 +")
    (diagnostic,) = caught.value.diagnostics
    assert str(diagnostic.at) == "<expression>:1:4"
    with pytest.raises(tierwall.InputError):
        cel.compile("a", {"a": "list("})
    with pytest.raises(tierwall.InputError):
        cel.partial("a &&", {}, [])


def test_a_failed_evaluation_raises_a_tierwall_error() -> None:
    with pytest.raises(tierwall.TierwallError, match="no such key: b"):
        cel.compile("a.b")(a={})


def test_partial_evaluation_returns_the_residual_expression() -> None:
    text = "request.verb == 'create' && object.x == request.name"
    known = {"request": {"verb": "create", "name": "n"}}
    assert cel.partial(text, known, ["object"]) == 'object.x == "n"'
    assert cel.partial(text, known, "object") == 'object.x == "n"'
    assert cel.partial("a + 1", {"a": 2}, []) == "3"
