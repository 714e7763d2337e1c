"""The CEL specification's own tests, fetch_tests by version and hash (docs/cel-conformance.md)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from cel.expr.conformance.test import simple_pb2
from google.protobuf import text_format

from tests.cel import cel_spec_tests
from tests.cel.cel_conformance import Line, answer, is_expected
from tests.cel.cel_spec_tests import MODULE, Unavailable, Unsupported, cases, fetch_tests, lines
from tests.needs import missing_data
from tierwall.cel.batch import Batch

MESSAGES, ENUMS, FUNCTIONS = "protobuf messages", "protobuf enums", "declared functions"
# Tests that need features that Kubernetes' CEL does not have, by file.
SKIPPED = {
    "block_ext": {MESSAGES: 12},
    "comparisons": {MESSAGES: 72},
    "dynamic": {MESSAGES: 226},
    "enums": {MESSAGES: 83, ENUMS: 2},
    "optionals": {MESSAGES: 11},
    "parse": {MESSAGES: 26},
    "proto2": {MESSAGES: 118},
    "proto2_ext": {MESSAGES: 18},
    "proto3": {MESSAGES: 85},
    "string_ext": {MESSAGES: 3},
    "type_deduction": {MESSAGES: 21, FUNCTIONS: 5},
    "wrappers": {MESSAGES: 36},
}
# Files about functions that no release of Kubernetes offers; here they are offered on request.
ON_REQUEST = ("bindings_ext", "encoders_ext", "math_ext", "string_ext")
# `cel.block`, `cel.index` and `cel.iterVar`: the output of an optimizer, which people do not write.
NOT_OFFERED = "block_ext"
# Where the specification and Kubernetes differ, Tierwall follows Kubernetes.
FOLLOWS_KUBERNETES = {
    "fields": {
        "qualified_identifier_resolution/map_key_float": "keys of a literal may be doubles",
        "qualified_identifier_resolution/map_value_repeat_key": "of a repeated key the last one counts",
        "qualified_identifier_resolution/map_value_repeat_key_heterogeneous": "of a repeated key the last one counts",
    },
    "namespace": {
        "namespace/self_eval_container_lookup": "there are no containers",
        "namespace/self_eval_container_lookup_unchecked": "there are no containers",
        "namespace_shadowing/basic": "there are no containers",
    },
    "network_ext": {
        "ipv4/ipv4_equals_ipv6": "IPv4-mapped addresses are refused",
        "ipv4/ipv4_not_equals_ipv6": "IPv4-mapped addresses are refused",
    },
    "optionals": {
        "optionals/map_null_entry_no_such_key": "a missing field of an optional gives no value",
        "optionals/map_present_key_invalid_field": "a missing field of an optional gives no value",
    },
    "string_ext": {
        f"format/{name}": "`format` is the older one"
        for name in (
            "scientific notation formatting clause",
            "default precision for fixed-point clause with int",
            "default precision for fixed-point clause with uint",
            "default precision for scientific notation",
            "default precision for scientific notation with int",
            "default precision for scientific notation with uint",
            "NaN support for scientific notation",
            "positive infinity support for scientific notation",
            "negative infinity support for scientific notation",
            "NaN support for decimal",
            "positive infinity support for decimal",
            "negative infinity support for decimal",
            "positive infinity support for fixed-point",
            "negative infinity support for fixed-point",
            "list support for string",
            "map support for string",
            "map support (all key types)",
            "dyntype support for scientific notation",
            "dyntype NaN/infinity support",
            "dyntype support for lists",
            "dyntype support for maps",
            "scientific notation formatting clause in a string variable",
        )
    }
    | {
        "value_errors/indexof_out_of_range": "beyond the end is -1",
        "value_errors/lastindexof_out_of_range": "beyond the end is -1",
    },
    "timestamps": {"duration_converters/get_milliseconds": "it is the whole length"},
    "type_deduction": {
        "flexible_type_parameter_assignment/optional_dyn_promotion": "literals have elements of one type",
        "flexible_type_parameter_assignment/optional_dyn_promotion_2": "literals have elements of one type",
        "legacy_nullable_types/null_assignable_to_abstract_parameter_candidate": "literals have elements of one type",
    },
}


@pytest.fixture(scope="module")
def files() -> list[Path]:
    try:
        return sorted(fetch_tests().glob("*.textproto"))
    except Unavailable as error:
        missing_data(f"the CEL specification's tests: {error}")


def lines_of(file: Path) -> tuple[list[Line], Counter[str]]:
    """The lines of a file, and the reasons why its other tests have no lines."""
    out: list[Line] = []
    skipped: Counter[str] = Counter()
    for name, test in cases(file):
        try:
            out += lines(name, test)
        except Unsupported as error:
            skipped[str(error)] += 1
    return out, skipped


def test_every_test_is_answered_right_but_where_kubernetes_differs(files: list[Path]) -> None:
    plain, extended = Batch(), Batch(extensions=True)
    wrong: dict[str, set[str]] = {}
    count = 0
    for file in files:
        if file.stem == NOT_OFFERED:
            continue
        batch = extended if file.stem in ON_REQUEST else plain
        for line in lines_of(file)[0]:
            count += 1
            if not is_expected(line, answer(batch, line), line["expect"]):
                wrong.setdefault(file.stem, set()).add(line["name"])
    assert wrong == {file: set(names) for file, names in FOLLOWS_KUBERNETES.items()}
    assert count > 1_700


def test_exactly_the_listed_tests_are_skipped(files: list[Path]) -> None:
    skipped_by_file = {file.stem: dict(skipped) for file in files if (skipped := lines_of(file)[1])}
    assert skipped_by_file == SKIPPED


def parse_test(text: str) -> simple_pb2.SimpleTest:
    return text_format.Parse(text, simple_pb2.SimpleTest())


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('expr: "1 + 1" value: { int64_value: 2 }', True),
        ('expr: "1 + 1" value: { uint64_value: 2 }', False),
        ('expr: "1 + 1" value: { int64_value: 3 }', False),
        ('expr: "1 / 0" eval_error: { errors: { message: "any" } }', True),
        ('expr: "1 / 1" eval_error: { errors: { message: "any" } }', False),
        ('expr: "1 == 1"', True),
        ('expr: "1 == 2"', False),
        ('expr: "x + 1.0" bindings: { key: "x" value: { value: { double_value: nan } } }'
         " value: { double_value: nan }", True),
        ('expr: "{1: 2u}"'
         " value: { map_value: { entries: { key: { int64_value: 1 } value: { uint64_value: 2 } } } }", True),
        ('expr: "[x]" check_only: true type_env: { name: "x" ident: { type: { primitive: INT64 } } }'
         " typed_result: { deduced_type: { list_type: { elem_type: { primitive: INT64 } } } }", True),
        ('expr: "[1]" check_only: true typed_result: { deduced_type: { primitive: INT64 } }', False),
    ],
)  # fmt: skip
def test_a_test_of_the_specification_is_read_as_it_is_meant(text: str, is_right: bool) -> None:
    (line,) = lines("name", parse_test(text))
    assert is_expected(line, answer(Batch(), line), line["expect"]) is is_right


def test_a_typed_result_is_two_lines() -> None:
    both = lines(
        "name", parse_test('expr: "1" typed_result: { result: { int64_value: 1 } deduced_type: { primitive: INT64 } }')
    )
    assert [line["expect"] for line in both] == [{"value": 1}, {"type": "int"}]


def test_what_needs_messages_is_not_asked() -> None:
    for text in (
        'expr: "TestAllTypes{}"',
        'expr: "x" container: "cel.expr.conformance.proto3"',
        'expr: "x" value: { object_value: { [type.googleapis.com/google.protobuf.Int32Value]: { value: 1 } } }',
    ):
        with pytest.raises(Unsupported, match=MESSAGES):
            lines("name", parse_test(text))


def test_without_go_the_tests_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="Go is absent"):
        fetch_tests()


def test_another_module_than_the_pinned_one_is_refused(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("go") is None:
        missing_data("Go, to compare a module with its hash")
    module = Path(shutil.copytree(MODULE, tmp_path / "module"))
    (module / "go.sum").write_text((MODULE / "go.sum").read_text().replace("h1:A", "h1:B"))
    monkeypatch.setattr(cel_spec_tests, "MODULE", module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(AssertionError, match="checksum mismatch"):
        fetch_tests()
