"""The CEL specification's own tests: fetch_tests by version and hash, and written as lines of `tierwall cel batch`.

They come from the Go module `cel.dev/expr`, pinned by cel_spec/go.mod and cel_spec/go.sum, and are kept in
$XDG_CACHE_HOME/tierwall (or ~/.cache/tierwall), as the programs of the cluster tests are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cel.expr import checked_pb2, value_pb2
from cel.expr.conformance.proto2 import test_all_types_extensions_pb2, test_all_types_pb2
from cel.expr.conformance.proto3 import test_all_types_pb2 as proto3_pb2
from cel.expr.conformance.test import simple_pb2
from google.protobuf import duration_pb2, text_format, timestamp_pb2

from tests.cel.cel_conformance import Line

MODULE = Path(__file__).parent / "cel_spec"
NEEDED = (test_all_types_pb2, test_all_types_extensions_pb2, proto3_pb2)  # known to text_format once imported

_PRIMITIVE = {
    checked_pb2.Type.BOOL: "bool",
    checked_pb2.Type.INT64: "int",
    checked_pb2.Type.UINT64: "uint",
    checked_pb2.Type.DOUBLE: "double",
    checked_pb2.Type.STRING: "string",
    checked_pb2.Type.BYTES: "bytes",
}
_WELL_KNOWN = {checked_pb2.Type.TIMESTAMP: "timestamp", checked_pb2.Type.DURATION: "duration"}
_SCALARS = ("bool_value", "int64_value", "string_value")
_MESSAGES = re.compile(
    r"\bgoogle\.protobuf\b(?!\.Timestamp\b|\.Duration\b)|\bproto\.|\b(?:Nested)?TestAllTypes\b|\bcel\.expr\.conformance\b"
)


class Unavailable(Exception):
    """The tests are not in the cache and cannot be fetch_tests."""


class Unsupported(Exception):
    """A test needs something that Kubernetes' CEL does not have; the message names it."""


def fetch_tests() -> Path:
    """The folder with the specification's test files; raises Unavailable if they cannot be fetched."""
    pinned = hashlib.sha256((MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall"
    folder = cache / f"cel-spec-{pinned[:16]}"
    if not folder.is_dir():
        source = _download_module() / "tests" / "simple" / "testdata"
        cache.mkdir(parents=True, exist_ok=True)
        # Complete the folder under another name first: two workers may do this at once, and one may be killed.
        with tempfile.TemporaryDirectory(dir=cache) as work:
            copy = Path(shutil.copytree(source, Path(work) / "testdata", copy_function=shutil.copyfile))
            try:
                copy.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder


def _download_module() -> Path:
    """The module in Go's cache. Go compares it with go.sum; any other module than the pinned one is an error."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("Go is absent")
    command = [go, "mod", "download", "-json", "cel.dev/expr"]
    environment = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    try:
        done = subprocess.run(
            command, cwd=MODULE, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable("`go mod download` does not come to an end") from None
    if "SECURITY ERROR" in done.stderr:
        raise AssertionError(done.stderr)
    module = json.loads(done.stdout or "{}")
    if "Dir" not in module:
        raise Unavailable(module.get("Error") or done.stderr.strip() or "`go mod download` says nothing")
    return Path(module["Dir"])


def cases(file: Path) -> Iterator[tuple[str, simple_pb2.SimpleTest]]:
    """The tests of a file, by `section/name`."""
    # Python's reader does not know `\?`, a question mark. Messages may have fields that are newer than ours, but tests
    # with messages are skipped anyway.
    text = re.sub(r"\\([\\?])", lambda escape: "?" if escape[1] == "?" else escape[0], file.read_text())
    read = text_format.Parse(text, simple_pb2.SimpleTestFile(), allow_unknown_field=True)
    for section in read.section:
        for test in section.test:
            yield f"{section.name}/{test.name}", test


def lines(name: str, test: simple_pb2.SimpleTest) -> list[Line]:
    """The questions of the test as lines of `tierwall cel batch`; raises Unsupported if lines cannot express them."""
    if _MESSAGES.search(re.sub(r"//.*|\s", "", test.expr)) or _MESSAGES.match(test.container):
        raise Unsupported("protobuf messages")
    line: Line = {"name": name, "expr": test.expr}
    if test.bindings:
        line["vars"] = {key: _value(bound.value) for key, bound in test.bindings.items()}
    matcher = test.WhichOneof("result_matcher")
    if matcher in ("unknown", "any_unknowns"):
        raise Unsupported("unknown values as results")
    if matcher in ("eval_error", "any_eval_errors"):
        return [line | {"expect": {"error": True}}]
    result = test.typed_result.result if matcher == "typed_result" else test.value
    asked: list[Line] = []
    if not test.check_only:
        # Without a matcher the specification means true.
        asked.append(line | {"expect": {"value": True if matcher is None else _value(result)}})
    if matcher == "typed_result":
        deduced = {"type": _type(test.typed_result.deduced_type)}
        asked.append({"name": name, "expr": test.expr, "check": True, "decls": _decls(test), "expect": deduced})
    return asked


def _decls(test: simple_pb2.SimpleTest) -> dict[str, str]:
    if any(decl.WhichOneof("decl_kind") == "function" for decl in test.type_env):
        raise Unsupported("declared functions")
    return {decl.name: _type(decl.ident.type) for decl in test.type_env}


def _value(value: value_pb2.Value) -> object:
    """A value in the form of docs/cel.md#values-that-json-lacks."""
    kind = value.WhichOneof("kind")
    if kind in _SCALARS:
        return getattr(value, kind)
    match kind:
        case "null_value":
            return None
        case "uint64_value":
            return {"$type": "uint", "$value": value.uint64_value}
        case "double_value":
            number = value.double_value
            text = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
            return {"$type": "double", "$value": number if math.isfinite(number) else text}
        case "bytes_value":
            return {"$type": "bytes", "$value": base64.b64encode(value.bytes_value).decode()}
        case "list_value":
            return [_value(item) for item in value.list_value.values]
        case "map_value":
            return {
                "$type": "map",
                "$value": [[_value(entry.key), _value(entry.value)] for entry in value.map_value.entries],
            }
        case "type_value":
            return {"$type": "type", "$value": value.type_value}
        case "object_value":
            return _time(value)
    raise Unsupported("protobuf enums" if kind == "enum_value" else f"values of kind {kind}")


def _time(value: value_pb2.Value) -> object:
    timestamp, duration = timestamp_pb2.Timestamp(), duration_pb2.Duration()
    if value.object_value.Unpack(timestamp):
        return {"$type": "timestamp", "$value": timestamp.ToJsonString()}
    if value.object_value.Unpack(duration):
        return {"$type": "duration", "$value": duration.ToJsonString()}
    raise Unsupported("protobuf messages")


def _type(given: checked_pb2.Type) -> str:
    kind = given.WhichOneof("type_kind")
    match kind:
        case "primitive":
            return _PRIMITIVE[given.primitive]
        case "well_known" if given.well_known in _WELL_KNOWN:
            return _WELL_KNOWN[given.well_known]
        case "list_type":
            return f"list({_type(given.list_type.elem_type)})"
        case "map_type":
            return f"map({_type(given.map_type.key_type)}, {_type(given.map_type.value_type)})"
        case "dyn":
            return "dyn"
        case "null":
            return "null_type"
        case "type":
            return f"type({_type(given.type)})"
        case "abstract_type":
            inside = ", ".join(map(_type, given.abstract_type.parameter_types))
            return f"{given.abstract_type.name}({inside})" if inside else given.abstract_type.name
    raise Unsupported("type parameters" if kind == "type_param" else "protobuf messages")
