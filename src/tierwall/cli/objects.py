"""Read the objects that a command works on (docs/reference/sources.md): one set of options, one way to load."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tierwall.cli.clusters import ClusterParams
from tierwall.cli.command import FAILED, Params, argument, choice, option, print_diagnostics, print_line, worlds_read
from tierwall.cli.sections import OBJECTS

if TYPE_CHECKING:
    from tierwall.core.answer import Answer
    from tierwall.resources.load import LoadResult, LoadSettings
    from tierwall.resources.resource import Identity
    from tierwall.resources.snapshot import BackendRefGrants, Snapshot
    from tierwall.serve.follower import ObjectSource
    from tierwall.world import World


# Of the objects that are defined twice, so many are named by commands other than `check`.
MAX_REPEATED = 3


def files(help: str, **settings: Any) -> Any:
    """Declare `-f PATH`, which may be repeated."""
    return option("-f", "--file", section=OBJECTS, multiple=True, metavar="PATH", help=help, **settings)


class SourceParams(ClusterParams):
    """The options that say what is read, whatever names the files."""

    namespace: str | None = option(
        "-n",
        "--namespace",
        section=OBJECTS,
        metavar="NAME",
        help="The namespace of names, and of objects in files, that have none.",
        show_default="that of the context, else `default`",
    )
    without: tuple[str, ...] = option(
        section=OBJECTS, multiple=True, metavar="REFERENCE", help="Judge as if this object were not there. Repeatable."
    )
    exclude: tuple[str, ...] = option(
        section=OBJECTS,
        multiple=True,
        metavar="GLOB",
        help="Leave files and folders that match out of given folders, as `.gitignore` would. Repeatable.",
    )

    # Only `check` and `test` have this as an option: a hook names all files, whatever is in them.
    skip_non_manifests: bool = False
    # Only commands about the gateway plane have this as an option.
    backend_ref_grants: BackendRefGrants = "route"

    @property
    def object_namespace(self) -> str:
        """The namespace of objects in files that have none, and of names that have none.

        Empty if neither an option nor a cluster says it: then it is that of a snapshot, else `default`.
        """
        if self.namespace is not None:
            return self.namespace
        return self.cluster_access.namespace if self.cluster_access is not None else ""

    def full_names(self, names: Iterable[str], namespace: str = "") -> list[str]:
        """Return names with a namespace in each that has none."""
        from tierwall.core.reference import full_name

        return [full_name(name, namespace or self.object_namespace or "default") for name in names]

    def load(self, paths: Iterable[str]) -> LoadResult:
        """Read files and folders, and lay them over the cluster if there is one. Problems of files are collected."""
        from tierwall.cli.collector import CommandLoader

        paths = tuple(paths)
        take_stdin(paths)
        loaded = CommandLoader(paths, self.settings).load()
        if self.cluster_to_read is None:
            if loaded.cluster_snapshot is None:
                return loaded
            from tierwall.cluster.load import narrowed

            return narrowed(loaded, self.asked_planes)
        self.named_namespaces.update(resource.namespace for resource in loaded.resources)
        from tierwall.cluster.load import lay_over

        assert self.cluster_snapshot is not None
        return lay_over(self.cluster_snapshot.with_backend_ref_grants(self.backend_ref_grants), loaded)

    @property
    def settings(self) -> LoadSettings:
        """How files are read."""
        from tierwall.resources.load import LoadSettings

        return LoadSettings(
            self.object_namespace, self.exclude, self.without, self.skip_non_manifests, self.backend_ref_grants
        )

    def worlds(self, *sources: Iterable[str]) -> list[World]:
        """Read a world from each set of paths. Errors in all of them are printed before the command ends.

        An object of `--without` must be in one of the worlds. An object that a later one of the same name replaces does
        not count, and a warning says so.
        """
        from tierwall.world import World

        loads = [self.load(paths) for paths in sources]
        for loaded in loads:
            print_diagnostics(loaded.errors, loaded)
            print_repeated(loaded)
        if any(loaded.errors for loaded in loads):
            sys.exit(FAILED)
        return self.left(list(map(World.of, loads)))

    def left(self, worlds: Sequence[World]) -> list[World]:
        """Return what `--without` leaves of worlds; diagnostics show their lines."""
        worlds_read().extend(worlds)
        if not self.without:
            return list(worlds)
        from tierwall.resources.removal import without

        snapshots = without([world.snapshot for world in worlds], self.without, worlds[-1].namespace)
        worlds_read()[-len(worlds) :] = [
            world.with_snapshot(snapshot) for world, snapshot in zip(worlds, snapshots, strict=True)
        ]
        return worlds_read()[-len(worlds) :]


def print_repeated(loaded: LoadResult) -> None:
    """Print which objects are defined twice: the first few, and the number of the others."""
    repeated = [diagnostic for diagnostic in loaded.diagnostics if diagnostic.code == "TW007"]
    print_diagnostics(repeated[:MAX_REPEATED], loaded)
    others = sum(diagnostic.count for diagnostic in repeated[MAX_REPEATED:])
    if others:
        print_line(f"and {others:,} more objects are defined twice (`tierwall check` names them)", err=True)


class ObjectParams(SourceParams):
    """The options of every command that reads objects."""

    files: tuple[str, ...] = files(
        "File or folder of manifests; `-` is standard input. Repeatable.", show_default="the current folder"
    )

    paths: tuple[str, ...] = ()
    # The error where no path is given and the current folder is not the default.
    missing: ClassVar[str] = ""

    @property
    def names_files(self) -> bool:
        """Whether the command line names files to read instead of a cluster."""
        return bool(self.paths or self.files)

    @property
    def all_paths(self) -> tuple[str, ...]:
        """All given files and folders: arguments, then options; the current folder if nothing else is to be read."""
        given = (*self.paths, *self.files)
        if self.cluster_to_read is not None:
            return given
        if not given and self.missing:
            raise click.UsageError(self.missing)
        return given or (".",)

    def world(self) -> World:
        """Read the objects. Errors are printed and end the command with exit code 1."""
        (world,) = self.worlds(self.all_paths)
        return world

    def object_source(
        self,
        poll_seconds: float | None = None,
        state: str | None = None,
        send_message: Callable[[str], None] | None = None,
        named: Callable[[Snapshot], Iterable[Identity]] = lambda snapshot: (),
    ) -> ObjectSource:
        """Make the source of objects that an engine follows.

        `state` is the folder of `--state`. `send_message` gets what is said while the cluster does not answer yet; by
        default it is printed. `named` returns the Secrets and ConfigMaps of the cluster that its objects need.
        """
        from tierwall.cli.collector import CommandLoader, restore_collector
        from tierwall.serve.files import FileSource

        paths = self.all_paths
        take_stdin(paths)
        cluster, settings = self.cluster_to_read, self.settings
        if state is not None and not paths:
            raise click.UsageError("--state keeps copies of files, and none are given")
        folder = None
        if state is not None:
            from tierwall.serve.state import StateFolder

            folder = StateFolder(state)
        if cluster is None:
            restore_collector()
            return FileSource(CommandLoader(paths, settings, leaves_out=True), poll_seconds, folder)
        from tierwall.cli.followed import CommandClusterSource
        from tierwall.cluster.wanted import followed_kinds

        assert self.cluster_access is not None
        wanted = followed_kinds(self.asked_planes, bool(paths))
        files = FileSource(CommandLoader(paths, settings), poll_seconds, folder)
        return CommandClusterSource(
            self.cluster_access, wanted, cluster.timeout, files, settings, send_message or _print_message, named
        )


def _print_message(message: str) -> None:
    print_line(message, err=True)


def refused_namespace() -> Any:
    """Declare `-n, --namespace` of `check`, which had another meaning: it is refused for one release."""
    message = "No such option: {}. The view of one namespace is --for-namespace NAME now."

    def refuse(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        if given is not None:
            raise click.UsageError(message.format("-n/--namespace"))

    return option("-n", "--namespace", hidden=True, callback=refuse)


class StateParams(Params):
    """The option of commands that keep running and must start again, whatever their files are then."""

    state: str | None = option(
        metavar="FOLDER",
        help="Keep the last good copy of each file here, for a start that finds one broken.",
    )


def skip_non_manifests() -> Any:
    """Declare `--skip-non-manifests`."""
    help = "Skip named files that hold no manifests, even if they are not YAML."
    return option(is_flag=True, section=OBJECTS, help=help)


def backend_ref_grants() -> Any:
    """Declare `--backend-ref-grants`."""
    help = "References to backends elsewhere that need a ReferenceGrant: `route` (those of routes) or `strict` (all)."
    return choice("route", "strict", section=OBJECTS, help=help)


def strict() -> Any:
    """Declare `--strict`."""
    help = "Exit with code 6 if something that could change the answer was not considered."
    return option(is_flag=True, last=True, help=help)


class AnswerParams(ObjectParams):
    """The options of every command that answers questions about objects."""

    strict: bool = strict()


class QuestionParams(AnswerParams):
    """The options of a command that asks one question: `snapshot --for` takes them as well."""

    @abstractmethod
    def answer(self, world: World) -> Answer:
        """Ask the question of a world, and print nothing."""


class PathParams(AnswerParams):
    """The options of commands that take `PATH...` too."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="[PATH]...")
    files: tuple[str, ...] = files(
        "The same as PATH, a file or folder of manifests; `-` is standard input. Repeatable.",
        show_default="the current folder",
    )


class RequiredPathParams(ObjectParams):
    """The options of commands that need a path: the current folder is not the default."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="PATH...")
    files: tuple[str, ...] = files("The same as PATH. Repeatable.")
    missing = "Missing argument 'PATH...', or '--cluster' or '--context NAME'."


def take_stdin(paths: Iterable[str]) -> None:
    """Refuse a second reader of standard input: it would find nothing, and answer as if there were no objects."""
    meta = click.get_current_context().meta
    if "-" in paths:
        if meta.get("tierwall.stdin"):
            raise click.UsageError("standard input (`-`) can be read only once")
        meta["tierwall.stdin"] = True
