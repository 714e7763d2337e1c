"""Find the policy tests in files and folders, and read their cases (docs/policy-tests.md).

Every problem of every test file is reported at once; nothing runs while a test file is malformed. `resources` are
files, folders or globs relative to the test's own file; each file is read once, however many tests share it. So is each
cluster that tests name; `resources` and `objects` lie over it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, sorted_diagnostics
from tierwall.planes import PLANES
from tierwall.policytest.clusters import ClusterObjects, read_clusters
from tierwall.policytest.proofs import ProofCases
from tierwall.proofs.proof import DEFAULT_EFFORT, Change, Proof
from tierwall.resources.admission.question import LocatedValue
from tierwall.resources.load import DEFAULT_SETTINGS, LoadSettings, load, load_objects, read_objects
from tierwall.resources.overlay import overlay
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import InstalledDefinition, admission_problems, built_in_problems, installed_definition

if TYPE_CHECKING:
    from tierwall.cluster.cluster import Cluster
    from tierwall.core.protocols import Progress

POLICY_TEST = ("tierwall.io", "PolicyTest")


class PolicyCase(msgspec.Struct, frozen=True):
    """One question with its expected answer, or a proof; `plane` is then `prove`."""

    name: str
    plane: str
    question: Mapping[str, Any]
    expect: Mapping[str, Any]
    path: tuple[str | int, ...]
    # A proof, and the old objects if it is about a change.
    proof: Proof | None = None
    against: Snapshot | None = None


class PolicySuite(msgspec.Struct, frozen=True):
    """One PolicyTest: its cases, and the snapshot they are asked of.

    `noticed` holds problems that were noticed while reading objects; cases are asked all the same.
    """

    file: str
    name: str
    resource: Resource
    snapshot: Snapshot
    defaults: Mapping[str, Any]
    cases: tuple[PolicyCase, ...]
    noticed: tuple[Diagnostic, ...] = ()
    # The namespace of names that have none.
    namespace: str = "default"
    # The limit of each proof, in units of work.
    proof_effort: float = DEFAULT_EFFORT


def suites(
    paths: Iterable[str],
    base: Snapshot | None = None,
    settings: LoadSettings = DEFAULT_SETTINGS,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> list[PolicySuite]:
    """Read every PolicyTest in these files and folders. InputError has every problem of every test file.

    The objects of a test replace and extend those of `base`, if it is given. `settings` are those of all files.
    `cluster` says how to read the clusters that tests name; without it, `base` takes their place.
    """
    paths = list(paths)
    loaded = load(paths, settings)
    tests = [resource for resource in loaded.resources if (resource.group, resource.kind) == POLICY_TEST]
    # A folder of tests may hold the manifests they judge; problems of those are up to the decision.
    files = {at.file for test in tests if (at := test.position()) is not None}
    diagnostics = [
        diagnostic for diagnostic in loaded.diagnostics if diagnostic.at is None or diagnostic.at.file in files
    ]
    if not tests and not diagnostics and not settings.skip_non_manifests:
        diagnostics = list(loaded.diagnostics)
        unreadable = {problem.at.file for problem in diagnostics if problem.unreadable and problem.at is not None}
        if searched := [f"`{path}`" for path in paths if path not in unreadable]:
            diagnostics.append(Diagnostic("TW701", f"no PolicyTest in {', '.join(searched)}"))
    malformed = {test: problems for test in tests if (problems := list(_test_problems(test)))}
    for problems in malformed.values():
        diagnostics += problems
    # No cluster is read for tests that cannot run.
    errors = Diagnostics(diagnostics).errors
    read = read_clusters(tests, cluster, progress) if cluster is not None and not errors else {}
    caches = {objects: _over_cluster(objects, base, settings) for objects in set(read.values())}
    cache = _SnapshotCache(base, settings)
    ready: list[PolicySuite] = []
    for test in tests:
        if test in malformed:
            continue
        try:
            ready.append(_suite(test, caches[read[test]] if test in read else cache))
        except InputError as error:
            diagnostics += error.diagnostics
    errors = Diagnostics(diagnostics).errors
    if errors:
        raise InputError(errors)
    if not settings.without:
        return ready
    from tierwall.resources.removal import without

    snapshots = without([suite.snapshot for suite in ready], settings.without, settings.namespace or "default")
    return [msgspec.structs.replace(suite, snapshot=snapshot) for suite, snapshot in zip(ready, snapshots, strict=True)]


def _over_cluster(objects: ClusterObjects, base: Snapshot | None, settings: LoadSettings) -> _SnapshotCache:
    """Return the snapshots of tests that name a cluster: `base` and their files lie over it."""
    snapshot = objects.snapshot.with_backend_ref_grants(settings.backend_ref_grants)
    snapshot = snapshot if base is None else overlay(snapshot, base)
    return _SnapshotCache(
        snapshot, msgspec.structs.replace(settings, namespace=settings.namespace or objects.namespace)
    )


def object_problems(suites: Iterable[PolicySuite]) -> Diagnostics:
    """List the problems of the objects that tests judge. They do not fail a case, because planes fail closed.

    Objects that an API server would refuse, documents that are not objects, repeated keys, and duplicate objects.
    """
    noticed: list[Diagnostic] = []
    seen: set[tuple[Resource, InstalledDefinition | None]] = set()
    for suite in suites:
        noticed += suite.noticed
        for resource in suite.snapshot:
            key = resource, installed_definition(suite.snapshot, resource)
            if key not in seen:
                seen.add(key)
                noticed += admission_problems(suite.snapshot, resource)
    return sorted_diagnostics(Diagnostics(noticed).serious)


def _test_problems(resource: Resource) -> Iterator[Diagnostic]:
    for problem in built_in_problems(resource).errors:
        yield msgspec.structs.replace(problem, code="TW701")


def _suite(resource: Resource, cache: _SnapshotCache) -> PolicySuite:
    spec = resource.spec
    place = resource.position()
    file = place.file if place else ""
    folder = os.path.dirname(file)
    diagnostics: list[Diagnostic] = []
    base, noticed, namespace, missing = cache.snapshot(folder, tuple(spec.get("resources") or ()))
    for index, pattern in missing:
        diagnostics.append(
            Diagnostic(
                "TW702", f"no file or folder matches `{pattern}`", resource.position(("spec", "resources", index))
            )
        )
    cases = []
    proofs = ProofCases(resource, diagnostics)
    for index, case in enumerate(spec.get("cases") or ()):
        path = ("spec", "cases", index)
        if "prove" in case:
            proof = proofs.read(case, path)
            if proof is not None:
                against = cache.against(proof, folder, resource, path, diagnostics)
                expect = case.get("expect") or {}
                cases.append(PolicyCase(case["name"], "prove", case["prove"], expect, path, proof, against))
            continue
        plane_name = next(name for name in PLANES if name in case)
        question = dict(case[plane_name])
        if plane_name == "admit" and question.keys() == {"object"}:
            question = {"objects": (LocatedValue(question["object"], resource, (*path, "admit", "object")),)}
        if plane_name == "admit" and question.keys() == {"file"}:
            file_loaded = load([_join_path(folder, question["file"])], cache.settings)
            diagnostics += [
                Diagnostic(
                    "TW702", f"`{question['file']}`: {diagnostic.message}", resource.position((*path, "admit", "file"))
                )
                for diagnostic in file_loaded.diagnostics
                if diagnostic.unreadable
            ]
            question = {"objects": [LocatedValue(judged.value, judged) for judged in file_loaded.resources]}
        cases.append(PolicyCase(case["name"], plane_name, question, case.get("expect") or {}, path))
    if diagnostics:
        raise InputError(diagnostics)
    objects = spec.get("objects") or ()
    inline = load_objects(objects, resource.origin, (*resource.prefix, "spec", "objects"), namespace)
    snapshot = overlay(base, inline)
    noticed = (
        *noticed,
        *_problems_of_inline_objects(resource, objects),
        *_proofs_about_nothing(cases, resource, snapshot),
    )
    defaults = spec.get("defaults") or {}
    return PolicySuite(
        file, resource.name, resource, snapshot, defaults, tuple(cases), noticed, namespace, proofs.effort
    )


def _proofs_about_nothing(cases: Iterable[PolicyCase], resource: Resource, snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Warn of proofs without objects: a question about them would name what is not there, but a proof names nothing."""
    if snapshot.is_live or any((judged.group, judged.kind) != POLICY_TEST for judged in snapshot):
        return
    for case in cases:
        if case.proof is not None:
            message = f"no objects are judged, so the proof `{case.name}` is about the defaults alone"
            hint = "add `resources`, `objects` or `cluster` to `spec`, or -f"
            yield Diagnostic("TW706", message, resource.position(case.path), hint=hint)


def _problems_of_inline_objects(resource: Resource, values: Sequence[Any]) -> Iterator[Diagnostic]:
    """Report inline maps, and items of inline lists, that are left out because they are not objects."""
    for index, value in enumerate(values):
        place = (*resource.prefix, "spec", "objects", index)
        for problem in read_objects(value, origin=resource.origin, prefix=place):
            if isinstance(problem, Diagnostic):
                yield problem


def _join_path(folder: str, name: str) -> str:
    """Join a folder and a path, without `.` parts and repeated slashes."""
    path = os.path.join(folder, name)
    parts = (part for part in path.split("/") if part not in ("", "."))
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."


class _SnapshotCache:
    """Snapshots by the files they were read from: tests that share manifests share the snapshot."""

    def __init__(self, base: Snapshot | None, settings: LoadSettings) -> None:
        self._base = base
        self.settings = settings
        self._loaded: dict[tuple[str, ...], tuple[Snapshot, tuple[Diagnostic, ...], str]] = {}

    def snapshot(
        self, folder: str, patterns: tuple[str, ...]
    ) -> tuple[Snapshot, tuple[Diagnostic, ...], str, list[tuple[int, str]]]:
        """Return the objects of some files, the problems noticed in them, and the patterns that match no file.

        Before the patterns comes the namespace of names that have none.
        """
        from glob import glob

        files: dict[str, None] = {}
        missing = []
        for index, pattern in enumerate(patterns):
            matched = sorted(glob(_join_path(folder, pattern), recursive=True))
            if not matched:
                missing.append((index, pattern))
            files.update(dict.fromkeys(matched))
        key = tuple(files)
        if key not in self._loaded:
            loaded = load(key, self.settings)
            # A document that is not an object is left out and reported; a file that was not read could hold anything.
            unreadable = [diagnostic for diagnostic in loaded.diagnostics if diagnostic.unreadable]
            if unreadable:
                raise InputError(unreadable)
            snapshot = loaded.snapshot if self._base is None else overlay(self._base, loaded.resources)
            self._loaded[key] = snapshot, loaded.diagnostics, loaded.namespace
        return *self._loaded[key], missing

    def against(
        self,
        proof: Proof,
        folder: str,
        resource: Resource,
        path: tuple[str | int, ...],
        diagnostics: list[Diagnostic],
    ) -> Snapshot | None:
        """Return the old objects of a proof about a change; None if it is about none, or after adding a problem."""
        if not isinstance(proof.claim, Change):
            return None
        place = (*path, "prove", proof.claim.word, "against")
        if not proof.claim.of_cluster:
            snapshot, _, _, missing = self.snapshot(folder, proof.claim.against)
            diagnostics += [
                Diagnostic("TW702", f"no file or folder matches `{pattern}`", resource.position(place))
                for _, pattern in missing
            ]
            return snapshot
        if self._base is None or not self._base.is_live:
            message = "`against: {cluster: true}` compares with a cluster, and this test names none"
            hint = "add `cluster: true` to `spec`, or --cluster"
            diagnostics.append(Diagnostic("TW702", message, resource.position(place), hint=hint))
        return self._base
