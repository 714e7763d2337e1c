"""`tierwall envoy` runs the Envoy of a Gateway, fed by the controllers of a cluster (docs/fleet.md#an-envoy)."""

from __future__ import annotations

import os

import click

from tierwall.cli.command import Params, address, command, option, print_line, repeated_option, runs
from tierwall.core.extras import require_extra

_FILE = click.Path(exists=True, dir_okay=False)


class GatewayEnvoyParams(Params):
    """The options of `envoy`."""

    gateway: str = option(required=True, metavar="NS/NAME", help="The Gateway to serve.")
    xds: tuple[str, ...] = repeated_option(
        "--xds", metavar="HOST:PORT", help="Address of controllers that serve xDS. Repeatable."
    )
    certificates: str = option(
        required=True, metavar="HOST:PORT", help="Address of controllers that sign certificates."
    )
    server_name: str | None = option(
        metavar="NAME", help="Name in the certificates of controllers.", show_default="the host of --certificates"
    )
    ca: str = option(required=True, type=_FILE, help="CA certificates (PEM) that sign those of controllers.")
    token: str = option(required=True, type=_FILE, help="Token of the pod, for the audience `tierwall`.")
    node: str | None = option(
        metavar="NAME", help="Name of this Envoy in statuses.", show_default="POD_NAME, then the host's name"
    )
    envoy: str | None = option(metavar="BINARY", help="The Envoy binary to run; by default the installed one.")
    concurrency: int | None = option(
        type=click.IntRange(1, 1024), help="Worker threads of Envoy; by default one per core."
    )
    http: str = option(
        default="127.0.0.1:0",
        show_default="a free port",
        metavar="HOST:PORT",
        help="Address that serves /livez and /readyz.",
    )


@command(
    "envoy",
    epilog="Example: tierwall envoy --gateway shop/agents --xds tierwall-controller.tierwall.svc:18000"
    " --certificates tierwall-controller.tierwall.svc:18001 --ca ca.crt --token token",
)
@runs(GatewayEnvoyParams)
def envoy(params: GatewayEnvoyParams) -> None:
    """Run the Envoy of a Gateway. Controllers sign its certificate and feed it; it goes on without them.

    Exit code 0 after a signal, 1 if it cannot start: no suitable Envoy, an address in use.
    """
    require_extra("serve")
    from pathlib import Path

    from tierwall.engines.envoy.config.options import SocketAddress
    from tierwall.serve.gateway_proxy import ProxySettings, run_proxy

    if params.gateway.count("/") != 1 or not all(params.gateway.split("/")):
        raise click.BadParameter(f"expected NAMESPACE/NAME, found `{params.gateway}`", param_hint="--gateway")
    if not params.xds:
        raise click.UsageError("Missing option '--xds HOST:PORT'.")
    certificates = SocketAddress(*address(params.certificates, "--certificates"))
    settings = ProxySettings(
        gateway=params.gateway,
        node=params.node or os.environ.get("POD_NAME") or os.uname().nodename,
        xds=tuple(SocketAddress(*address(text, "--xds")) for text in params.xds),
        certificates=certificates,
        server_name=params.server_name or certificates.host,
        authority=Path(params.ca),
        token=Path(params.token),
        http=address(params.http, "--http"),
        envoy=params.envoy,
        concurrency=params.concurrency,
    )
    run_proxy(settings, lambda message: print_line(message, err=True))
