"""`tierwall ui`: the explorer, over all four planes, in a browser (docs/explorer.md)."""

from __future__ import annotations

import ipaddress
import re
import shlex
import sys
from functools import partial

import click

from tierwall.cli.command import (
    address,
    argument,
    command,
    flag,
    option,
    print_diagnostics,
    print_line,
    repeated_option,
    runs,
)
from tierwall.cli.objects import ObjectParams

# A name or address as browsers send it in `Host`: with a port behind a tunnel that has another one.
_HOST = re.compile(r"(?:[\w-]+(?:\.[\w-]+)*|\[[\da-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)


class ExplorerParams(ObjectParams):
    """The options of `ui`."""

    paths: tuple[str, ...] = argument(nargs=-1, metavar="[PATH]...")
    listen: str = option(
        default="127.0.0.1:0", metavar="HOST:PORT", help="Address to listen on; port 0 is any free one."
    )
    open: bool = option("--open/--no-open", default=True, help="Open a browser, if this machine has a screen.")
    hosts: tuple[str, ...] = repeated_option(
        "--host", metavar="NAME", help="Another name by which browsers reach this server. Repeatable."
    )
    tls_cert: str | None = option(metavar="FILE", help="Certificate of the server (PEM).")
    tls_key: str | None = option(metavar="FILE", help="Private key of the certificate (PEM).")
    insecure: bool = flag("Listen beyond this machine without TLS.")

    @property
    def source_options(self) -> str:
        """The options that make another command read the same objects."""
        words = [part for path in self.all_paths for part in ("-f", path)]
        if self.context is not None:
            words += ["--context", self.context]
        elif self.cluster_to_read is not None:
            words.append("--cluster")
        given = (("--kubeconfig", self.kubeconfig), ("--cluster-as", self.cluster_as), ("-n", self.namespace))
        words += [part for name, value in given if value for part in (name, value)]
        repeated = (
            ("--cluster-as-group", self.cluster_as_group),
            ("--without", self.without),
            ("--exclude", self.exclude),
        )
        words += [part for name, values in repeated for value in values for part in (name, value)]
        return shlex.join(words)

    @property
    def kubectl(self) -> str:
        """How kubectl is called for the same cluster: its own current one may be another."""
        given = (("--context", self.context), ("--kubeconfig", self.kubeconfig), ("-n", self.namespace))
        words = [part for name, value in given if value for part in (name, value)]
        return shlex.join(["kubectl", *(words if self.cluster_to_read is not None else ())])

    @property
    def source_words(self) -> str:
        """The source of the objects, in words."""
        parts = [self.context or "the current cluster"] if self.cluster_to_read is not None else []
        return ", ".join([*parts, *("standard input" if path == "-" else path for path in self.all_paths)])


@command("ui", epilog="Example: tierwall ui manifests/")
@runs(ExplorerParams)
def ui(params: ExplorerParams) -> None:
    """See all four planes in a browser: ask, look, change something and see what changes.

    Prints an address with a token, and serves pages there until it is stopped. It reads files, a cluster, or both, and
    follows them; it never writes. Without PATH and without a cluster it reads the current folder.
    """
    from tierwall.core.diagnostics import sorted_diagnostics
    from tierwall.core.extras import require_extra

    require_extra("ui")
    host, port = address(params.listen, "--listen", "127.0.0.1")
    if bool(params.tls_cert) is not bool(params.tls_key):
        raise click.UsageError("give --tls-cert and --tls-key together")
    if wrong := [name for name in params.hosts if not _HOST.fullmatch(name)]:
        raise click.UsageError(f"--host takes a name such as `explorer.example` or `10.0.0.5`, found `{wrong[0]}`")
    if not _is_loopback(host) and not params.tls_cert and not params.insecure:
        message = f"`{host}` can be reached from other machines: give --tls-cert and --tls-key, or --insecure"
        raise click.UsageError(message)
    from tierwall.cli.collector import collector_off
    from tierwall.cli.reread import RereadSource
    from tierwall.core.diagnostics import InputError
    from tierwall.serve.explorer.followed import ExplorerFollower
    from tierwall.serve.explorer.run import ExplorerServer, ExplorerSettings, serve

    source, words, refusal = params.object_source(), params.source_words, ""
    if params.cluster_to_read is not None:
        from tierwall.cli.followed import has_begun

        try:
            if not has_begun(source):
                return
        except InputError as error:
            # Whoever may not watch everything sees what other commands see.
            source, words = RereadSource(params), f"{words}, read again every minute"
            refusal = f"{error.diagnostics[0].message}; it is read again every minute"
    # A page makes many objects and hardly any garbage, and to search them takes a fifth of its time.
    follower = ExplorerFollower(params.source_options, words, params.kubectl, partial(collector_off, first=False))
    settings = ExplorerSettings(
        host=host, port=port, hosts=params.hosts, tls_cert=params.tls_cert, tls_key=params.tls_key
    )
    server = ExplorerServer(follower, settings)
    print_diagnostics(sorted_diagnostics(follower.begin(source).diagnostics).serious)
    if refusal:
        print_line(refusal, err=True)
    print_line(server.address)
    serve(server, source, params.open and sys.stdout.isatty(), lambda noticed: print_diagnostics(noticed.serious))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
