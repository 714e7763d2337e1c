"""`tierwall snapshot`: what decisions read of a cluster, as one file that gives the same answers (docs/clusters.md)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tierwall.cli.command import command, flag, option, print_line, runs
from tierwall.cli.objects import ObjectParams, files

if TYPE_CHECKING:
    from tierwall.cli.asked import AskedQuestion
    from tierwall.resources.resource import Resource
    from tierwall.resources.snapshot_document import SnapshotDocument
    from tierwall.world import World

EVERYTHING = ("network", "ways", "tool", "gateway", "api", "aggregation", "node", "admit")


class SnapshotParams(ObjectParams):
    """The options of `snapshot`."""

    asks = EVERYTHING
    reads_version = True
    missing = "name a cluster with --cluster or --context NAME, or files with -f PATH"

    redact: bool = flag("Replace names, namespaces, labels, users, hosts and addresses by stand-ins.")
    question_text: str | None = option(
        "--for",
        metavar="QUESTION",
        help="Keep only what this question needs: 'network --from a/b --to c/d --port 1', 'can-i get pods --as me', …",
    )
    files: tuple[str, ...] = files("File or folder of manifests; `-` is standard input. Repeatable.")

    @cached_property
    def question(self) -> AskedQuestion | None:
        """The question of `--for`."""
        if self.question_text is None:
            return None
        from tierwall.cli.asked import AskedQuestion

        return AskedQuestion(self.question_text)

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes to read: all of them, or those of the question."""
        return self.asks if self.question is None else self.question.params.asked_planes

    @cached_property
    def named_namespaces(self) -> set[str]:
        """The namespaces that are read where the namespaces of the cluster may not be listed."""
        named = {self.namespace} if self.namespace else set()
        return named if self.question is None else named | self.question.params.named_namespaces


@command("snapshot", epilog="Example: tierwall snapshot --context prod > prod.yaml")
@runs(SnapshotParams)
def snapshot(params: SnapshotParams) -> None:
    """Write what decisions read of a cluster as one YAML stream, to standard output.

    Every command answers with `-f prod.yaml` what it answers with `--context prod`. A cluster that did not change gives
    the same bytes. Files lie over the cluster. Secrets are never written.

    With --redact, standard error says which names are kept because an expression looks inside them, and, with --for,
    how the question is asked of the stand-ins.
    """
    from tierwall.resources.kept_parts import SECRET, kept_objects

    question = params.question  # What is wrong with it is said before anything is read.
    world = params.world()
    secrets = len(list(world.snapshot.of_kind(*SECRET)))
    if secrets:
        what = "1 Secret, which is in no snapshot" if secrets == 1 else f"{secrets} Secrets, which are in no snapshot"
        print_line(f"left out: {what}", err=True)
    _say_what_is_missing(world)
    objects: Sequence[Resource] = tuple(kept_objects(world.snapshot))
    head = _head(params, world)
    if question is not None:
        objects = _needed(question, world, head, objects)
    if params.redact:
        head, objects = _redacted(question, head, objects)
    _write(head, objects)


def _say_what_is_missing(world: World) -> None:
    """Name the kinds that could not be read; answers of the snapshot name them as well."""
    if world.snapshot.unlisted:
        omissions = world.omissions("network", "ways", "tool", "gateway", "api")
        for line in dict.fromkeys(str(omission) for omission in omissions if omission.why):
            print_line(f"not considered: {line}", err=True)


def _head(params: SnapshotParams, world: World) -> SnapshotDocument:
    """Return the first document without what it says about single objects. A snapshot of a snapshot says the same."""
    from tierwall.resources.snapshot_document import ReadKind, SnapshotDocument

    read, before = params.cluster_read, world.head
    not_considered = tuple(sorted(world.snapshot.unlisted))
    if read is None:
        kinds, version = (before.kinds, before.server_version) if before is not None else ((), "")
        is_live = before is not None and before.cluster
        return SnapshotDocument(world.namespace, version, is_live, kinds, not_considered)
    kinds = tuple(sorted({ReadKind(kind.api_version, kind.kind) for kind in read.kinds}))
    return SnapshotDocument(world.namespace, read.server_version, True, kinds, not_considered)


def _needed(
    question: AskedQuestion, world: World, head: SnapshotDocument, objects: Sequence[Resource]
) -> tuple[Resource, ...]:
    """Return the objects that a question needs."""
    from tierwall.analyze.needed import needed_objects
    from tierwall.core.diagnostics import InputError

    def ask(resources: Iterable[Resource]) -> Any:
        try:
            return _without_source(_answer(question, world, head, resources).to_dict())
        except InputError:
            return None

    _answer(question, world, head, objects)  # A question that cannot be asked ends here.
    return needed_objects(objects, ask)


def _answer(question: AskedQuestion, world: World, head: SnapshotDocument, resources: Iterable[Resource]) -> Any:
    """Ask the question of some objects as if they had been read from a snapshot."""
    from tierwall.resources.snapshot import Snapshot
    from tierwall.world import World as AskedWorld

    snapshot = Snapshot.of(tuple(resources), head.not_considered)
    return question.params.answer(AskedWorld(snapshot, namespace=head.namespace, head=head))


def _without_source(value: Any) -> Any:
    """Return an answer without the places of its objects."""
    if isinstance(value, dict):
        return {key: _without_source(item) for key, item in value.items() if key != "source"}
    return [_without_source(item) for item in value] if isinstance(value, list) else value


def _redacted(
    question: AskedQuestion | None, head: SnapshotDocument, objects: Sequence[Resource]
) -> tuple[SnapshotDocument, tuple[Resource, ...]]:
    """Return stand-ins, and say what was kept and how to ask."""
    from msgspec.structs import replace

    from tierwall.redact.snapshots import redact_snapshot

    asked = question.params.namespace if question is not None else None
    redacted = redact_snapshot(objects, head.not_considered, head.namespace, {asked} if asked else ())
    for sentence in redacted.names.kept:
        print_line(f"kept: {sentence}", err=True)
    if question is not None:
        print_line(f"ask: {question.renamed(redacted.names.rename)}", err=True)
    return replace(head, namespace=redacted.namespace, not_considered=redacted.unlisted), redacted.resources


def _write(head: SnapshotDocument, objects: Sequence[Resource]) -> None:
    """Write the stream, until nobody reads any more."""
    from msgspec.structs import replace

    from tierwall.cli.streams import failure
    from tierwall.resources.snapshot_document import END, FileObject
    from tierwall.resources.yaml.write import yaml_text

    given = [FileObject(file.kind, file.name, file.group, file.namespace) for file in objects if not file.is_live]
    head = replace(head, from_files=tuple(given) if head.cluster else (), objects=len(objects))
    out = sys.stdout.buffer
    for value in (head.value, *(resource.value for resource in objects)):
        out.write(yaml_text(value).encode())
        if failure(sys.stdout) is not None:
            return
    out.write(END.encode())
    out.flush()
