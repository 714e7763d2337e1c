"""The options that name a cluster to read (docs/reference/sources.md), the same on every command that reads objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import click

from tierwall.cli.command import Params, flag, option, print_line
from tierwall.cli.sections import CLUSTER

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess
    from tierwall.cluster.cluster import Cluster
    from tierwall.cluster.kubeconfig import Kubeconfig
    from tierwall.cluster.reading import ClusterRead
    from tierwall.resources.snapshot import Snapshot

PLANES = ("network", "ways", "tool", "gateway", "api")
# The options that name objects.
_NAMING = (
    *("source", "destination", "sources", "destinations", "focus"),
    *("gateway", "listener_set", "route", "backend", "for_namespace"),
)
# Completion reads no kubeconfig that is larger: it must not be slow.
_MAX_COMPLETED_BYTES = 4 << 20


def _complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that begin with some letters; none if the kubeconfig cannot be read."""
    from tierwall.cluster.kubeconfig import Kubeconfig, kubeconfig_files

    named = context.params.get("kubeconfig")
    try:
        files = kubeconfig_files(named if isinstance(named, str) else None, os.environ)
        # A file that is not a regular file may never end.
        if any(not file.is_file() or file.stat().st_size > _MAX_COMPLETED_BYTES for file in files):
            return []
        return [name for name in sorted(Kubeconfig(files).contexts) if name.startswith(incomplete)]
    except Exception:
        return []


class ClusterParams(Params):
    """The options that name a cluster."""

    cluster: bool = flag("Read the cluster of the kubeconfig's current context. Files lie over it.", section=CLUSTER)
    context: str | None = option(
        section=CLUSTER,
        metavar="NAME",
        help="Read the cluster of this context of the kubeconfig. Files lie over it.",
        shell_complete=_complete_context,
    )
    kubeconfig: str | None = option(
        section=CLUSTER,
        metavar="FILE",
        help="Find contexts in this kubeconfig.",
        show_default="KUBECONFIG, then ~/.kube/config",
    )
    cluster_as: str | None = option(section=CLUSTER, metavar="USER", help="Read the cluster as this user.")
    cluster_as_group: tuple[str, ...] = option(
        section=CLUSTER, multiple=True, metavar="GROUP", help="Read the cluster as a member of this group. Repeatable."
    )
    request_timeout: str = option(
        section=CLUSTER, default="10s", metavar="DURATION", help="The limit of one request to the cluster; 0 lifts it."
    )

    # The planes that the command asks about: only the kinds that they need are read.
    asks: ClassVar[tuple[str, ...]] = PLANES
    # Whether the command wants to know the version of the API server.
    reads_version: ClassVar[bool] = False

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes that this call asks about."""
        return self.asks

    @cached_property
    def named_namespaces(self) -> set[str]:
        """The namespaces that this call names, which are read where the namespaces of the cluster may not be listed."""
        from tierwall.core.reference import named_namespaces

        values = (value for name in _NAMING if (value := getattr(self, name, None)))
        texts = [text for value in values for text in ((value,) if isinstance(value, str) else value)]
        # In `list`, a namespace may stand alone.
        alone = {text for text in texts if "/" not in text}
        return named_namespaces(texts) | alone | {name for name in (getattr(self, "namespace", None),) if name}

    @property
    def names_files(self) -> bool:
        """Whether the command line names files to read instead of a cluster."""
        return True

    @cached_property
    def cluster_to_read(self) -> Cluster | None:
        """The cluster that the options name; None if only files are read. A kubectl plugin reads one by default."""
        from tierwall.cli.kubectl import is_plugin

        if self.cluster or self.context is not None or (is_plugin() and not self.names_files):
            return self.cluster_of_options
        _seconds(self.request_timeout)
        self.say_what_is_not_used()
        return None

    def say_what_is_not_used(self) -> None:
        """Name an option of a cluster that is not read: nobody should believe that it was."""
        given = (
            (self.kubeconfig, "--kubeconfig"),
            (self.cluster_as, "--cluster-as"),
            (self.cluster_as_group, "--cluster-as-group"),
        )
        unused = " and ".join(name for value, name in given if value)
        if unused:
            verb = "are" if " and " in unused else "is"
            print_line(f"{unused} {verb} not used: add --cluster or --context NAME to read a cluster", err=True)

    @cached_property
    def cluster_of_options(self) -> Cluster:
        """The cluster of the options, or of the current context, whether or not it is read."""
        from tierwall.cluster.cluster import Cluster

        return Cluster(
            self.context, self.kubeconfig, self.cluster_as, self.cluster_as_group, _seconds(self.request_timeout)
        )

    @cached_property
    def cluster_access(self) -> ClusterAccess | None:
        """The way to the cluster; None if only files are read."""
        return self.cluster_to_read.access() if self.cluster_to_read is not None else None

    @cached_property
    def cluster_read(self) -> ClusterRead | None:
        """The cluster as it was read, once; None if only files are read."""
        if self.cluster_to_read is None:
            return None
        from tierwall.cli.collector import collector_off
        from tierwall.cli.progress import progress_line
        from tierwall.cluster.load import read_whole

        access, planes = self.cluster_access, self.asked_planes
        with collector_off(), progress_line() as progress:
            return read_whole(
                self.cluster_to_read, planes, access, progress, self.named_namespaces, with_version=self.reads_version
            )

    @cached_property
    def cluster_snapshot(self) -> Snapshot | None:
        """The objects of the cluster; None if only files are read."""
        if self.cluster_read is None:
            return None
        from tierwall.resources.snapshot import Snapshot

        return Snapshot.of(self.cluster_read.resources, self.cluster_read.unlisted)


def checked_namespace(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Refuse a name that no namespace can have: requests about it would fail forever."""
    from tierwall.values.names import dns_label

    if name is not None and dns_label(name):
        raise click.BadParameter(f"expected the name of a namespace, found `{name}`")
    return name


def _seconds(text: str) -> float:
    from tierwall.values.time import parse_timeout

    seconds = parse_timeout(text)
    if seconds is None:
        raise click.BadParameter(
            f"expected seconds or a duration such as 10s or 1m, found `{text}`", param_hint="--request-timeout"
        )
    return seconds


def refuse_cluster_name(words: Sequence[str], context: click.Context) -> None:
    """Refuse `--cluster NAME`, which kubectl takes: here it is a flag, and NAME would be taken for a file."""
    for name, is_value in _cluster_names(words):
        if not is_value and os.path.lexists(name):
            continue
        config = _kubeconfig(words)
        names = (name,) if config is not None and name in config.contexts else _contexts_of(config, name)
        if names:
            known = " or ".join(f"--context {known}" for known in names)
            message = f"--cluster takes no name, it reads the current context: write {known}"
            raise click.UsageError(message, context)
        if is_value:
            message = "--cluster takes no name, it reads the current context: write --context NAME"
            raise click.UsageError(message, context)


def _cluster_names(words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield what stands right after `--cluster`, and whether it is written as its value."""
    for number, word in enumerate(words):
        if word == "--":
            return
        if word.startswith("--cluster="):
            yield word.removeprefix("--cluster="), True
        elif word == "--cluster" and number + 1 < len(words) and not words[number + 1].startswith("-"):
            yield words[number + 1], False


def _kubeconfig(words: Sequence[str]) -> Kubeconfig | None:
    from tierwall.cluster.kubeconfig import Kubeconfig
    from tierwall.core.diagnostics import InputError

    named = None
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == "--kubeconfig":
            named = following
        elif word.startswith("--kubeconfig="):
            named = word.removeprefix("--kubeconfig=")
    try:
        return Kubeconfig.find(named, os.environ)
    except InputError:
        return None


def _contexts_of(config: Kubeconfig | None, cluster: str) -> Iterable[str]:
    """Return the first contexts that lead to a cluster; the word NAME if the kubeconfig has the cluster alone."""
    if config is None or cluster not in config.clusters:
        return ()
    return sorted(name for name, entry in config.contexts.items() if entry.value.cluster == cluster)[:3] or ("NAME",)
