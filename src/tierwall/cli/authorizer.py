"""`tierwall authorizer` serves authorization to API servers; `install` writes the files that they need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tierwall.cli.command import Params, address, choice, flag, option, print_report, repeated_option, runs
from tierwall.cli.objects import ObjectParams, StateParams
from tierwall.cli.sections import SectionedGroup

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess


class ServeParams(StateParams, ObjectParams):
    """The options of `authorizer`."""

    asks = ("api", "aggregation")

    files: tuple[str, ...] = repeated_option(
        "--policies", "-f", "--file", metavar="PATH", help="File or folder of policies. Repeatable."
    )
    missing = "Missing option '--policies', '--cluster' or '--context'."
    listen: str = option(default="127.0.0.1:9443", metavar="HOST:PORT", help="Address to listen on.")
    health_listen: str | None = option(metavar="HOST:PORT", help="Also serve health and metrics here, without TLS.")
    tls_cert: str | None = option(
        metavar="FILE", help="Server certificate (PEM); a new one is used from the next connection on."
    )
    tls_key: str | None = option(metavar="FILE", help="Private key of the certificate (PEM).")
    client_ca: str | None = option(metavar="FILE", help="Require client certificates from this CA (PEM).")
    bridge: bool = flag("Support API servers without conditional authorization: answer their admission webhook too.")
    api_server_kubeconfig: str | None = option(
        metavar="FILE",
        help="With --bridge: reach the API server by this kubeconfig, for its Namespaces and for the proof that its"
        " admission is live.",
        show_default="the cluster that policies are read from",
    )
    canary_namespace: str = option(
        default="default", metavar="NAME", help="Namespace in which the canary is created, as a dry run."
    )
    assume_admission: bool = flag("Grant on conditions without proof that admission enforces them.")
    seal_key: str | None = option(
        metavar="FILE", help="Key that seals conditions; by default derived from the TLS key."
    )
    log: str | None = option(metavar="FILE", help="Write the decision log here; `-` is standard output.")
    shape: str = choice(
        "conditionsChain",
        "conditionSetChain",
        help="Form of conditions for callers that set `conditionalAuthorization.mode`.",
    )
    grace: float = option(
        type=click.FloatRange(0, 86400),
        default=330,
        help="Seconds to keep enforcing replaced policies; longer than the API server's authorizedTTL.",
    )
    settle: float = option(
        type=click.FloatRange(0, 3600),
        default=0,
        help="Seconds before new policies grant conditionally; with replicas, longer than they take to see a change.",
    )
    read_timeout: float = option(type=click.FloatRange(0.05, 300), default=10, help="Seconds to wait for one request.")

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes of the chain: a Node authorizer, which only files can configure, needs the pods of nodes too."""
        if self.cluster_to_read is None or not self.files or "-" in self.files:
            return self.asks
        from tierwall.api.model import AuthorizerType, configured_authorizers
        from tierwall.cli.collector import CommandLoader
        from tierwall.core.diagnostics import InputError

        try:
            members = configured_authorizers(CommandLoader(self.files, self.settings).load().snapshot)
        except InputError:
            # The first load says what is wrong.
            return self.asks
        return (*self.asks, "node") if any(member.type is AuthorizerType.NODE for member in members) else self.asks


@click.group(
    "authorizer",
    cls=SectionedGroup,
    invoke_without_command=True,
    epilog="Example: tierwall authorizer --policies policies/ --tls-cert pki/server.crt --tls-key pki/server.key"
    " --client-ca pki/ca.crt --bridge",
)
@runs(ServeParams)
def group(params: ServeParams) -> None:
    """Answer SubjectAccessReviews, AuthorizationConditionsReviews and, with --bridge, AdmissionReviews.

    Serves POST /authorize, /conditions and /admit, and GET /healthz, /readyz and /metrics. Changed policies and
    certificates are reloaded, and a cluster is followed. A broken file is reported and keeps what it had.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if bool(params.tls_cert) is not bool(params.tls_key):
        raise click.UsageError("give --tls-cert and --tls-key together")
    if params.client_ca and not params.tls_cert:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")
    if not params.bridge and (params.api_server_kubeconfig or params.assume_admission):
        raise click.UsageError("--api-server-kubeconfig and --assume-admission need --bridge")
    from tierwall.values import names

    if names.dns_label(params.canary_namespace):
        raise click.UsageError(f"--canary-namespace: expected the name of a namespace, found {params.canary_namespace}")
    host, port = address(params.listen, "--listen", "127.0.0.1")
    health = address(params.health_listen, "--health-listen", "127.0.0.1") if params.health_listen else None

    from tierwall.api.wire.review import WireShape
    from tierwall.engines.table import engine
    from tierwall.serve.authorizer.run import AuthorizerSettings, log_event
    from tierwall.serve.server import TlsFiles

    cert, key = params.tls_cert, params.tls_key
    settings = AuthorizerSettings(
        host=host,
        port=port,
        health=health,
        tls=TlsFiles(cert, key, params.client_ca) if cert and key else None,
        bridge=params.bridge,
        api_server=_api_server(params) if params.bridge else None,
        follows_namespaces=params.api_server_kubeconfig is not None,
        canary_namespace=params.canary_namespace,
        assume_admission=params.assume_admission,
        shape=WireShape(params.shape),
        seal_key=params.seal_key,
        log=params.log,
        grace=params.grace,
        settle=params.settle,
        read_seconds=params.read_timeout,
        header_seconds=params.read_timeout,
    )
    source = params.object_source(state=params.state, send_message=lambda words: log_event("waiting", message=words))
    if params.cluster_to_read is not None:
        from tierwall.cli.followed import has_begun

        if not has_begun(source):
            log_event("stopped")
            return
    engine("authorizer", settings=settings).follow(source, print_report)


def _api_server(params: ServeParams) -> ClusterAccess | None:
    """Return the way to the API server that is answered; InputError if the kubeconfig does not lead to one."""
    if params.api_server_kubeconfig is None:
        return params.cluster_access
    from tierwall.cluster.access import find_access

    return find_access(None, params.api_server_kubeconfig, os.environ)


class InstallParams(Params):
    """The options of `authorizer install`."""

    out: str = option(default="tierwall-authorizer", metavar="FOLDER", help="Folder to write to.")
    url: str = option(default="https://127.0.0.1:9443", help="URL at which API servers reach the authorizer.")
    name: str = option(default="tierwall.io", help="Name of the authorizer in the API server.")
    hosts: tuple[str, ...] = repeated_option(
        "--host", metavar="NAME", help="Another name or address in the certificate. Repeatable."
    )
    days: int = option(type=click.IntRange(1, 3650), default=365, help="Days until certificates expire.")
    exempt: tuple[str, ...] = repeated_option(
        "--exempt-group",
        metavar="GROUP",
        help="Leave users of this group to the other authorizers. Repeatable.",
    )
    bridge: bool = option(
        "--bridge/--no-bridge", default=True, help="Also write the configuration of the admission webhook."
    )
    static: bool = flag("Write the admission webhook as files of the API server (alpha) instead of an object.")
    native: bool = flag("Write the configuration for an API server that knows conditions, without a webhook.")
    api_server_user: str = option(
        default="tierwall-authorizer",
        metavar="USER",
        help="User as whom the authorizer asks the API server. Other authorizers decide about a ServiceAccount, "
        "`system:serviceaccount:NAMESPACE:NAME`: it must be able to read before it can answer.",
    )
    canary_namespace: str = option(default="default", metavar="NAME", help="Namespace of the authorizer's canary.")


@group.command("install", epilog="Example: tierwall authorizer install --out pki/ --url https://127.0.0.1:9443")
@runs(InstallParams)
def install(params: InstallParams) -> None:
    """Write and print what an API server needs to ask the authorizer.

    Writes a CA, a server and a client certificate (existing ones are kept), a kubeconfig, an AuthorizationConfiguration
    and, for admission, a ValidatingWebhookConfiguration, an AdmissionConfiguration and roles into a folder, and prints
    them. With --native, it writes the configuration for API servers that know conditions, in both spellings.
    """
    if params.native and params.static:
        raise click.UsageError("--native needs no admission webhook: leave out --static")
    if params.static and not params.bridge:
        raise click.UsageError("--static writes the admission webhook: leave out --no-bridge")
    from tierwall.serve.authorizer.install import Installation, InstallationMode, write

    wanted_mode = (
        "native" if params.native else "plain" if not params.bridge else "static" if params.static else "bridge"
    )
    wanted = Installation(
        folder=params.out,
        url=params.url.rstrip("/"),
        name=params.name,
        hosts=params.hosts,
        days=params.days,
        exempt=params.exempt,
        mode=InstallationMode(wanted_mode),
        api_server_user=params.api_server_user,
        canary_namespace=params.canary_namespace,
    )
    click.echo(write(wanted), nl=False)
