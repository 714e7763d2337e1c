"""`tierwall authorizer`: serve authorization to API servers; `install` prints what they need for it."""

from __future__ import annotations

from typing import Any

import click

from tierwall.cli.input import fail, tell

SHAPES = ("conditionsChain", "conditionSetChain")


@click.group(
    "authorizer",
    invoke_without_command=True,
    epilog="Example: tierwall authorizer --policies policies/ --tls-cert pki/server.crt --tls-key pki/server.key"
    " --client-ca pki/ca.crt --bridge",
)
@click.option("--policies", "paths", multiple=True, metavar="PATH", help="File or folder of policies. May be repeated.")
@click.option("--listen", default="127.0.0.1:9443", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--health-listen", metavar="HOST:PORT", help="Where to answer health and metrics, too, without TLS.")
@click.option("--tls-cert", metavar="FILE", help="Certificate, PEM; a change counts from the next connection on.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate, PEM.")
@click.option("--client-ca", metavar="FILE", help="Clients need a certificate of this CA.")
@click.option(
    "--bridge",
    is_flag=True,
    help="Serve API servers that know no conditions: their admission webhook asks here, too.",
)
@click.option(
    "--seal-key", metavar="FILE", help="Key that conditions are sealed with; else it is derived from the TLS key."
)
@click.option("--log", metavar="FILE", help="Write the decision log here; `-` is standard output.")
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    default=SHAPES[0],
    show_default=True,
    help="How conditions are written for callers that ask by `conditionalAuthorization.mode`.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86400),
    default=330,
    show_default=True,
    help="Seconds that superseded policies are still enforced; more than the API server's authorizedTTL.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0, 3600),
    default=0,
    show_default=True,
    help="Seconds before new policies grant on conditions; with replicas, longer than they need to see a change.",
)
@click.option(
    "--read-timeout", type=click.FloatRange(0.05, 300), default=10, show_default=True, help="Seconds for one request."
)
@click.pass_context
def group(ctx: click.Context, /, **given: Any) -> None:
    """Answer SubjectAccessReviews, AuthorizationConditionsReviews and, with --bridge, AdmissionReviews.

    POST /authorize, /conditions and /admit; GET /healthz, /readyz and /metrics. Policies and certificates are followed:
    a broken edit leaves the last good ones in force, and says so.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not given["paths"]:
        raise click.UsageError("Missing option '--policies'.")
    if bool(given["tls_cert"]) is not bool(given["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if given["client_ca"] and not given["tls_cert"]:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")
    listen = _address(given["listen"], "--listen")
    health = _address(given["health_listen"], "--health-listen") if given["health_listen"] else None

    from tierwall.api.wire.review import Shape
    from tierwall.cli.collector import CommandLoader
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.table import engine
    from tierwall.serve.authorizer.connections import TlsFiles
    from tierwall.serve.authorizer.run import Settings
    from tierwall.serve.watch import Files

    tls = TlsFiles(given["tls_cert"], given["tls_key"], given["client_ca"]) if given["tls_cert"] else None
    settings = Settings(
        host=listen[0],
        port=listen[1],
        health=health,
        tls=tls,
        bridge=given["bridge"],
        shape=Shape(given["shape"]),
        seal_key=given["seal_key"],
        log=given["log"],
        grace=given["grace"],
        settle=given["settle"],
        read_seconds=given["read_timeout"],
        header_seconds=given["read_timeout"],
    )
    try:
        engine("authorizer", settings=settings).follow(Files(CommandLoader(given["paths"])), tell)
    except InputError as error:
        fail(error)


@group.command("install", epilog="Example: tierwall authorizer install --out pki/ --url https://127.0.0.1:9443")
@click.option("--out", default="tierwall-authorizer", show_default=True, metavar="FOLDER", help="Where to write.")
@click.option(
    "--url",
    default="https://127.0.0.1:9443",
    show_default=True,
    help="Where API servers reach the authorizer.",
)
@click.option("--name", default="tierwall.io", show_default=True, help="Name of the authorizer in the API server.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Another name or address for the certificate.")
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long certificates hold."
)
@click.option(
    "--exempt-group",
    "exempt",
    multiple=True,
    metavar="GROUP",
    help="Users of this group are judged by the other authorizers alone. May be repeated.",
)
@click.option("--bridge/--no-bridge", default=True, show_default=True, help="With the admission webhook, or without.")
def install(**given: Any) -> None:
    """Print and write what an API server needs to ask the authorizer.

    Writes a CA, a server and a client certificate (kept if they are there already), a kubeconfig, an
    AuthorizationConfiguration and, for admission, a ValidatingWebhookConfiguration and an AdmissionConfiguration into a
    folder, and prints them.
    """
    from tierwall.core.diagnostics import InputError
    from tierwall.serve.authorizer.install import Installation, write

    try:
        wanted = Installation(
            folder=given["out"],
            url=given["url"].rstrip("/"),
            name=given["name"],
            hosts=given["hosts"],
            days=given["days"],
            exempt=given["exempt"],
            bridge=given["bridge"],
        )
        click.echo(write(wanted), nl=False)
    except InputError as error:
        fail(error)


def _address(text: str, option: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"{option}: expected HOST:PORT, found `{text}`")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
