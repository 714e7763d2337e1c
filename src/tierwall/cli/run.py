"""`tierwall run`: enforce the tool policies of a folder with Envoy, for as long as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tierwall.cli.input import fail, tell

if TYPE_CHECKING:
    from tierwall.engines.envoy.config.options import Address, Certificate

_FILE = click.Path(exists=True, dir_okay=False)


@click.command("run", epilog="Example: tierwall run manifests/ --address 127.0.0.1 --decision-log decisions.jsonl")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--gateway", "gateways", multiple=True, metavar="NS/NAME", help="Serve only this Gateway. Repeatable.")
@click.option("--address", default="0.0.0.0", show_default=True, help="IP address that listeners bind to.")
@click.option("--bind", "binds", multiple=True, metavar="NS/NAME:PORT=HOST:PORT", help="Bind one port elsewhere.")
@click.option(
    "--endpoint", "endpoints", multiple=True, metavar="REF=HOST:PORT", help="Where a backend is, instead of DNS."
)
@click.option("--certificate", type=_FILE, help="PEM chain for HTTPS listeners that name no certificate.")
@click.option("--key", type=_FILE, help="Its private key.")
@click.option("--client-ca", type=_FILE, help="PEM authorities for client certificates where a Gateway names none.")
@click.option("--denial", type=click.Choice(["json-rpc", "http"]), default="json-rpc", show_default=True)
@click.option("--reveal", type=click.Choice(["policy", "nothing"]), default="policy", show_default=True)
@click.option(
    "--filter-lists/--no-filter-lists", default=True, show_default=True, help="Cut `tools/list` to the caller."
)
@click.option("--envoy", metavar="BINARY", help="The Envoy to run; by default the installed one.")
@click.option("--no-envoy", is_flag=True, help="Run no Envoy, only feed those that connect.")
@click.option("--concurrency", type=click.IntRange(1, 1024), help="Worker threads of Envoy; by default one a core.")
@click.option(
    "--xds",
    show_default="a free port; 127.0.0.1:18000 with --no-envoy",
    metavar="HOST:PORT",
    help="Where Envoys connect to.",
)
@click.option("--xds-certificate", type=_FILE, help="PEM chain that the xDS server shows to Envoys elsewhere.")
@click.option("--xds-key", type=_FILE, help="Its private key.")
@click.option("--xds-client-ca", type=_FILE, help="PEM authorities of the certificates that Envoys must show.")
@click.option(
    "--http",
    default="127.0.0.1:0",
    show_default="a free port",
    metavar="HOST:PORT",
    help="Where health, metrics and status are.",
)
@click.option("--decision-log", default="-", show_default="standard output", metavar="FILE", help="JSON lines.")
def command(
    paths: tuple[str, ...],
    gateways: tuple[str, ...],
    address: str,
    binds: tuple[str, ...],
    endpoints: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    client_ca: str | None,
    denial: str,
    reveal: str,
    filter_lists: bool,
    envoy: str | None,
    no_envoy: bool,
    concurrency: int | None,
    xds: str | None,
    xds_certificate: str | None,
    xds_key: str | None,
    xds_client_ca: str | None,
    http: str,
    decision_log: str,
) -> None:
    """Watch manifests and enforce their tool policies with Envoy.

    PATH is a folder or file that is watched, or `-` for standard input, read once. A broken edit is shown and keeps the
    last good state in force. Decisions go to the decision log, everything else to standard error.

    Exit code 0 when ended by a signal, 1 when it cannot begin: manifests with errors, a missing or unfit certificate,
    an address in use, no Envoy that will do.
    """
    import os

    # gRPC's handlers around `fork` would only warn: nothing is forked that goes on to use it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tierwall.cli.collector import CommandLoader
    from tierwall.core.diagnostics import InputError
    from tierwall.engines.envoy.config.options import Denial, Options, Reveal
    from tierwall.engines.table import engine
    from tierwall.serve.run import Settings
    from tierwall.serve.watch import Files

    where = _address(xds or f"127.0.0.1:{18000 if no_envoy else 0}", "--xds")
    _check_xds(where[0], no_envoy, (xds_certificate, xds_key, xds_client_ca))
    options = Options(
        gateways=frozenset(gateways) or None,
        address=address,
        bind=dict(_placed(one, "--bind") for one in binds),
        endpoints=dict(_placed(one, "--endpoint") for one in endpoints),
        certificate=_certificate(certificate, key),
        client_authority=_bytes(client_ca),
        denial=Denial(denial),
        reveal=Reveal(reveal),
    )
    settings = Settings(
        xds=where,
        xds_certificate=_certificate(xds_certificate, xds_key),
        xds_client_authority=_bytes(xds_client_ca),
        http=_address(http, "--http"),
        envoy=envoy,
        runs_envoy=not no_envoy,
        concurrency=concurrency,
        filters_lists=filter_lists,
        decision_log=decision_log,
    )

    try:
        engine("envoy", options=options, settings=settings).follow(Files(CommandLoader(paths)), tell)
    except InputError as error:
        fail(error)


def _check_xds(host: str, no_envoy: bool, given: tuple[str | None, ...]) -> None:
    """Private keys of Gateways travel over xDS: off this machine only encrypted, and only to Envoys that are known."""
    if any(given) and not all(given):
        raise click.UsageError("--xds-certificate, --xds-key and --xds-client-ca go together")
    if any(given) and not no_envoy:
        raise click.UsageError("--xds-certificate is for Envoys elsewhere: it needs --no-envoy")
    if not any(given) and host not in ("127.0.0.1", "::1", "localhost"):
        raise click.UsageError(f"xDS on `{host}` needs --xds-certificate, --xds-key and --xds-client-ca")


def _certificate(chain: str | None, key: str | None) -> Certificate | None:
    from tierwall.engines.envoy.config.options import Certificate

    if (chain is None) is not (key is None):
        raise click.UsageError("--certificate and --key go together")
    if chain is None:
        return None
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.engines.envoy.config.tls import BAD_CERTIFICATE, unusable

    found = Certificate(_bytes(chain) or b"", _bytes(key) or b"")
    why = unusable(found)
    if why:
        named = why.replace("tls.crt", chain).replace("tls.key", str(key))
        fail(InputError([Diagnostic(BAD_CERTIFICATE, f"the certificate cannot be used: {named}")]))
    return found


def _bytes(path: str | None) -> bytes | None:
    from pathlib import Path

    return Path(path).read_bytes() if path is not None else None


def _placed(text: str, option: str) -> tuple[str, Address]:
    from tierwall.engines.envoy.config.options import Address

    name, sign, where = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"expected NAME=HOST:PORT, found `{text}`", param_hint=option)
    return name, Address(*_address(where, option))


def _address(text: str, option: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"expected HOST:PORT, found `{text}`", param_hint=option)
    return host.removeprefix("[").removesuffix("]"), int(port)
