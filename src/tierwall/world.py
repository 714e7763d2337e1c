"""The public Python API: a world of objects, and everything that can be asked of it (docs/python-api.md).

`World.overlay` reads files; nothing else here touches files or the network (`load` is in `tierwall.loading`). Planes
are imported when they are asked, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tierwall.core.answer import Answer, Omission
from tierwall.core.diagnostics import Diagnostic, InputError, input_error, sorted_diagnostics
from tierwall.core.question import Question
from tierwall.core.reference import Reference, full_name
from tierwall.core.words import as_given
from tierwall.resources.load import LoadResult, LoadSettings
from tierwall.resources.load import load as load_paths
from tierwall.resources.read import NOTHING_READ, ReadResult, repeated_keys
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.analyze.baseline import BaselineSet
    from tierwall.analyze.conversion import ConversionResult
    from tierwall.analyze.review import ReviewResult
    from tierwall.analyze.statuses import AnyStatus
    from tierwall.api.permissions import Permission
    from tierwall.api.question import ApiQuestion
    from tierwall.api.reads.decision import WidestSelectors
    from tierwall.core.protocols import Progress
    from tierwall.gateway.model.fields import Profile
    from tierwall.network.reach.connections import Connections
    from tierwall.network.reach.listing import ConnectionEntry
    from tierwall.network.reach.ways_in import JudgedWay
    from tierwall.resources.snapshot_document import SnapshotDocument
    from tierwall.tool.grants import Grants, ToolRow
    from tierwall.tool.usage import CallLog, CallReport

Path: TypeAlias = str | os.PathLike[str]
# What answers have omissions of; `ways` are the ways in from outside.
_PLANES = ("network", "ways", "tool", "gateway", "api")


def strings(values: Iterable[object]) -> tuple[str, ...]:
    """Make a tuple of what a caller lists. A single string counts as one entry: nobody means its letters."""
    return (values,) if isinstance(values, str) else tuple(map(str, values))


class World:
    """An immutable set of objects. Threads may share it, and the same question always has the same answer."""

    __slots__ = ("_head", "_namespace", "_noticed", "_read", "_snapshot", "_unread")

    def __init__(
        self,
        snapshot: Snapshot,
        noticed: tuple[Diagnostic, ...] = (),
        read: ReadResult = NOTHING_READ,
        namespace: str = "default",
        unread: tuple[Omission, ...] = (),
        head: SnapshotDocument | None = None,
    ) -> None:
        """Make a world of objects that are already read. Programs use `load` and `loads`."""
        self._head = head
        self._unread = unread
        self._snapshot = snapshot
        self._noticed = noticed
        self._read = read
        self._namespace = namespace

    @classmethod
    def of(cls, loaded: LoadResult) -> World:
        """Make the world of what was read; what could not be read is among its diagnostics."""
        return cls(loaded.snapshot, loaded.diagnostics, loaded.read, loaded.namespace, loaded.unread, loaded.head)

    @property
    def snapshot(self) -> Snapshot:
        """The objects, for callers inside Tierwall."""
        return self._snapshot

    @property
    def namespace(self) -> str:
        """The namespace of names that have none."""
        return self._namespace

    @property
    def head(self) -> SnapshotDocument | None:
        """The first document of the snapshot file that was read, for callers inside Tierwall."""
        return self._head

    def __repr__(self) -> str:
        return f"<World of {len(self._snapshot)} objects>"

    # Reading more

    def overlay(self, *paths: Path, objects: Iterable[Mapping[str, Any]] = ()) -> World:
        """Return this world with other objects over it. They replace objects of the same kind and name."""
        from tierwall.resources.overlay import overlay
        from tierwall.resources.plain_objects import objects_over

        loaded = load_paths([os.fspath(path) for path in paths], LoadSettings(self._namespace))
        if loaded.errors:
            raise InputError(loaded.errors)
        snapshot = objects_over(overlay(self._snapshot, loaded.resources), objects, self._namespace)
        noticed, read = (*self._noticed, *loaded.diagnostics), self._read.plus(loaded.read)
        return World(snapshot, noticed, read, self._namespace, (*self._unread, *loaded.unread), self._head)

    def without(self, *references: str | Reference) -> World:
        """Return this world without these objects."""
        from tierwall.resources.removal import without

        (snapshot,) = without([self._snapshot], references, self._namespace)
        return self.with_snapshot(snapshot)

    def with_snapshot(self, snapshot: Snapshot) -> World:
        """Return a world of other objects that were read together with these, for callers inside Tierwall."""
        return World(snapshot, self._noticed, self._read, self._namespace, self._unread, self._head)

    # Asking

    def ask(self, question: Question) -> Answer:
        """Answer a question. InputError names everything wrong with it; UnknownName if only names do not exist."""
        from tierwall.planes import plane

        name = getattr(question, "plane", None)
        if name is None:
            message = f"expected a question such as NetworkQuestion, found {as_given(question)}"
            raise InputError([Diagnostic("TW703", message)])
        return plane(name).ask(self._snapshot, question.in_namespace(self._namespace))

    def effective(self, **place: Any) -> Answer:
        """Return the settings in force at a place. The arguments are those of `GatewayQuestion`."""
        from tierwall.gateway.question import GatewayQuestion

        return self.ask(GatewayQuestion(**place))

    def effective_everywhere(self, **terms: Any) -> Iterator[Answer]:
        """Return the settings in force at every place that a request can reach.

        The arguments are those of `GatewayQuestion` that do not name a place: `profile`, `phase`, `request`.
        """
        from tierwall.gateway.question import GatewayQuestion, ask_everywhere

        return ask_everywhere(self._snapshot, GatewayQuestion(**terms))

    def connections(
        self,
        *,
        sources: Sequence[str] = (),
        destinations: Sequence[str] = (),
        ports: Sequence[str] = (),
        focus: Sequence[str] = (),
        explain: bool = False,
        denied: bool = False,
        names: bool = False,
        progress: Progress | None = None,
    ) -> Connections:
        """List who can reach whom on which ports, for all endpoints or for those named.

        With a focus, list what begins or ends there. With `names`, entries name every endpoint of a group.
        """
        from tierwall.network.reach.connections import connections

        return connections(
            self._snapshot,
            *(strings(part) for part in (sources, destinations, ports, focus)),
            explain=explain,
            denied=denied,
            names=names,
            progress=progress,
        )

    def ways_in(
        self, destinations: Sequence[str] = (), ports: Sequence[str] = (), *, explain: bool = False
    ) -> tuple[JudgedWay, ...]:
        """List the ways in from outside: Ingresses, routes and Services, with the pods that they reach."""
        from tierwall.network.reach.connections import ways_in

        return ways_in(self._snapshot, strings(destinations), strings(ports), explain)

    def exposure(self, *, explain: bool = False) -> Iterator[ConnectionEntry]:
        """List what future pods could reach, and what could reach them, by label."""
        from tierwall.network.reach.exposure import exposure

        return exposure(self._snapshot, explain)

    def tools(
        self,
        caller: str | Mapping[str, str] | None = None,
        *,
        gateway: str | None = None,
        backend: str | None = None,
        tools: Sequence[str] = (),
    ) -> list[ToolRow]:
        """List what a caller may use: every known tool of every backend that a Gateway leads to.

        `tools` adds names to those that policies and backends name.
        """
        return list(self.grants(caller, gateway, backend, tools).rows)

    def tool_usage(
        self,
        log: CallLog,
        caller: str | Mapping[str, str] | None = None,
        gateway: str | None = None,
        backend: str | None = None,
    ) -> CallReport:
        """Compare the calls of a decision log with what callers may call, for callers inside Tierwall."""
        from tierwall.tool.question import full_caller
        from tierwall.tool.usage import usage

        names = full_name(gateway, self._namespace), full_name(backend, self._namespace)
        return usage(self._snapshot, log, full_caller(caller, self._namespace), *names)

    def grants(
        self,
        caller: str | Mapping[str, str] | None = None,
        gateway: str | None = None,
        backend: str | None = None,
        tools: Sequence[str] = (),
    ) -> Grants:
        """Return what a caller may use, by way, for callers inside Tierwall."""
        from tierwall.tool.grants import grants
        from tierwall.tool.question import full_caller

        names = full_name(gateway, self._namespace), full_name(backend, self._namespace)
        return grants(self._snapshot, full_caller(caller, self._namespace), *names, strings(tools))

    def permissions(
        self,
        user: str = "",
        groups: Sequence[str] = (),
        namespace: str = "",
        *,
        uid: str = "",
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Permission]:
        """List everything that a user may do in a namespace, as far as policies can be listed."""
        from tierwall.api.permissions import permissions

        return permissions(self._snapshot, user, strings(groups), namespace, uid=uid, extra=extra).listed

    def widest(self, question: ApiQuestion) -> WidestSelectors:
        """Find the widest selectors with which a user may list, watch or delete; those of the question do not count.

        `selectors` is empty if no selector would do; `why` says why there may be more.
        """
        from tierwall.api.question import widest

        return widest(self._snapshot, question)

    def convert(self, to: str) -> ConversionResult:
        """Convert admin network policies to ClusterNetworkPolicies or NetworkPolicies, and compare what they decide."""
        from tierwall.analyze.conversion import convert

        return convert(self._snapshot, to)

    # Looking

    def check(
        self,
        select: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        *,
        namespace: str | None = None,
        baseline: str | BaselineSet | None = None,
        against: World | None = None,
        progress: Progress | None = None,
    ) -> list[Diagnostic]:
        """List everything that is wrong with the objects, by place. `select` and `ignore` take codes or prefixes.

        With a `namespace`, only what concerns it, judged by its own objects and the cluster-scoped ones alone. Findings
        that comments, annotations or a `baseline` (its text) accept are left out, and so are those of an older world
        (`against`).
        """
        reviewed = self.review(
            select, ignore, namespace=namespace, baseline=baseline, against=against, progress=progress
        )
        return list(reviewed.findings)

    def review(
        self,
        select: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        *,
        namespace: str | None = None,
        baseline: str | BaselineSet | None = None,
        against: World | None = None,
        progress: Progress | None = None,
    ) -> ReviewResult:
        """Return what `check` lists, with the findings that are accepted, by what and why, and those known before."""
        from tierwall.analyze.checks import visible_from
        from tierwall.analyze.ignores import ignores
        from tierwall.analyze.review import FindingSelection, all_findings, review
        from tierwall.engines.table import engine_findings

        snapshot = self._snapshot if namespace is None else visible_from(self._snapshot, namespace)
        noticed = [*self._noticed, *repeated_keys(self._read.documents)]
        findings = [*all_findings(snapshot, noticed, namespace, progress), *engine_findings(snapshot)]
        before = None
        if against is not None or isinstance(baseline, str):
            from tierwall.analyze.baseline import BaselineSet

            baseline = BaselineSet.parse(baseline) if isinstance(baseline, str) else baseline
            if against is not None:
                known = BaselineSet.of(against.review(namespace=namespace).findings, against._read.naming())
                before = msgspec.structs.replace(known, naming=self._read.naming())
        selection = FindingSelection(None if select is None else strings(select), strings(ignore), namespace)
        ignored = ignores(snapshot, self._read.documents, self._read.sources)
        return review(findings, ignored, selection, baseline=baseline, before=before)

    def baseline(self, select: Sequence[str] | None = None, ignore: Sequence[str] = ()) -> str:
        """Return the text of a baseline that accepts everything that `check` lists."""
        from tierwall.analyze.baseline import BaselineSet

        return str(BaselineSet.of(self.review(select, ignore).findings))

    def status(self, *references: str | Reference) -> list[dict[str, Any]]:
        """Return policies with the status that a controller would write: all of them, or those named."""
        from tierwall.render.status import status_document

        return [status_document(status) for status in self.statuses(*references)]

    def statuses(
        self, *references: str | Reference, tool_profile: str = "tierwall", profile: Profile = "docs"
    ) -> list[AnyStatus]:
        """Return the status of policies, for callers inside Tierwall."""
        from tierwall.analyze.statuses import statuses
        from tierwall.tool.profile import ToolProfile

        names = (str(name) for name in references)
        tools = ToolProfile(tool_profile)
        return statuses(self._snapshot, *names, namespace=self._namespace, tool_profile=tools, profile=profile)

    def objects(self, kind: str | None = None) -> Iterator[Resource]:
        """Iterate over copies of all objects, or of those of one kind, in the order they were read."""
        return (resource.with_own_value() for resource in self._snapshot if kind is None or resource.kind == kind)

    def find(self, reference: str | Reference) -> Resource:
        """Find one object and return a copy of it; UnknownName if it does not exist."""
        from tierwall.resources.removal import find_named

        problems: list[Diagnostic] = []
        resource = find_named(self._snapshot, reference, self._namespace, problems)
        if resource is None:
            raise input_error(problems)
        return resource.with_own_value()

    def line(self, file: str, number: int) -> str | None:
        """Return a line of a file as it was read, to show what a position points at."""
        return self._read.line(file, number)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Problems noticed while reading, and reasons why an API server would refuse objects."""
        from tierwall.resources.validity import admission_problems

        refused = (problem for resource in self._snapshot for problem in admission_problems(self._snapshot, resource))
        return sorted_diagnostics([*self._noticed, *refused])

    @property
    def not_considered(self) -> tuple[Omission, ...]:
        """Objects that could change answers of any plane and were not considered."""
        return self.omissions(*_PLANES, every=True)

    def left_out_of(self, namespace: str) -> tuple[Omission, ...]:
        """Return what could change answers about one namespace and was not considered."""
        return self.omissions(*_PLANES, namespaces=(namespace,), every=True)

    @property
    def unread(self) -> tuple[Omission, ...]:
        """Files and documents in the given folders that are not objects, by form; only `check` shows them."""
        return self._unread

    def omissions(
        self, *planes: str, namespaces: Sequence[str] | None = None, every: bool = False
    ) -> tuple[Omission, ...]:
        """Return what could change answers of some planes; `every` says that pods and workloads are judged as well."""
        from tierwall.resources.foreign import omissions
        from tierwall.resources.gaps import joined

        left_out = (omissions(self._snapshot, plane, namespaces, every=every) for plane in planes)
        return joined(omission for of_plane in left_out for omission in of_plane)
