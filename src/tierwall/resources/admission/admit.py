"""Admission: would an API server that knows these kinds accept this object?

The steps are the API server's: strict decoding (unknown fields), null pruning and defaulting, then the schema, list
types and CEL rules. Nothing here changes the object. The planes read objects leniently on their own, so that a refused
object still closes what it was meant to guard.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from tierwall.resources.admission import wording
from tierwall.resources.admission.default import Defaulter, compile_defaults
from tierwall.resources.admission.problem import (
    COUNT,
    REQUIRED,
    UNKNOWN_KIND,
    UNSERVED,
    UNSERVED_POLICY,
    WRONG_TYPE,
    AdmissionProblem,
    MeteredProblems,
    ValueCheck,
    existing_path,
)
from tierwall.resources.admission.validate import MAX_PROBLEMS, SchemaCompiler
from tierwall.resources.kinds.meta import object_schema
from tierwall.resources.kinds.registry import Kind, find_kind

_MAX_DEPTH = 200  # levels; deeper than any schema, shallower than Python's own limit


def admit(document: Any, kind: Kind | None = None) -> list[AdmissionProblem]:
    """Return every refusal of and warning about `document`; nothing if its kind is unknown.

    `kind` overrides the built-in kind that its apiVersion and kind stand for.
    """
    if type(document) is not dict:
        return [
            AdmissionProblem(
                WRONG_TYPE, (), wording.wrong_type((), "object", document), "object", wording.type_name(document)
            )
        ]
    problems: list[AdmissionProblem] = _type_problems(document)
    if problems:
        return problems
    kind = kind or find_kind(document["apiVersion"], document["kind"])
    if kind is None:
        return list(_unknown_kind(document["apiVersion"], document["kind"]))
    if _too_deep(document):
        return [AdmissionProblem(COUNT, (), f"object is nested deeper than {_MAX_DEPTH} levels")]
    if kind.installed:
        problems = MeteredProblems()
    fill, check = _compiled_kind(kind)
    check(fill(document), None, problems)
    if kind.kind == "CustomResourceDefinition" and kind.group == "apiextensions.k8s.io":
        from tierwall.resources.definition.schemas import schema_problems

        problems += schema_problems(document)
    if len(problems) >= MAX_PROBLEMS and not any(problem.refuses for problem in problems):
        # An error may follow the warnings. The rest was not checked, so refuse the object.
        problems = [
            AdmissionProblem(COUNT, (), f"object has {MAX_PROBLEMS} warnings or more; the rest was not judged"),
            *problems,
        ]
    if not problems:
        return []
    from tierwall.resources.admission.mistakes import with_hints  # most objects have none

    return [
        msgspec.structs.replace(problem, path=existing_path(problem.path, document))
        for problem in with_hints(kind, problems[:MAX_PROBLEMS])
    ]


def with_defaults(document: dict[str, Any], kind: Kind | None = None) -> dict[str, Any]:
    """Return the object as the API server would store it: nulls pruned, defaults set. Unknown kinds stay unchanged."""
    kind = kind or find_kind(document.get("apiVersion"), document.get("kind"))
    if kind is None or _too_deep(document):
        return document
    stored: dict[str, Any] = _compiled_kind(kind)[0](document)
    return stored


def _compiled_kind(kind: Kind) -> tuple[Defaulter, ValueCheck]:
    """Compile the schema of a kind to a function that sets defaults and one that validates. Kept with the kind."""
    compiled: tuple[Defaulter, ValueCheck] | None = kind.__dict__.get("compiled")
    if compiled is None:
        schema = object_schema(kind)
        check = SchemaCompiler(strict=kind.strict, native=not kind.is_crd, metered=kind.installed).compile(schema)
        compiled = kind.__dict__["compiled"] = compile_defaults(schema, native=not kind.is_crd), check
    return compiled


def _type_problems(document: dict[str, Any]) -> list[AdmissionProblem]:
    problems: list[AdmissionProblem] = []
    for name in ("apiVersion", "kind"):
        value = document.get(name)
        if value is None or value == "":
            problems.append(AdmissionProblem(REQUIRED, (), wording.required((name,))))
        elif type(value) is not str:
            problems.append(
                AdmissionProblem(WRONG_TYPE, (name,), wording.wrong_type((name,), "string", value), "string")
            )
    return problems


def _unknown_kind(api_version: str, kind: str) -> Iterator[AdmissionProblem]:
    """Yield the problem of an object of no built-in kind, if it was surely meant to be of one."""
    from tierwall.resources.kinds.misspelling import misspelled_kind  # most objects are of a known kind
    from tierwall.resources.kinds.served import unserved_version

    unserved = unserved_version(api_version, kind)
    if unserved is not None:
        code = UNSERVED_POLICY if unserved.takes_no_part else UNSERVED if unserved.is_read else UNKNOWN_KIND
        yield unknown_kind_problem(api_version, kind, unserved.hint, code)
    elif (misspelled := misspelled_kind(api_version.rpartition("/")[0], kind)) is not None:
        yield unknown_kind_problem(api_version, kind, misspelled.hint)


def unknown_kind_problem(api_version: str, kind: str, hint: str, code: str = UNKNOWN_KIND) -> AdmissionProblem:
    """Return the problem of an object whose kind or version does not exist."""
    message = f"no matches for kind {wording.go_quote(kind)} in version {wording.go_quote(api_version)}"
    return AdmissionProblem(code, ("kind",) if code == UNKNOWN_KIND else ("apiVersion",), message, hint=hint)


def _too_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if type(node) is dict:
                below += [item for item in node.values() if type(item) in (dict, list)]
            else:
                below += [item for item in node if type(item) in (dict, list)]
        if not below:
            return False
        level = below
    return True
