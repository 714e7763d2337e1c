"""Test fast readers against the exact one, values against their printed forms, and positions against the text."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.yaml_texts import ENTRIES, FLOWS, JSON, MESSES, as_json, as_yaml, same, through_json_text
from tierwall.resources.document import Document
from tierwall.resources.read import Limits, read_text
from tierwall.resources.yaml.decode import read_exactly, read_value_exactly
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.libyaml import LibyamlReader
from tierwall.resources.yaml.line_locator import LineLocator
from tierwall.resources.yaml.lines import FLOW_DEPTH, LineReader, flow_collection, is_regular
from tierwall.resources.yaml.locator import YamlLocator

FLOW = LibyamlReader(FLOW_DEPTH).value


def one_document(text: str | bytes) -> Document:
    read = read_text(text)
    assert read.diagnostics == ()
    assert len(read.documents) == 1
    return read.documents[0]


@settings(max_examples=examples(1000))
@given(MESSES)
@example("'c\n\n d'\n[!@,&null}\"\\\n \",:")
@example("[a?b, c]")
@example("[a:,]")
def test_the_libyaml_reader_agrees_with_the_exact_reader(text: str) -> None:
    document = text.replace("\r\n", "\n") + "\n"
    fast = LibyamlReader(10_000).value(document.encode())
    if fast is None:
        return
    exact = read_exactly(document)
    assert same(fast, (exact.value, bool(exact.repeats)))


def test_the_libyaml_reader_remembers_keys_by_their_text() -> None:
    assert FLOW(b"-0.0: a\nb: {-0: c}\n") == ({"-0": "a", "b": {"0": "c"}}, False)


@settings(max_examples=examples(800))
@given(ENTRIES)
@example("a: |\n  \tx\n")
@example("-  a\n")
@example("---#\na: 1\n")
@example("--- #\na: 1\n")
@example("a:\n- b\n- |\n   c\n\n  d\n")
def test_the_line_reader_agrees_with_the_exact_reader(text: str) -> None:
    by_lines = LineReader(10_000, FLOW).value(text)
    if by_lines is None:
        return
    exact = read_exactly(text)
    assert same(by_lines, (exact.value, bool(exact.repeats)))


def exact_flow(data: bytes) -> tuple[Any, bool] | None:
    """Read the rest of a line as short files are read, without libyaml."""
    try:
        exact = read_value_exactly(data.decode(), FLOW_DEPTH)
    except YamlError:
        return None
    return exact.value, bool(exact.repeats)


@settings(max_examples=examples(800))
@given(ENTRIES | st.tuples(FLOWS, FLOWS).map(lambda flows: "v: " + "".join(flows) + "\n"))
@example('v: "ab""ab"\n')
@example("v: 'a' b\n")
@example("v: [a, b]0x1F\n")
@example("v: [? aa 1]}\n")
@example("v: {a: 1}...\n")
@example("a: [1]>\na: []\n")
@example("v: [a] # b\n")
def test_the_line_reader_with_the_exact_reader_of_flow_collections_agrees_with_the_exact_reader(text: str) -> None:
    by_lines = LineReader(10_000, exact_flow).value(text)
    if by_lines is None:
        return
    exact = read_exactly(text)
    assert same(by_lines, (exact.value, bool(exact.repeats)))


@settings(max_examples=examples(250))
@given(JSON, st.integers(2, 6), st.sampled_from([20, 10_000]), st.booleans())
def test_all_readers_agree_on_what_pyyaml_prints(value: Any, indent: int, width: int, flow: bool) -> None:
    text = yaml.safe_dump(value, indent=indent, width=width, allow_unicode=True, default_flow_style=flow or None)
    text = text.removesuffix("...\n")
    exact = read_exactly(text)
    if is_regular(text.encode()):
        for result in (LineReader(10_000, FLOW).value(text), LibyamlReader(10_000).value(text.encode())):
            assert result is None or same(result, (exact.value, bool(exact.repeats)))


def test_manifests_as_kubectl_prints_them_are_read_line_by_line() -> None:
    text = """\
# a comment
apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"a": "b"}

      more
    note: "it's\\n"   # escaped
  labels: {app: web, 'on': "off"}
  name: web
spec:
  containers:
  - args: ["--v=2", [nested, {a: 1}]]
    command:
      - sh
      - -c
      - |-
        echo hi
    name: c
  - name: d
    port: 0x50
  nodeSelector:
  tolerations: []
"""
    by_lines = LineReader(256, FLOW).value(text)
    assert by_lines is not None
    assert same(by_lines[0], read_exactly(text).value)
    assert by_lines[0]["metadata"]["annotations"]["note"] == "it's\n"
    assert by_lines[0]["spec"]["containers"][0]["command"][2] == "echo hi"
    assert by_lines[0]["spec"]["nodeSelector"] is None


@settings(max_examples=examples(300))
@given(
    JSON.filter(lambda value: value is not None),
    st.booleans(),
    st.integers(2, 6),
    st.sampled_from([20, 80, 10_000]),
    st.booleans(),
    st.booleans(),
)
def test_any_value_printed_as_yaml_reads_back_equal(
    value: Any, flow: bool, indent: int, width: int, ascii_only: bool, starts: bool
) -> None:
    text = as_yaml(value, flow, indent, width, ascii_only, starts)
    if starts:
        # PyYAML starts a scalar or flow document on the line of the separator. Kubernetes refuses that.
        text = text.replace("--- ", "---\n", 1)
    # Without the comment, a flow map would be read as JSON, where floats stay floats.
    read = read_text("# a comment\n" + text)
    assert read.diagnostics == ()
    assert same([document.value for document in read.documents], [through_json_text(value)])


@settings(max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5), st.integers(0, 4), st.booleans())
def test_any_object_printed_as_json_reads_back_equal(value: Any, indent: int, ascii_only: bool) -> None:
    text = as_json(value, indent, ascii_only)
    if not ascii_only:
        text = text.encode("utf-8", "replace").decode()
    document = one_document(text)
    assert document.is_json
    if ascii_only or "?" not in text:
        assert same(document.value, without_surrogates(value))


def without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(child) for key, child in value.items()}
    return [without_surrogates(child) for child in value] if isinstance(value, list) else value


@settings(max_examples=examples(1000))
@given(
    MESSES.map(str.encode)
    | st.binary(max_size=60)
    | st.tuples(MESSES, st.binary(max_size=3), MESSES).map(lambda p: p[0].encode() + p[1] + p[2].encode())
)
@example(b'{"a": 1}"')
def test_reading_never_raises_and_errors_point_into_the_file(data: bytes) -> None:
    read = read_text(data, name="f.yaml")
    rows = data.split(b"\n")
    for diagnostic in read.diagnostics:
        assert diagnostic.at is not None
        assert diagnostic.at.file == "f.yaml"
        assert 1 <= diagnostic.at.line <= len(rows)
        width = len(rows[diagnostic.at.line - 1].decode("utf-8", "replace"))
        assert 1 <= diagnostic.at.column <= width + 1
        assert diagnostic.message == diagnostic.message.strip()
        assert not diagnostic.message.endswith(".")
    for document in read.documents:
        assert document.value is not None
        document.position(("a", 0, "b"))
        assert document.repeated_keys == document.repeated_keys


def nodes_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    nodes: list[tuple[tuple[str | int, ...], Any]] = [(path, value)]
    if isinstance(value, dict):
        for key, child in value.items():
            nodes += nodes_of(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            nodes += nodes_of(child, (*path, index))
    return nodes


@settings(max_examples=examples(300))
@given(
    st.dictionaries(st.text("abc日", min_size=1, max_size=3), JSON, min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "first: doc\n---\n", "\n\n# é\n---\n"]),
)
def test_positions_point_at_the_text_of_the_node(value: Any, as_text: bool, flow: bool, before: str) -> None:
    text = as_json(value, 2, False) if as_text else before + as_yaml(value, flow, 2, 10_000, False, False)
    rows = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").split("\n")
    document = read_text(text).documents[-1]
    for path, node in nodes_of(document.value):
        at = document.position(path)
        rest = rows[at.line - 1][at.column - 1 :]
        if isinstance(node, str):
            assert rest.startswith('"')
        elif isinstance(node, bool) or node is None:
            assert rest.startswith({True: "true", False: "false", None: "null"}[node])
        elif isinstance(node, int | float):
            assert rest[0] in "-.0123456789"
        elif not node or flow or as_text:
            assert rest[0] in "[{"
        if path and isinstance(path[-1], str):
            at = document.position(path, key=True)
            assert rows[at.line - 1][at.column - 1] in '"?'


@settings(max_examples=examples(1500))
@given(FLOWS)
@example("[a:b]")
@example("{a: 'it''s'}")
@example("[a, ]")
@example("[,]")
def test_the_line_reader_agrees_with_the_exact_reader_on_flow_collections(text: str) -> None:
    try:
        value = flow_collection(text)
    except YamlError:
        return
    exact = read_exactly(text + "\n")
    assert same((value, False), (exact.value, bool(exact.repeats)))


def test_simple_flow_collections_need_no_other_reader() -> None:
    text = "{containers: [{name: web, image: 'r/web:v1', ports: [{containerPort: 80}]}], nodeName: \"\"}  # usual"
    ports = [{"containerPort": 80}]
    assert flow_collection(text) == {
        "containers": [{"name": "web", "image": "r/web:v1", "ports": ports}],
        "nodeName": "",
    }


def assert_same_places(text: str) -> None:
    try:
        value = read_exactly(text).value
    except YamlError:
        return
    by_lines, exact = LineLocator(text), YamlLocator(text)
    for path, _ in nodes_of(value):
        for place in (path, (*path, "missing"), (*path, 7, "missing")):
            for key in (False, True):
                assert by_lines.offset(place, key) == exact.offset(place, key)


@settings(max_examples=examples(1000))
@given(ENTRIES)
@example("a:\n- b\n- - c: [d, {e: 1}]\nf:\n")
@example("a:\nb: {c: }\n")
@example("- - a: 1\n    b: 2\n  - c\n- d\n")
@example("- a\n- \n- # nothing\n")
def test_the_line_locator_agrees_with_the_exact_locator(text: str) -> None:
    assert_same_places(text)


@settings(max_examples=examples(250))
@given(JSON, st.integers(2, 6), st.sampled_from([True, False, None]))
def test_the_line_locator_agrees_with_the_exact_locator_on_what_pyyaml_prints(
    value: Any, indent: int, flow: bool | None
) -> None:
    text = yaml.safe_dump(value, indent=indent, width=10_000, allow_unicode=True, default_flow_style=flow)
    assert_same_places(text.removesuffix("...\n"))


def test_the_line_locator_alone_finds_nodes_of_a_usual_manifest() -> None:
    text = "kind: Pod\nspec:\n  containers:\n  - name: a\n    ports: [{containerPort: 80}]\n"
    places = LineLocator(text)
    for path in [("kind",), ("spec", "containers", 0, "name"), ("spec", "containers", 0, "ports", 0, "containerPort")]:
        places.offset(path)
    assert "_exact" not in vars(places)


def test_the_line_locator_gives_up_on_a_document_of_many_dashes() -> None:
    assert LineLocator("- " * 50_000 + "a\n")._lines is None


def test_the_position_of_a_missing_node_is_that_of_its_nearest_ancestor() -> None:
    document = one_document("a:\n  b:\n  - c: 1\n")
    assert document.position(("a", "b", 0, "nope", 3))[1:] == (3, 5)
    assert document.position(("a", "b", 7))[1:] == (3, 3)
    assert document.position(("x",))[1:] == (1, 1)
    assert document.position(("a", "b"), key=True)[1:] == (2, 3)


def test_the_position_of_a_merged_or_aliased_node_is_where_it_is_written() -> None:
    document = one_document("base: &b\n  p: 1\n  q: 2\nuse:\n  q: 0\n  <<: *b\nagain: *b\n")
    assert document.value["use"] == {"p": 1, "q": 2}
    assert document.position(("use", "p"))[1:] == (2, 6)
    assert document.position(("use", "q"))[1:] == (3, 6)
    assert document.position(("again",))[1:] == (7, 8)
    assert document.position(("again", "q"), key=True)[1:] == (3, 3)


def test_nodes_of_a_large_document_are_found_without_reading_all_of_it_exactly() -> None:
    item = "- kind: Pod\n  spec:\n    m: {}\n    é: [1, {{x: y}}]\n"
    text = "kind: List\nitems:\n" + "".join(item.format(index) for index in range(8000)) + "metadata: {a: 1}\n"
    document = one_document(text)
    assert document.position(("items", 7999, "spec", "é", 1, "x"))[1:] == (2 + 7999 * 4 + 4, 16)
    assert document.position(("items", 0, "kind"), key=True)[1:] == (3, 3)
    assert document.position(("items", 5, "spec", "m"))[1:] == (2 + 5 * 4 + 3, 8)
    assert document.position(("items", 8000))[1:] == document.position(("items",))[1:]
    assert document.position(("nope",))[1:] == (1, 1)
    assert document.position(("metadata", "a"))[1:] == (2 + 8000 * 4 + 1, 15)
    assert document.position(("metadata",), key=True)[1:] == (2 + 8000 * 4 + 1, 1)
    assert document.position(())[1:] == (1, 1)


def test_the_last_item_of_a_long_json_list_is_found() -> None:
    items = ",\n".join(f'{{"n": {index}, "s": "é{{[", "t": [{index}]}}' for index in range(20_000))
    document = one_document(f'{{"kind": "List",\n"items": [\n{items}\n], "metadata": {{}} }}')
    at = document.position(("items", 19_999, "t", 0))
    assert at[1:] == (20_002, len('{"n": 19999, "s": "é{[", "t": [') + 1)
    assert document.position(("items", 3, "s"), key=True)[1:] == (6, len('{"n": 3, ') + 1)
    assert document.position(("metadata",))[1:] == (20_003, len('], "metadata": ') + 1)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a: 1\nb: 2\na: 3\n", [(("a",), 3, 1)]),
        ("- x\n- {k: 1, 'k': 2}\n", [((1, "k"), 2, 10)]),
        ('{"a": {"b": [0, {"c": 1,\n "c": 2}]}, "a": 1}', [(("a", "b", 1, "c"), 2, 2), (("a",), 2, 13)]),
        ("b: &b {p: 1}\nc:\n  p: 2\n  <<: *b\n", [(("c", "p"), 4, 3)]),
        ("x: 0\n---\nz:\n  on: 1\n  yes: 2\n", [(("z", "true"), 5, 3)]),
        ('{"a": ",", "b": ["}", {"c": 1}], "c": 2}', []),
        ("a: 1\nA: 2\n", []),
    ],
)
def test_repeated_keys_have_positions(text: str, places: list[tuple[tuple[str | int, ...], int, int]]) -> None:
    repeated_keys = [repeated_key for document in read_text(text).documents for repeated_key in document.repeated_keys]
    assert [(path, at.line, at.column) for path, at in repeated_keys] == places


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: [1, 2\nb: 3\n", (2, 2), "expected `,` or `]`"),
        ("a: 1\n\tb: 2\n", (2, 1), "a tab"),
        ("a: b: c\n", (1, 5), "mapping values are not allowed"),
        ("a: 1\n---\nb: @x\n", (3, 4), "`@`"),
        ("a: 1\n--- {b: 2}\n", (2, 1), "after `---`"),
        ("a: *x\n", (1, 4), "unknown anchor `x`"),
        ('a: "x\n', (1, 4), "not closed"),
        ("a:\n  b: .nan\n", (2, 6), "not finite"),
        ("a: !!int x\n", (1, 4), "`!!int`"),
        ("~: 1\n", (1, 1), "null"),
        ('{"a": 1\n "b": 2}', (2, 2), "expected `,`"),
        ('{"a": 1e999}', (1, 7), "float64"),
        ("a: 1\r\nb: [\r\n", (2, 5), "the end of the document"),
        ("\ufeffa: @", (1, 4), "`@`"),
        ("a: caf\x00\n", (1, 7), "U+0000"),
    ],
)
def test_errors_say_what_is_wrong_and_where(text: str, place: tuple[int, int], words: str) -> None:
    read = read_text(text)
    assert len(read.diagnostics) == 1
    assert read.diagnostics[0].at is not None
    assert read.diagnostics[0].at[1:] == place
    assert words in read.diagnostics[0].message


def test_all_errors_are_found_at_once_and_good_documents_kept() -> None:
    read = read_text("a: [\n---\nb: 1\n---\nc: @\n--- x\nd: 1\n")
    assert [diagnostic.at[1] for diagnostic in read.diagnostics if diagnostic.at] == [1, 5, 6]
    assert [document.value for document in read.documents] == [{"b": 1}, {"d": 1}]


DEEP = 9_999
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 15)
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BOMB, "TW003"),
        (MERGE_BOMB, "TW003"),
        ("[" * 200_000, "TW003"),
        ("- " * 200_000, "TW003"),
        ("? " * 200_000, "TW003"),
        ("a: " + "{a: " * 200_000, "TW003"),
        ('{"a": ' * 200_000, "TW003"),
        ('{"a": ' * 1000 + "1" + "}" * 1000, "TW003"),
        ("[" * DEEP + "]" * DEEP, "TW003"),
        ("a: &x [*x]", "TW002"),
        ("x" * 3_000_000 + ": 1", "TW002"),
        ('a: "' + "x" * 3_000_000, "TW002"),
        ('{"items": [' + '{"a": 1}, ' * 100_000, "TW002"),
        (b"\xff" * 100_000, "TW005"),
        (b"a: caf\xe9\n", "TW005"),
        (b'{"a": "caf\xe9"}', "TW005"),
    ],
)
def test_hostile_input_gets_one_clear_error(text: str | bytes, code: str) -> None:
    read = read_text(text)
    assert [diagnostic.code for diagnostic in read.diagnostics] == [code]
    assert read.documents == ()


@pytest.mark.parametrize("text", ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "- " * 9_000 + "x"])
def test_the_depth_that_kubernetes_accepts_is_accepted_on_request(text: str) -> None:
    read = read_text(text, limits=Limits(depth=10_000))
    assert read.diagnostics == ()
    depth = 0
    value = read.documents[0].value
    while isinstance(value, dict | list) and value:
        value = value["a"] if isinstance(value, dict) else value[0]
        depth += 1
    assert depth in (DEEP - 1, DEEP, 9_000)


def test_every_alias_is_decoded_into_its_own_value() -> None:
    value = one_document("a: &x {p: [1]}\nb: *x\n").value
    value["a"]["p"].append(2)
    assert value["b"] == {"p": [1]}


@pytest.mark.parametrize("text", ["a: *x\nb: [", "!!int x: 1", '{"a": 1', "\t"])
def test_errors_of_the_exact_reader_are_yaml_errors(text: str) -> None:
    with pytest.raises(YamlError):
        read_exactly(text + "\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("b:\n  ~: x\nb: z\n", {"b": "z"}),
        ("a: {18446744073709551615: 1}\na: 2\n", {"a": 2}),
        ("a: {<<: {~: 1}}\na: 3\n", {"a": 3}),
    ],
)
def test_an_unsupported_key_is_accepted_in_a_map_that_is_overwritten(text: str, value: Any) -> None:
    assert one_document(text).value == value


@pytest.mark.parametrize("text", ["a: &x {~: 1}\nb: *x\na: 1\n", "<<: {~: 1}\na: 1\n", "a: [{~: 1}]\n"])
def test_an_unsupported_key_is_an_error_in_a_map_that_stays(text: str) -> None:
    (problem,) = read_text(text).diagnostics
    assert problem.message == "a key may not be null"


def test_a_plain_scalar_of_very_many_lines_is_left_to_a_reader_that_takes_its_time_once() -> None:
    text = "a: x\n" + "  x\n" * 20_000
    assert LineReader(256, FLOW).value(text) is None
    [document] = read_text(text).documents
    assert document.value == {"a": " ".join("x" * 20_001)}


def test_many_nodes_of_a_large_document_are_found_in_one_reading() -> None:
    text = "a:\n" + "".join(f"  key{number}: {number}\n" for number in range(30_000))
    locator, exact = LineLocator(text), YamlLocator(text)
    for number in range(20):
        path = ("a", f"key{29_000 + number}")
        assert locator.offset(path) == exact.offset(path)
        assert (locator._lines is not None) is (number >= 7)
