"""The commands of the engine Envoy: `compile envoy`, and `run`, which enforces the tool policies of a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from tierwall.cli.command import (
    FAILED,
    TOOL_PROFILE,
    address,
    choice,
    command,
    flag,
    named_values,
    option,
    output,
    print_diagnostics,
    print_output,
    print_report,
    print_unread,
    repeated_option,
    runs,
)
from tierwall.cli.objects import ObjectParams, RequiredPathParams, StateParams, backend_ref_grants
from tierwall.engines.table import engine

if TYPE_CHECKING:
    from pathlib import Path

    from tierwall.engines.envoy.config.options import MutualTlsAddress, SocketAddress
    from tierwall.gateway.model.fields import Profile

_FILE = click.Path(exists=True, dir_okay=False)
_DENIAL = choice("json-rpc", "http", help="Answer a denied MCP request with a JSON-RPC error, or with HTTP 403.")
_PROFILE = choice(
    "docs", "agentgateway", help="Merge AgentgatewayPolicies as agentgateway documents it, or as its code does."
)
_REVEAL = choice("policy", "nothing", help="Tell a denied caller which policy denied the request, or nothing.")


class CompileEnvoyParams(ObjectParams):
    """The options of `compile envoy`."""

    asks = ("tool", "gateway")

    profile: str = _PROFILE
    backend_ref_grants: Any = backend_ref_grants()
    denial: str = _DENIAL
    reveal: str = _REVEAL
    tool_profile: str = TOOL_PROFILE
    gateways: tuple[str, ...] = repeated_option(
        "--gateway", metavar="NAMESPACE/NAME", help="Only this Gateway. Repeatable."
    )
    output: str = output("compile envoy")


@command("envoy", epilog="Example: tierwall compile envoy -f manifests/ --gateway prod/agents -o json")
@runs(CompileEnvoyParams)
def compile(params: CompileEnvoyParams) -> int:
    """Print the listeners, routes, clusters and secrets with which Envoy enforces the tool policies.

    Private keys are left out. Exit code 1 if a Gateway cannot be served as declared.
    """
    from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError, near_miss, sorted_diagnostics
    from tierwall.engines.envoy.config.options import Denial, DenialDetail, EnvoyOptions
    from tierwall.tool.profile import ToolProfile

    world = params.world()
    snapshot = world.snapshot
    gateways = snapshot.of_kind("gateway.networking.k8s.io", "Gateway")
    known = [f"{gateway.namespace}/{gateway.name}" for gateway in gateways]
    chosen = params.full_names(params.gateways, world.namespace)
    unknown = [
        Diagnostic("TW703", f"there is no Gateway `{name}`", hint=near_miss(name, known))
        for name in chosen
        if name not in known
    ]
    if unknown:
        raise InputError(unknown)
    wanted = EnvoyOptions(
        gateways=frozenset(chosen) or None,
        profile=cast("Profile", params.profile),
        denial=Denial(params.denial),
        reveal=DenialDetail(params.reveal),
        tool_profile=ToolProfile(params.tool_profile),
    )
    compiled = engine("envoy", options=wanted).compile(snapshot)
    print_diagnostics(sorted_diagnostics((*Diagnostics(world.diagnostics).serious, *compiled.diagnostics)), world)
    print_unread(world, *params.asks)
    print_output("compile envoy", params.output, compiled)
    return FAILED if Diagnostics(compiled.diagnostics).errors else 0


class RunParams(StateParams, RequiredPathParams):
    """The options of `run`."""

    asks = ("tool", "gateway")

    gateways: tuple[str, ...] = repeated_option(
        "--gateway", metavar="NS/NAME", help="Serve only this Gateway. Repeatable."
    )
    address: str = option(default="0.0.0.0", help="IP address that listeners bind to.")
    binds: tuple[str, ...] = repeated_option(
        "--bind", metavar="NS/NAME:PORT=HOST:PORT", help="Bind a port of a Gateway to another address. Repeatable."
    )
    endpoints: tuple[str, ...] = repeated_option(
        "--endpoint", metavar="REF=HOST:PORT", help="Address of a backend, instead of DNS. Repeatable."
    )
    certificate: str | None = option(type=_FILE, help="Certificate chain (PEM) for HTTPS listeners without their own.")
    key: str | None = option(type=_FILE, help="Its private key.")
    client_ca: str | None = option(type=_FILE, help="CA certificates (PEM) for clients of Gateways without their own.")
    max_connection_duration: int = option(
        default=600,
        metavar="SECONDS",
        type=click.IntRange(0, 31_536_000),
        help="Close connections of clients with certificates after this time, open streams included; 0 for never.",
    )
    profile: str = _PROFILE
    backend_ref_grants: Any = backend_ref_grants()
    denial: str = _DENIAL
    reveal: str = _REVEAL
    tool_profile: str = TOOL_PROFILE
    filter_lists: bool = option(
        "--filter-lists/--no-filter-lists", default=True, help="Remove from lists what the caller may not use."
    )
    envoy: str | None = option(metavar="BINARY", help="The Envoy binary to run; by default the installed one.")
    no_envoy: bool = flag("Do not start Envoy; configure only those that connect.")
    concurrency: int | None = option(
        type=click.IntRange(1, 1024), help="Worker threads of Envoy; by default one per core."
    )
    xds: str | None = option(
        show_default="127.0.0.1:18000 with --no-envoy",
        metavar="HOST:PORT|unix:PATH",
        help="Address that Envoys run by others connect to, with mutual TLS; or a socket in a private folder.",
    )
    xds_certificate: str | None = option(type=_FILE, help="Certificate chain (PEM) of the xDS server on HOST:PORT.")
    xds_key: str | None = option(type=_FILE, help="Its private key.")
    xds_client_ca: str | None = option(type=_FILE, help="CA certificates (PEM) for the client certificates of Envoys.")
    http: str = option(
        default="127.0.0.1:0",
        show_default="a free port",
        metavar="HOST:PORT",
        help="Address that serves health, metrics and status.",
    )
    otlp: str | None = option(
        metavar="HOST:PORT", help="Send traces and metrics to this OpenTelemetry collector (OTLP over gRPC)."
    )
    decision_log: str = option(
        default="-", show_default="standard output", metavar="FILE", help="Log of decisions, as JSON lines."
    )


@command("run", epilog="Example: tierwall run manifests/ --address 127.0.0.1 --decision-log decisions.jsonl")
@runs(RunParams)
def run(params: RunParams) -> None:
    """Follow manifests or a cluster, and enforce their tool policies with Envoy.

    PATH is a file or folder to watch, or `-` to read standard input once; it lies over a cluster if one is named. An
    object with an error fails closed or is
    left out, a broken file keeps what it had, and everything else comes into force. Decisions go to the decision log,
    everything else to standard error.

    Exit code 0 after a signal, 1 if it cannot start: a file that cannot be parsed, an address in use, no suitable
    Envoy.
    """
    # gRPC's handlers around `fork` would only warn: no forked process uses gRPC.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tierwall.engines.envoy.config.options import Denial, DenialDetail, EnvoyOptions, SocketAddress
    from tierwall.engines.envoy.config.settings.secrets import objects_to_read
    from tierwall.serve.certificate_files import CertificateFiles
    from tierwall.serve.run import RunSettings
    from tierwall.tool.profile import ToolProfile

    xds = _xds(params)
    if (params.certificate is None) is not (params.key is None):
        raise click.UsageError("give --certificate and --key together")
    files = CertificateFiles(params.certificate, params.key, params.client_ca)
    options = EnvoyOptions(
        gateways=frozenset(params.full_names(params.gateways)) or None,
        address=params.address,
        bind=dict(_named_address(text, "--bind") for text in params.binds),
        endpoints=dict(_named_address(text, "--endpoint") for text in params.endpoints),
        certificate=files.certificate,
        client_authority=files.authority,
        max_connection_seconds=params.max_connection_duration,
        profile=cast("Profile", params.profile),
        denial=Denial(params.denial),
        reveal=DenialDetail(params.reveal),
        tool_profile=ToolProfile(params.tool_profile),
        collector=SocketAddress(*address(params.otlp, "--otlp")) if params.otlp is not None else None,
    )
    settings = RunSettings(
        xds=xds,
        files=files,
        http=address(params.http, "--http"),
        envoy=params.envoy,
        runs_envoy=not params.no_envoy,
        concurrency=params.concurrency,
        filters_lists=params.filter_lists,
        decision_log=params.decision_log,
    )
    source = params.object_source(state=params.state, named=lambda snapshot: objects_to_read(snapshot, options))
    engine("envoy", options=options, settings=settings).follow(source, print_report)


def _xds(params: RunParams) -> Path | MutualTlsAddress | None:
    """Return where Envoys run by others connect: to a private socket or with mutual TLS, because keys travel there."""
    from pathlib import Path

    from tierwall.engines.envoy.config.options import MutualTlsAddress
    from tierwall.serve.certificate_files import CertificateFiles

    needs = "--xds-certificate, --xds-key and --xds-client-ca"
    given = params.xds_certificate, params.xds_key, params.xds_client_ca
    if any(given) and not all(given):
        raise click.UsageError(f"give {needs} together")
    if not params.no_envoy and params.xds is None and not any(given):
        return None
    text = params.xds or "127.0.0.1:18000"
    is_socket = text.startswith("unix:")
    host, port = ("", 0) if is_socket else address(text, "--xds")
    if not is_socket and not any(given):
        raise click.UsageError(f"xDS on `{host}` needs {needs}: private keys travel there; or give --xds unix:PATH")
    if is_socket and any(given):
        raise click.UsageError(f"{needs} are for --xds HOST:PORT, not for a socket")
    if not params.no_envoy:
        raise click.UsageError("--xds is for Envoys that others run: it needs --no-envoy")
    if text == "unix:":
        raise click.BadParameter(f"expected HOST:PORT or unix:PATH, found `{text}`", param_hint="--xds")
    if is_socket:
        return Path(text.removeprefix("unix:")).absolute()
    files = CertificateFiles(*given)
    assert files.certificate is not None
    assert files.authority is not None
    return MutualTlsAddress(host, port, files.certificate, files.authority)


def _named_address(text: str, option: str) -> tuple[str, SocketAddress]:
    from tierwall.engines.envoy.config.options import SocketAddress

    ((name, where),) = named_values([text], option, "NAME=HOST:PORT")
    return name, SocketAddress(*address(where, option))
