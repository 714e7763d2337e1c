"""The chart as helm renders it, without a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tests import ROOT
from tests.labs.control_plane import tool
from tests.labs.waiting import PATIENCE_S

CHART = ROOT / "deploy" / "helm" / "tierwall"
RELEASE, NAMESPACE = "guard", "tierwall-system"
# Values under which every template renders something.
EVERYTHING: dict[str, Any] = {
    "authorizer": {"enabled": True, "extraArgs": ["--bridge"]},
    "gatewayClass": {"enabled": True},
    "gatewayNamespaces": ["shop", "bank"],
    "metrics": {"serviceMonitor": {"enabled": True}},
}
# What the API server of a cluster with everything in it serves, beyond Kubernetes.
OTHER_APIS = ("openreports.io/v1alpha1",)


class RenderError(Exception):
    """Helm refuses the values."""


def helm(*arguments: str, stdin: str = "", **environment: str) -> str:
    """Return what helm prints; RenderError if it fails."""
    command = [tool("helm"), *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=environment or None
    )
    if done.returncode != 0:
        raise RenderError(done.stderr or done.stdout)
    return done.stdout


def rendered_text(
    values: Mapping[str, Any] | None = None,
    apis: Sequence[str] = (),
    namespace: str = NAMESPACE,
    release: str = RELEASE,
) -> str:
    """Return the manifests of a release as helm prints them; hooks are left out."""
    more = [word for api in apis for word in ("--api-versions", api)]
    command = ("template", release, str(CHART), "--namespace", namespace, "--no-hooks", "--values", "-", *more)
    return helm(*command, stdin=json.dumps(values or {}))


def arguments(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each process of `tierwall` in manifests."""
    for value in yaml.safe_load_all(text):
        if value is not None and value["kind"] in ("Deployment", "DaemonSet"):
            yield from (container["args"] for container in value["spec"]["template"]["spec"]["containers"])


def rendered(values: Mapping[str, Any] | None = None, apis: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the objects of a release."""
    return [value for value in yaml.safe_load_all(rendered_text(values, apis)) if value is not None]
