"""`tierwall controller` writes the status of policies in a cluster (docs/controller.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tierwall.cli.clusters import ClusterParams, checked_namespace
from tierwall.cli.command import address, command, flag, option, print_line, print_report, repeated_option, runs
from tierwall.core.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tierwall.resources.resource import Identity
    from tierwall.resources.snapshot import Snapshot
    from tierwall.serve.controller.fleet_part import FleetSettings
    from tierwall.serve.controller.infrastructure import InfrastructureTemplate
    from tierwall.serve.controller.warnings import WarningSettings

_FILE = click.Path(exists=True, dir_okay=False)


class ControllerParams(ClusterParams):
    """The options of `controller`."""

    release_namespace: str | None = option(
        metavar="NAME",
        callback=checked_namespace,
        help="Namespace of the controller's Lease and of NodeReports.",
        show_default="POD_NAMESPACE, then that of the context",
    )
    identity: str | None = option(
        metavar="NAME", help="Name of this replica in the Lease.", show_default="POD_NAME, then the host's name"
    )
    lease_duration: str = option(
        default="15s", metavar="DURATION", help="How long a replica waits before it takes the lead from a silent one."
    )
    renew_deadline: str = option(
        default="10s", metavar="DURATION", help="How long a leader writes after its last renewal."
    )
    retry_period: str = option(default="2s", metavar="DURATION", help="How often the Lease is renewed or looked at.")
    node_agents: bool = flag("There are node agents: write on network policies whether every node holds them.")
    node_timeout: str = option(
        default="60s", metavar="DURATION", help="How long a node agent may be silent before its node counts as missing."
    )
    http: str = option(
        default="127.0.0.1:0",
        show_default="a free port",
        metavar="HOST:PORT",
        help="Address that serves health and metrics.",
    )
    webhook: str | None = option(
        metavar="HOST:PORT", help="Address that answers API servers with warnings about changes, at `/warnings`."
    )
    webhook_cert: str | None = option(
        metavar="FILE",
        help="Certificate of the webhook; `ca.crt` beside it is its CA.",
        show_default="made by the controller",
    )
    webhook_key: str | None = option(metavar="FILE", help="Key of the certificate.")
    refuse: tuple[str, ...] = repeated_option(
        metavar="CODE", help="Refuse a change that brings a finding of this code, such as TW201."
    )
    reveal_admin_policies: bool = flag("Tell everybody which admin policy overrides theirs.")
    xds: str | None = option(
        metavar="HOST:PORT", help="Serve the Envoys of Gateways of class `tierwall` here, with mutual TLS."
    )
    xds_certificate: str | None = option(
        type=_FILE, help="Certificate chain (PEM) of the xDS server.", show_default="one that the controller makes"
    )
    xds_key: str | None = option(type=_FILE, help="Its private key.")
    xds_client_ca: str | None = option(type=_FILE, help="CA certificates (PEM) for the client certificates of Envoys.")
    gateway_namespaces: tuple[str, ...] = repeated_option(
        "--gateway-namespace", metavar="NAME", help="Serve only Gateways of this namespace. Repeatable."
    )
    envoy_certificates: str | None = option(
        metavar="HOST:PORT", help="Sign the certificates of Envoys here: `tierwall envoy` asks for one."
    )
    envoy_template: str | None = option(
        type=_FILE, help="Make a Deployment and a Service for each Gateway, of this file (JSON)."
    )


@command("controller", epilog="Example: tierwall controller --cluster --http 0.0.0.0:8080")
@runs(ControllerParams)
def controller(params: ControllerParams) -> None:
    """Follow a cluster, and write the status of its policies. Several replicas may run: one of them writes.

    Traffic does not depend on the controller. Exit code 0 after a signal, 1 if the cluster cannot be read.
    """
    if params.cluster_to_read is None:
        raise click.UsageError("Missing option '--cluster' or '--context NAME'.")
    require_extra("serve")
    from tierwall.cli.followed import CommandClusterSource
    from tierwall.resources.load import Loader, LoadSettings
    from tierwall.serve.cluster import REPORTING_QUIET_S
    from tierwall.serve.controller.kinds import OF_THE_RELEASE, controller_kinds
    from tierwall.serve.controller.lease import LeaseTiming
    from tierwall.serve.controller.run import ControllerSettings, run_controller
    from tierwall.serve.files import FileSource

    lease = LeaseTiming(
        _seconds(params.lease_duration, "--lease-duration"),
        _seconds(params.renew_deadline, "--renew-deadline"),
        _seconds(params.retry_period, "--retry-period"),
    )
    if lease.problem:
        raise click.UsageError(lease.problem)
    node_timeout = _seconds(params.node_timeout, "--node-timeout")
    if not node_timeout > 0:
        raise click.UsageError("the node timeout must be longer than 0s")
    http, fleet, warnings = address(params.http, "--http"), _fleet(params), _warnings(params)
    access = params.cluster_access
    assert access is not None
    settings = ControllerSettings(
        release_namespace=params.release_namespace or os.environ.get("POD_NAMESPACE") or access.namespace or "default",
        identity=params.identity or os.environ.get("POD_NAME") or os.uname().nodename,
        lease=lease,
        node_timeout=node_timeout if params.node_agents else None,
        http=http,
        warnings=warnings,
        fleet=fleet,
    )
    nothing = LoadSettings(access.namespace)
    source = CommandClusterSource(
        access,
        controller_kinds(warns=warnings is not None),
        params.cluster_to_read.timeout,
        FileSource(Loader((), nothing)),
        nothing,
        lambda message: print_line(message, err=True),
        named=_named_objects(fleet),
        within=dict.fromkeys(OF_THE_RELEASE, settings.release_namespace),
        only_gets=True,
        quiet=REPORTING_QUIET_S,
    )
    run_controller(access, params.cluster_to_read.timeout, settings, source, print_report)


def _warnings(params: ControllerParams) -> WarningSettings | None:
    from tierwall.analyze.change_findings import WORST_FIRST
    from tierwall.serve.controller.warnings import WarningSettings

    for code in params.refuse:
        if code not in WORST_FIRST:
            words = f"expected the code of a warning such as TW201, found `{code}`"
            raise click.BadParameter(words, param_hint="--refuse")
    files = params.webhook_cert, params.webhook_key
    if (files[0] is None) is not (files[1] is None):
        raise click.UsageError("--webhook-cert and --webhook-key are given together")
    if params.webhook is None:
        if files[0] is not None or params.refuse or params.reveal_admin_policies:
            raise click.UsageError("--webhook-cert, --refuse and --reveal-admin-policies need --webhook")
        return None
    return WarningSettings(
        webhook=address(params.webhook, "--webhook"),
        files=(files[0], files[1]) if files[0] is not None and files[1] is not None else None,
        refused_codes=frozenset(params.refuse),
        reveals_admin_policies=params.reveal_admin_policies,
    )


def _fleet(params: ControllerParams) -> FleetSettings | None:
    """Return how Envoys are served, or None."""
    files = params.xds_certificate, params.xds_key, params.xds_client_ca
    signs, makes = params.envoy_certificates is not None, params.envoy_template is not None
    if any(files) and not all(files):
        raise click.UsageError("give --xds-certificate, --xds-key and --xds-client-ca together")
    if params.xds is None:
        if any(files) or signs or makes or params.gateway_namespaces:
            raise click.UsageError("options for Envoys and Gateways need --xds HOST:PORT")
        return None
    if signs and any(files):
        raise click.UsageError("--envoy-certificates needs the controller's own CA: leave --xds-certificate out")
    if makes and not (signs and params.gateway_namespaces):
        raise click.UsageError("--envoy-template needs --envoy-certificates and --gateway-namespace")
    # gRPC's handlers around `fork` would only warn: no forked process uses gRPC.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tierwall.serve.certificate_files import CertificateFiles
    from tierwall.serve.controller.fleet_part import FleetSettings

    return FleetSettings(
        xds=address(params.xds, "--xds"),
        files=CertificateFiles(*files) if any(files) else None,
        certificates=address(params.envoy_certificates, "--envoy-certificates") if params.envoy_certificates else None,
        template=_template(params.envoy_template) if params.envoy_template else None,
        namespaces=frozenset(params.gateway_namespaces) or None,
    )


def _template(path: str) -> InfrastructureTemplate:
    from pathlib import Path

    from tierwall.serve.controller.infrastructure import read_template

    try:
        return read_template(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"`{path}` cannot be used: {error}", param_hint="--envoy-template") from None


def _named_objects(fleet: FleetSettings | None) -> Callable[[Snapshot], Iterable[Identity]]:
    """Return what finds the Secrets and ConfigMaps that served Gateways name; no others are read."""
    if fleet is None:
        return lambda snapshot: ()
    from tierwall.serve.controller.fleet import named_objects

    return lambda snapshot: named_objects(snapshot, fleet.namespaces)


def _seconds(text: str, option: str) -> float:
    from tierwall.values.time import parse_seconds

    seconds = parse_seconds(text)
    if seconds is None:
        raise click.BadParameter(f"expected a duration such as 15s, found `{text}`", param_hint=option)
    return seconds
