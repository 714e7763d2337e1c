"""`tierwall authorizer` serves authorization to API servers; `install` writes the files that they need."""

from __future__ import annotations

import click

from tierwall.cli.command import Params, address, choice, flag, option, print_report, repeated_option, runs
from tierwall.cli.objects import ObjectParams


class ServeParams(ObjectParams):
    """The options of `authorizer`."""

    files: tuple[str, ...] = repeated_option(
        "--policies", "-f", "--file", metavar="PATH", help="File or folder of policies. May be repeated."
    )
    missing = "Missing option '--policies'."
    listen: str = option(default="127.0.0.1:9443", metavar="HOST:PORT", help="Where to listen.")
    health_listen: str | None = option(
        metavar="HOST:PORT", help="Where to answer health and metrics, too, without TLS."
    )
    tls_cert: str | None = option(metavar="FILE", help="Certificate, PEM; a change counts from the next connection on.")
    tls_key: str | None = option(metavar="FILE", help="Private key of the certificate, PEM.")
    client_ca: str | None = option(metavar="FILE", help="Clients need a certificate of this CA.")
    bridge: bool = flag("Serve API servers that know no conditions: their admission webhook asks here, too.")
    seal_key: str | None = option(
        metavar="FILE", help="Key that conditions are sealed with; else it is derived from the TLS key."
    )
    log: str | None = option(metavar="FILE", help="Write the decision log here; `-` is standard output.")
    shape: str = choice(
        "conditionsChain",
        "conditionSetChain",
        help="How conditions are written for callers that ask by `conditionalAuthorization.mode`.",
    )
    grace: float = option(
        type=click.FloatRange(0, 86400),
        default=330,
        help="Seconds that superseded policies are still enforced; more than the API server's authorizedTTL.",
    )
    settle: float = option(
        type=click.FloatRange(0, 3600),
        default=0,
        help="Seconds before new policies grant on conditions; with replicas, longer than they need to see a change.",
    )
    read_timeout: float = option(type=click.FloatRange(0.05, 300), default=10, help="Seconds for one request.")


@click.group(
    "authorizer",
    invoke_without_command=True,
    epilog="Example: tierwall authorizer --policies policies/ --tls-cert pki/server.crt --tls-key pki/server.key"
    " --client-ca pki/ca.crt --bridge",
)
@runs(ServeParams)
def group(params: ServeParams) -> None:
    """Answer SubjectAccessReviews, AuthorizationConditionsReviews and, with --bridge, AdmissionReviews.

    POST /authorize, /conditions and /admit; GET /healthz, /readyz and /metrics. Policies and certificates are followed:
    a broken edit leaves the last good ones in force, and says so.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    source = params.followed()
    if bool(params.tls_cert) is not bool(params.tls_key):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if params.client_ca and not params.tls_cert:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")
    host, port = address(params.listen, "--listen", "127.0.0.1")
    health = address(params.health_listen, "--health-listen", "127.0.0.1") if params.health_listen else None

    from tierwall.api.wire.review import WireShape
    from tierwall.engines.table import engine
    from tierwall.serve.authorizer.connections import TlsFiles
    from tierwall.serve.authorizer.run import AuthorizerSettings

    cert, key = params.tls_cert, params.tls_key
    settings = AuthorizerSettings(
        host=host,
        port=port,
        health=health,
        tls=TlsFiles(cert, key, params.client_ca) if cert and key else None,
        bridge=params.bridge,
        shape=WireShape(params.shape),
        seal_key=params.seal_key,
        log=params.log,
        grace=params.grace,
        settle=params.settle,
        read_seconds=params.read_timeout,
        header_seconds=params.read_timeout,
    )
    engine("authorizer", settings=settings).follow(source, print_report)


class InstallParams(Params):
    """The options of `authorizer install`."""

    out: str = option(default="tierwall-authorizer", metavar="FOLDER", help="Where to write.")
    url: str = option(default="https://127.0.0.1:9443", help="Where API servers reach the authorizer.")
    name: str = option(default="tierwall.io", help="Name of the authorizer in the API server.")
    hosts: tuple[str, ...] = repeated_option(
        "--host", metavar="NAME", help="Another name or address for the certificate."
    )
    days: int = option(type=click.IntRange(1, 3650), default=365, help="How long certificates hold.")
    exempt: tuple[str, ...] = repeated_option(
        "--exempt-group",
        metavar="GROUP",
        help="Users of this group are judged by the other authorizers alone. May be repeated.",
    )
    bridge: bool = option("--bridge/--no-bridge", default=True, help="With the admission webhook, or without.")


@group.command("install", epilog="Example: tierwall authorizer install --out pki/ --url https://127.0.0.1:9443")
@runs(InstallParams)
def install(params: InstallParams) -> None:
    """Print and write what an API server needs to ask the authorizer.

    Writes a CA, a server and a client certificate (kept if they are there already), a kubeconfig, an
    AuthorizationConfiguration and, for admission, a ValidatingWebhookConfiguration and an AdmissionConfiguration into a
    folder, and prints them.
    """
    from tierwall.serve.authorizer.install import Installation, write

    wanted = Installation(
        folder=params.out,
        url=params.url.rstrip("/"),
        name=params.name,
        hosts=params.hosts,
        days=params.days,
        exempt=params.exempt,
        bridge=params.bridge,
    )
    click.echo(write(wanted), nl=False)
