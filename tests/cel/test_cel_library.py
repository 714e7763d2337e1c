"""Functions at their edges, as Kubernetes 1.37's own environment answers (tests/conformance/cel/library.jsonl)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cel.cel_conformance import Line, answer, is_expected, lines
from tierwall.cel import Environment, EvaluationError
from tierwall.cel import library as cel_library
from tierwall.cel.batch import Batch
from tierwall.cel.evaluate.encode import EncodingError, decode, encode
from tierwall.cel.evaluate.program import compile
from tierwall.cel.library import LIBRARIES, library_overloads
from tierwall.cel.library.authorizer import AuthorizerValue, CheckRequest, DecisionValue, ResourceCheck
from tierwall.cel.values import NONE, Duration, OptionalValue, Timestamp, TypeValue, Uint, make_map

CASES = list(lines(Path(__file__).parent.parent / "conformance" / "cel" / "library.jsonl"))
BATCH = Batch()


@pytest.mark.parametrize("line", CASES, ids=[line["expr"] for line in CASES])
def test_a_function_answers_as_in_kubernetes(line: Line) -> None:
    given = answer(BATCH, line)
    assert is_expected(line, given, line["expect"]), given


def test_no_signature_is_declared_twice() -> None:
    declared = [overload for library in LIBRARIES for overload in library_overloads(library)]
    signatures = [(overload.function, overload.params, overload.member) for overload in declared]
    assert len(signatures) == len(set(signatures))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_functions_of_a_library_are_listed(library: str) -> None:
    assert {overload.function for overload in library_overloads(library)} == LIBRARIES[library]


def test_every_library_is_listed() -> None:
    files = Path(cel_library.__path__[0]).glob("*.py")
    assert {file.stem for file in files if "\nOVERLOADS" in file.read_text()} == set(LIBRARIES)


def test_a_function_is_offered_from_its_release_on() -> None:
    for expression, release in (
        ("quantity('1').isInteger()", 28),
        ("sets.contains([1], [1])", 29),
        ("ip('1.1.1.1').family() == 4", 30),
        ("format.named('uri').hasValue()", 31),
        ("isSemver('1.0.0')", 33),
        ("[1].slice(0, 1) == [1]", 34),
        ("[1].includes(1)", 37),
    ):
        assert compile(expression, Environment(release)).evaluate({}) is True
        with pytest.raises(EvaluationError):
            compile(expression, Environment(release - 1)).evaluate({})


def test_a_call_that_no_overload_takes_says_so() -> None:
    with pytest.raises(EvaluationError, match=r"no such overload: _\+_\(int, bool\)"):
        compile("1 + true", Environment()).evaluate({})
    with pytest.raises(EvaluationError, match="unknown function: nothing of 0 arguments"):
        compile("nothing()", Environment()).evaluate({})


def test_an_authorizer_is_asked_what_the_expression_says() -> None:
    asked: list[CheckRequest] = []

    def decide(question: CheckRequest) -> DecisionValue:
        asked.append(question)
        return DecisionValue(question.verb == "get", reason="because", error="" if question.verb != "fail" else "boom")

    variables: dict[str, object] = {"authorizer": AuthorizerValue(decide)}

    def evaluate(text: str) -> object:
        return compile(text, Environment()).evaluate(variables)

    assert evaluate("authorizer.path('/healthz').check('get').allowed()") is True
    assert asked[-1] == CheckRequest(verb="get", path="/healthz")
    resource = "authorizer.serviceAccount('ns', 'sa').group('apps').resource('deployments')"
    assert evaluate(f"{resource}.subresource('scale').namespace('a').name('b').check('patch').allowed()") is False
    assert asked[-1] == CheckRequest(
        verb="patch",
        service_account=("ns", "sa"),
        group="apps",
        resource="deployments",
        subresource="scale",
        namespace="a",
        name="b",
    )
    assert evaluate(f"{resource}.labelSelector('a=b').fieldSelector('c=d').check('list').reason()") == "because"
    assert (asked[-1].label_selector, asked[-1].field_selector) == ("a=b", "c=d")
    assert evaluate("authorizer.group('').resource('pods').check('fail').errored()") is True
    assert evaluate("authorizer.group('').resource('pods').check('fail').error()") == "boom"
    for wrong in (
        "authorizer.path(' ')",
        "authorizer.group('').resource('')",
        "authorizer.serviceAccount('A', 'b')",
        "authorizer.serviceAccount('a', 'B')",
        "authorizer.check('get')",
    ):
        with pytest.raises(EvaluationError):
            evaluate(wrong)


def test_a_request_resource_is_checked_as_it_is() -> None:
    authorizer = AuthorizerValue(
        lambda question: DecisionValue(question.resource == "pods" and question.namespace == "a")
    )
    check = ResourceCheck(authorizer, CheckRequest(resource="pods", namespace="a"))
    program = compile("requestResource.check('get').allowed()", Environment())
    assert program.evaluate({"requestResource": check}) is True


def test_two_authorization_checks_fit_the_limit_and_three_do_not() -> None:
    variables: dict[str, object] = {"a": AuthorizerValue(lambda question: DecisionValue(True))}
    check = "a.path('/x').check('get').allowed()"
    assert compile(f"{check} && {check}", Environment()).evaluate(variables) is True
    with pytest.raises(Exception, match="cost limit exceeded"):
        compile(f"{check} && {check} && {check}", Environment()).evaluate(variables)


VALUES: list[object] = [
    None,
    True,
    -(2**63),
    2**63 - 1,
    Uint(2**64 - 1),
    1.5,
    float("inf"),
    "é",
    b"\xff",
    [1, [Uint(2)]],
    {"a": {"b": None}},
    make_map([(True, 1), (1, 2), ("k", Uint(3))]),
    {"$type": "not one of ours"},
    Timestamp(1_234_567_890_123_456_789),
    Timestamp(-62_135_596_800_000_000_000),
    Duration(-1_500_000_001),
    Duration(-(2**63)),
    TypeValue("timestamp"),
    OptionalValue(None),
    OptionalValue([OptionalValue(1)]),
    NONE,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_survives_its_json(value: object) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "json",
    [
        2**63,
        {"$type": "uint", "$value": -1},
        {"$type": "uint", "$value": True},
        {"$type": "uint"},
        {"$type": "double", "$value": "1.5"},
        {"$type": "double", "$value": 10**309},
        {"$type": "bytes", "$value": "*"},
        {"$type": "timestamp", "$value": "yesterday"},
        {"$type": "duration", "$value": 5},
        {"$type": "map", "$value": [[1]]},
        {"$type": "map", "$value": [[[1], 1]]},
        {"$type": "nothing", "$value": 1},
        {"$type": None},
    ],
    ids=str,
)
def test_json_that_stands_for_no_value_is_refused(json: object) -> None:
    with pytest.raises(EncodingError, match="expected"):
        decode(json)
