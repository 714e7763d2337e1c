"""`tierwall snapshot`: what decisions read of a cluster, as one file that gives the same answers (docs/clusters.md)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import print_line, runs
from tierwall.cli.objects import ObjectParams, files

if TYPE_CHECKING:
    from tierwall.resources.resource import Resource
    from tierwall.resources.snapshot_document import SnapshotDocument
    from tierwall.world import World


EVERYTHING = ("network", "ways", "tool", "gateway", "api", "aggregation", "node", "admit")


class SnapshotParams(ObjectParams):
    """The options of `snapshot`."""

    asks = EVERYTHING
    reads_version = True
    missing = "name a cluster with --cluster or --context NAME, or files with -f PATH"

    files: tuple[str, ...] = files("File or folder of manifests; `-` is standard input. Repeatable.")


@click.command("snapshot", epilog="Example: tierwall snapshot --context prod > prod.yaml")
@runs(SnapshotParams)
def snapshot(params: SnapshotParams) -> None:
    """Write what decisions read of a cluster as one YAML stream, to standard output.

    Every command answers with `-f prod.yaml` what it answers with `--context prod`. A cluster that did not change gives
    the same bytes. Files lie over the cluster. Secrets are never written.
    """
    from tierwall.resources.kept_parts import SECRET, kept_objects

    world = params.world()
    objects = list(kept_objects(world.snapshot))
    secrets = len(list(world.snapshot.of_kind(*SECRET)))
    if secrets:
        print_line(f"left out: {secrets} Secret{'s' if secrets > 1 else ''}, which are in no snapshot", err=True)
    _write(_head(params, world, objects), objects)


def _head(params: SnapshotParams, world: World, objects: Sequence[Resource]) -> SnapshotDocument:
    """Return the first document. A snapshot of a snapshot says the same."""
    from tierwall.resources.snapshot_document import FileObject, ReadKind, SnapshotDocument

    read, before = params.cluster_read, world.head
    is_live = read is not None or (before is not None and before.cluster)
    kinds: Iterable[ReadKind] = before.kinds if before is not None else ()
    if read is not None:
        kinds = sorted({ReadKind(kind.api_version, kind.kind) for kind in read.kinds})
    given = [FileObject(file.kind, file.name, file.group, file.namespace) for file in objects if not file.is_live]
    return SnapshotDocument(
        namespace=world.namespace,
        server_version=read.server_version if read is not None else before.server_version if before is not None else "",
        cluster=is_live,
        kinds=tuple(kinds),
        not_considered=tuple(sorted(world.snapshot.unlisted)),
        from_files=tuple(given) if is_live else (),
        objects=len(objects),
    )


def _write(head: SnapshotDocument, objects: Iterable[Resource]) -> None:
    """Write the stream, until nobody reads any more."""
    from tierwall.cli.streams import failure
    from tierwall.resources.snapshot_document import END
    from tierwall.resources.yaml.write import yaml_text

    out = sys.stdout.buffer
    for value in (head.value, *(resource.value for resource in objects)):
        out.write(yaml_text(value).encode())
        if failure(sys.stdout) is not None:
            return
    out.write(END.encode())
    out.flush()
