"""The public Python API: a world of objects, and everything that can be asked of it (docs/python-api.md).

`load`, `loads`, `World.overlay` and `run_tests` read; nothing else touches files or the network. Planes are imported
when they are asked, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tierwall.core.answer import Answer, Omission
from tierwall.core.diagnostics import Diagnostic, InputError, in_order, input_error, near_miss, no_such_name
from tierwall.core.question import Question
from tierwall.core.reference import Reference
from tierwall.resources.document import Source
from tierwall.resources.load import Loaded, load_objects, load_text
from tierwall.resources.load import load as load_paths
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.analyze.diff import Difference
    from tierwall.api.permissions import Permission
    from tierwall.network.reach.connections import Connections
    from tierwall.policytest.report import TestReport
    from tierwall.tool.grants import ToolRow

Path: TypeAlias = str | os.PathLike[str]
# Told of work that takes long: what is done, how much of it is done, and how much there is.
Progress: TypeAlias = Callable[[str, int, int], None]


def load(
    *paths: Path,
    objects: Iterable[Mapping[str, Any]] = (),
    namespace: str = "default",
    exclude: Sequence[str] = (),
    strict: bool = False,
) -> World:
    """Read files and folders, then plain objects over them.

    InputError has everything that cannot be read. Objects that an API server would refuse are in `World.diagnostics`
    and are judged all the same: what they guard fails closed. `strict` raises where something was not considered.
    """
    return _world(load_paths([os.fspath(path) for path in paths], namespace, exclude), objects, namespace, strict)


def loads(
    text: str | bytes,
    name: str = "<text>",
    *,
    objects: Iterable[Mapping[str, Any]] = (),
    namespace: str = "default",
    strict: bool = False,
) -> World:
    """The same from a text; `name` stands for the file in positions."""
    return _world(load_text(text, name, namespace), objects, namespace, strict)


def _world(loaded: Loaded, objects: Iterable[Mapping[str, Any]], namespace: str, strict: bool) -> World:
    if loaded.errors:
        raise InputError(loaded.errors)
    snapshot = _over(loaded.snapshot, objects, namespace)
    world = World(snapshot, loaded.diagnostics, loaded.read.sources, namespace)
    if strict and world.not_considered:
        left_out = [
            (omission.count, omission.kind or omission.reason, omission.effect) for omission in world.not_considered
        ]
        raise InputError(
            Diagnostic("TW703", f"not considered: {count} {kind}", hint=effect) for count, kind, effect in left_out
        )
    return world


def diff(old: World, new: World, planes: Sequence[str] | None = None) -> Iterator[Difference]:
    """What a change opens, closes or alters; InputError for a plane that cannot be compared."""
    from tierwall.analyze.diff import differences

    return differences(old.snapshot, new.snapshot, planes)


def run_tests(*paths: Path, engine: str = "model", world: World | None = None) -> TestReport:
    """Run the policy tests in files and folders; with a world, its objects lie under those of every test."""
    from tierwall.engines import table
    from tierwall.policytest.report import TestReport
    from tierwall.policytest.run import run
    from tierwall.policytest.suite import suites

    known = table.offered_by("test")
    if engine not in known:
        words = f"expected one of {', '.join(known)} as engine, found `{engine}`"
        raise InputError([Diagnostic("TW703", words, hint=near_miss(engine, known))])
    under = world.snapshot if world is not None else None
    loaded = suites([os.fspath(path) for path in paths], under)
    return TestReport(tuple(run(loaded, table.engine(engine))))


def _over(snapshot: Snapshot, objects: Iterable[Mapping[str, Any]], namespace: str) -> Snapshot:
    values = [dict(value) for value in objects]
    problems = [
        Diagnostic("TW006", f"expected `apiVersion` and `kind` in `objects[{index}]`, found a map without them")
        for index, value in enumerate(values)
        if not value.get("apiVersion") or not value.get("kind")
    ]
    if problems:
        raise InputError(problems)
    return snapshot.changed(put=load_objects(values, namespace=namespace)) if values else snapshot


class World:
    """An immutable set of objects. Threads may share it, and the same question always has the same answer."""

    __slots__ = ("_namespace", "_noticed", "_sources", "snapshot")

    def __init__(
        self,
        snapshot: Snapshot,
        noticed: Iterable[Diagnostic] = (),
        sources: Mapping[str, Source] | None = None,
        namespace: str = "default",
    ) -> None:
        self.snapshot = snapshot
        self._noticed = tuple(noticed)
        self._sources = sources or {}
        self._namespace = namespace

    @classmethod
    def of(cls, loaded: Loaded) -> World:
        """The world of what was read."""
        return cls(loaded.snapshot, loaded.diagnostics, loaded.read.sources)

    def __repr__(self) -> str:
        return f"<World of {len(self.snapshot)} objects>"

    # Reading more

    def overlay(self, *paths: Path, objects: Iterable[Mapping[str, Any]] = ()) -> World:
        """This world with other objects over it: one with the same kind and name is replaced, every other added."""
        loaded = load_paths([os.fspath(path) for path in paths], self._namespace)
        if loaded.errors:
            raise InputError(loaded.errors)
        snapshot = self.snapshot.changed(put=loaded.resources) if loaded.resources else self.snapshot
        noticed = (*self._noticed, *loaded.diagnostics)
        sources = {**self._sources, **loaded.read.sources}
        return World(_over(snapshot, objects, self._namespace), noticed, sources, self._namespace)

    def without(self, *references: str | Reference) -> World:
        """This world as if these objects were not there."""
        problems: list[Diagnostic] = []
        gone = [resource for reference in references if (resource := self._find(reference, problems)) is not None]
        if problems:
            raise input_error(problems)
        return World(self.snapshot.changed(drop=gone), self._noticed, self._sources, self._namespace)

    # Asking

    def ask(self, question: Question) -> Answer:
        """Answer a question. InputError names everything wrong with it; UnknownName if only names do not exist."""
        from tierwall.policytest.planes import plane

        return plane(question.plane).ask(self.snapshot, question)

    def effective(self, **place: Any) -> Answer:
        """The settings in force at a place; the arguments are those of `GatewayQuestion`."""
        from tierwall.gateway.question import GatewayQuestion

        return self.ask(GatewayQuestion(**place))

    def connections(
        self,
        *,
        sources: Sequence[str] = (),
        destinations: Sequence[str] = (),
        ports: Sequence[str] = (),
        explain: bool = False,
        denied: bool = False,
    ) -> Connections:
        """Who can reach whom on which ports, for all ends at once or for those named."""
        from tierwall.network.reach.connections import connections

        return connections(self.snapshot, sources, destinations, ports, explain, denied)

    def tools(
        self,
        caller: str | Mapping[str, str] | None = None,
        *,
        gateway: str | None = None,
        backend: str | None = None,
        tools: Sequence[str] = (),
    ) -> list[ToolRow]:
        """What a caller may use: every tool that is known at every backend that a Gateway leads to.

        `tools` are names to ask about beside those that policies and backends name.
        """
        from tierwall.tool.grants import grants

        return list(grants(self.snapshot, caller, gateway, backend, tools).rows)

    def permissions(self, user: str = "", groups: Sequence[str] = (), namespace: str = "") -> list[Permission]:
        """Everything that a user may do in a namespace, as far as policies say it outright."""
        from tierwall.api.permissions import permissions

        return permissions(self.snapshot, user, groups, namespace).listed

    # Looking

    def check(
        self, select: Sequence[str] | None = None, ignore: Sequence[str] = (), progress: Progress | None = None
    ) -> list[Diagnostic]:
        """Everything that is wrong with the objects, by place; `select` and `ignore` are codes or their beginnings."""
        from tierwall.analyze.checks import check

        return [
            finding
            for finding in in_order([*self._noticed, *check(self.snapshot, progress)])
            if (select is None or finding.code.startswith(tuple(select))) and not finding.code.startswith(tuple(ignore))
        ]

    def status(self, *references: str | Reference) -> list[dict[str, Any]]:
        """The policies with the status that a controller would write; all of them, or those named."""
        from tierwall.gateway.policy_status import statuses
        from tierwall.render.json.status import status_document

        return [status_document(status) for status in statuses(self.snapshot, *map(str, references))]

    def objects(self, kind: str | None = None) -> Iterator[Resource]:
        """All objects, or those of one kind, in the order they were read."""
        return (resource for resource in self.snapshot if kind is None or resource.kind == kind)

    def find(self, reference: str | Reference) -> Resource:
        """One object; UnknownName if there is none."""
        problems: list[Diagnostic] = []
        resource = self._find(reference, problems)
        if resource is None:
            raise input_error(problems)
        return resource

    def line(self, file: str, number: int) -> str | None:
        """A line of a file as it was read, for showing what a position is about."""
        source = self._sources.get(file)
        return source.line(number) if source is not None else None

    def _find(self, reference: str | Reference, problems: list[Diagnostic]) -> Resource | None:
        try:
            parsed = reference if isinstance(reference, Reference) else Reference.parse(reference)
        except ValueError as error:
            problems.append(Diagnostic("TW703", str(error)))
            return None
        resource = self.snapshot.find(parsed)
        if resource is None:
            hint = near_miss(str(parsed), (str(resource.reference) for resource in self.snapshot))
            problems.append(no_such_name(f"there is no {parsed}", hint))
        return resource

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What was noticed when objects were read, and what an API server would have against them."""
        from tierwall.resources.validity import problems

        found = (problem for resource in self.snapshot for problem in problems(resource))
        return in_order([*self._noticed, *found])

    @property
    def not_considered(self) -> tuple[Omission, ...]:
        """What could change answers and takes no part in any."""
        return ()
