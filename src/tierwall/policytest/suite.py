"""Finding the policy tests in files and folders, and what each of them asks (docs/policy-tests.md).

Every problem of every test file is reported at once; nothing runs while a test file is malformed. `resources` are
files, folders or globs relative to the test's own file; each file is read once, however many tests share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, in_order
from tierwall.planes import PLANES
from tierwall.resources.admission.question import Written
from tierwall.resources.load import load, load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import Definition, built_in_problems, definition_of, problems

POLICY_TEST = ("tierwall.io", "PolicyTest")


class Case(msgspec.Struct, frozen=True):
    """One question with its expected answer."""

    name: str
    plane: str
    question: Mapping[str, Any]
    expect: Mapping[str, Any]
    path: tuple[str | int, ...]


class Suite(msgspec.Struct, frozen=True):
    """One PolicyTest: its cases, and the snapshot they are asked of.

    `noticed` is what was noticed when the objects were read and does not keep the cases from being asked.
    """

    file: str
    name: str
    resource: Resource
    snapshot: Snapshot
    defaults: Mapping[str, Any]
    cases: tuple[Case, ...]
    noticed: tuple[Diagnostic, ...] = ()


def suites(paths: Iterable[str], under: Snapshot | None = None) -> list[Suite]:
    """Every PolicyTest in these files and folders, ready to run; InputError with every problem found.

    The objects of a test lie over those of the snapshot `under` them, if there is one.
    """
    paths = list(paths)
    loaded = load(paths)
    tests = [resource for resource in loaded.resources if (resource.group, resource.kind) == POLICY_TEST]
    # A folder of tests may hold the manifests they judge; what is wrong with those is for the decision, not for us.
    files = {at.file for test in tests if (at := test.position()) is not None}
    diagnostics = [
        diagnostic for diagnostic in loaded.diagnostics if diagnostic.at is None or diagnostic.at.file in files
    ]
    if not tests and not diagnostics:
        diagnostics = [
            *loaded.diagnostics,
            Diagnostic("TW701", "no PolicyTest in " + ", ".join(f"`{path}`" for path in paths)),
        ]
    library = _Library(under)
    ready: list[Suite] = []
    for test in tests:
        wrong = list(_malformed(test))
        if wrong:
            diagnostics += wrong
            continue
        try:
            ready.append(_suite(test, library))
        except InputError as error:
            diagnostics += error.diagnostics
    errors = Diagnostics(diagnostics).errors
    if errors:
        raise InputError(errors)
    return ready


def doubts(suites: Iterable[Suite]) -> Diagnostics:
    """What is wrong with the objects that tests judge. It fails no case, because planes fail closed.

    Objects that an API server would refuse, texts that are not objects, repeated keys, objects that are there twice.
    """
    noticed: list[Diagnostic] = []
    judged: set[tuple[Resource, Definition | None]] = set()
    for suite in suites:
        noticed += suite.noticed
        for resource in suite.snapshot:
            key = resource, definition_of(suite.snapshot, resource)
            if key not in judged:
                judged.add(key)
                noticed += problems(suite.snapshot, resource)
    return in_order(Diagnostics(noticed).serious)


def _malformed(resource: Resource) -> Iterator[Diagnostic]:
    for problem in built_in_problems(resource).errors:
        yield msgspec.structs.replace(problem, code="TW701")


def _suite(resource: Resource, library: _Library) -> Suite:
    spec = resource.spec
    place = resource.position()
    file = place.file if place else ""
    folder = os.path.dirname(file)
    diagnostics: list[Diagnostic] = []
    base, noticed, missing = library.snapshot(folder, tuple(spec.get("resources") or ()))
    for index, text in missing:
        diagnostics.append(
            Diagnostic("TW702", f"no file or folder matches `{text}`", resource.position(("spec", "resources", index)))
        )
    cases = []
    for index, case in enumerate(spec.get("cases") or ()):
        path = ("spec", "cases", index)
        plane_name = next(name for name in PLANES if name in case)
        question = dict(case[plane_name])
        if plane_name == "admit" and question.keys() == {"object"}:
            question = {"objects": (Written(question["object"], resource, (*path, "admit", "object")),)}
        if plane_name == "admit" and question.keys() == {"file"}:
            file_loaded = load([_joined(folder, question["file"])])
            diagnostics += [
                Diagnostic(
                    "TW702", f"`{question['file']}`: {diagnostic.message}", resource.position((*path, "admit", "file"))
                )
                for diagnostic in file_loaded.diagnostics
                if diagnostic.unreadable
            ]
            question = {"objects": [Written(judged.value, judged) for judged in file_loaded.resources]}
        cases.append(Case(case["name"], plane_name, question, case.get("expect") or {}, path))
    if diagnostics:
        raise InputError(diagnostics)
    objects = spec.get("objects") or ()
    inline = load_objects(objects, resource.origin, (*resource.prefix, "spec", "objects"))
    snapshot = base.changed(put=inline) if inline else base
    noticed = (*noticed, *_no_objects(resource, objects))
    return Suite(file, resource.name, resource, snapshot, spec.get("defaults") or {}, tuple(cases), noticed)


def _no_objects(resource: Resource, values: Sequence[Any]) -> Iterator[Diagnostic]:
    """Inline maps that are left out because they do not say what they are."""
    for index, value in enumerate(values):
        lacking = [f"`{key}`" for key in ("apiVersion", "kind") if not value.get(key)]
        if lacking:
            words = f"expected a Kubernetes object, found a map without {' and '.join(lacking)}"
            yield Diagnostic("TW006", words, resource.position(("spec", "objects", index)))


def _joined(folder: str, name: str) -> str:
    """A path as seen from a folder, without what says nothing: `.`, and slashes too many."""
    path = os.path.join(folder, name)
    parts = (part for part in path.split("/") if part not in ("", "."))
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."


class _Library:
    """Snapshots by the files they were read from, so that tests that share manifests share the work."""

    def __init__(self, under: Snapshot | None) -> None:
        self._under = under
        self._loaded: dict[tuple[str, ...], tuple[Snapshot, tuple[Diagnostic, ...]]] = {}

    def snapshot(
        self, folder: str, patterns: tuple[str, ...]
    ) -> tuple[Snapshot, tuple[Diagnostic, ...], list[tuple[int, str]]]:
        """The objects of some files, what was noticed about them, and the patterns that match no file."""
        from glob import glob

        files: dict[str, None] = {}
        missing = []
        for index, pattern in enumerate(patterns):
            matched = sorted(glob(_joined(folder, pattern), recursive=True))
            if not matched:
                missing.append((index, pattern))
            files.update(dict.fromkeys(matched))
        key = tuple(files)
        if key not in self._loaded:
            loaded = load(key)
            # What was read but is not an object is left out, and shown; what was not read could be anything.
            unreadable = [diagnostic for diagnostic in loaded.diagnostics if diagnostic.unreadable]
            if unreadable:
                raise InputError(unreadable)
            whole = loaded.snapshot if self._under is None else self._under.changed(put=loaded.resources)
            self._loaded[key] = whole, loaded.diagnostics
        return *self._loaded[key], missing
