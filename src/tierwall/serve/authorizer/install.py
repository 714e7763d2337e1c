"""What an API server needs to ask the authorizer: configuration, kubeconfig, admission webhook and certificates.

Everything fails closed: an authorizer that cannot be reached denies, admission that cannot be reached refuses. Allowed
answers are not kept by the API server, so that a change of policies counts for the next request.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from tierwall.api.algebra.condition import label_key_problem
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.serve.authorizer.certificates import make_certificates

FILES = {
    "authorization.yaml": "give this to kube-apiserver as --authorization-config",
    "kubeconfig.yaml": "how the API server reaches the authorizer; authorization.yaml refers to it",
    "admission.yaml": "give this to kube-apiserver as --admission-control-config-file",
    "admission-kubeconfig.yaml": "the client certificate that admission shows; admission.yaml refers to it",
    "webhook.yaml": "apply this with kubectl once the authorizer runs with --bridge",
}


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted."""

    folder: str
    url: str
    name: str = "tierwall.io"
    hosts: tuple[str, ...] = ()
    days: int = 365
    exempt: tuple[str, ...] = ()
    bridge: bool = True


def write(wanted: Installation) -> str:
    """Write everything into the folder; the text of what was written, certificates aside."""
    host = _check(wanted)
    folder = Path(wanted.folder).absolute()
    make_certificates(folder, tuple(dict.fromkeys((host, *wanted.hosts))), wanted.days)
    documents = {
        "authorization.yaml": authorization_configuration(wanted, folder),
        "kubeconfig.yaml": kubeconfig(wanted, folder),
    }
    if wanted.bridge:
        documents["admission.yaml"] = admission_configuration(folder)
        documents["admission-kubeconfig.yaml"] = admission_kubeconfig(wanted, folder)
        documents["webhook.yaml"] = webhook_configuration(wanted, (folder / "ca.crt").read_bytes())
    parts = []
    for file, document in documents.items():
        text = f"# {file}: {FILES[file]}\n{yaml.safe_dump(document, sort_keys=False)}"
        (folder / file).write_text(text)
        parts.append(text)
    bridge = " --bridge" if wanted.bridge else ""
    parts.append(
        f"# certificates: {folder}/ca.crt, server.crt, server.key, client.crt, client.key\n"
        f"# tierwall authorizer --policies POLICIES --listen {_listen(wanted.url)} --tls-cert {folder}/server.crt"
        f" --tls-key {folder}/server.key --client-ca {folder}/ca.crt{bridge}\n"
    )
    return "---\n".join(parts)


def authorization_configuration(wanted: Installation, folder: Path) -> dict[str, Any]:
    """The authorizer first, so that it can deny; then the API server's own."""
    webhook: dict[str, Any] = {
        "timeout": "3s",
        "authorizedTTL": "1s",
        "cacheAuthorizedRequests": False,
        "unauthorizedTTL": "1s",
        "cacheUnauthorizedRequests": False,
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": "Deny",
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(folder / "kubeconfig.yaml")},
    }
    if wanted.exempt:
        webhook["matchConditions"] = [{"expression": f"!('{one}' in request.groups)"} for one in wanted.exempt]
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Webhook", "name": wanted.name, "webhook": webhook},
            {"type": "Node", "name": "node"},
            {"type": "RBAC", "name": "rbac"},
        ],
    }


def kubeconfig(wanted: Installation, folder: Path) -> dict[str, Any]:
    """How the API server reaches the authorizer."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "tierwall",
                "cluster": {"server": f"{wanted.url}/authorize", "certificate-authority": str(folder / "ca.crt")},
            }
        ],
        "users": [
            {
                "name": "api-server",
                "user": {
                    "client-certificate": str(folder / "client.crt"),
                    "client-key": str(folder / "client.key"),
                },
            }
        ],
        "contexts": [{"name": "authorizer", "context": {"cluster": "tierwall", "user": "api-server"}}],
        "current-context": "authorizer",
    }


def admission_configuration(folder: Path) -> dict[str, Any]:
    """An API server shows admission webhooks a client certificate only if it is told to."""
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {
                "name": "ValidatingAdmissionWebhook",
                "configuration": {
                    "apiVersion": "apiserver.config.k8s.io/v1",
                    "kind": "WebhookAdmissionConfiguration",
                    "kubeConfigFile": str(folder / "admission-kubeconfig.yaml"),
                },
            }
        ],
    }


def admission_kubeconfig(wanted: Installation, folder: Path) -> dict[str, Any]:
    """The client certificate, under the host and port of the webhook."""
    user = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
    return {"apiVersion": "v1", "kind": "Config", "users": [{"name": _listen(wanted.url), "user": user}]}


def webhook_configuration(wanted: Installation, ca: bytes) -> dict[str, Any]:
    """Admission of every write and every connect request."""
    webhook: dict[str, Any] = {
        "name": "conditions.tierwall.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "matchPolicy": "Exact",
        "timeoutSeconds": 5,
        "clientConfig": {"url": f"{wanted.url}/admit", "caBundle": base64.b64encode(ca).decode()},
        "rules": [
            {
                "operations": ["CREATE", "UPDATE", "DELETE", "CONNECT"],
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "resources": ["*/*"],
                "scope": "*",
            }
        ],
    }
    if wanted.exempt:
        webhook["matchConditions"] = [
            {"name": f"exempt-{index}", "expression": f"!('{one}' in request.userInfo.groups)"}
            for index, one in enumerate(wanted.exempt)
        ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "tierwall-authorizer"},
        "webhooks": [webhook],
    }


def _check(wanted: Installation) -> str:
    """The host of the address; InputError names everything that cannot be used."""
    problems = []
    found = urlsplit(wanted.url)
    if found.scheme != "https" or not found.hostname:
        problems.append(f"expected an address like `https://HOST:PORT`, found `{wanted.url}`")
    if label_key_problem(f"{wanted.name}/x") is not None:
        problems.append(f"name `{wanted.name}` is no DNS subdomain")
    problems += [
        f"group `{one}` holds a character that cannot stand in a match condition"
        for one in wanted.exempt
        if not one or "'" in one or "\\" in one or not one.isprintable()
    ]
    if problems:
        raise InputError([Diagnostic("TW512", one) for one in problems])
    return found.hostname or ""


def _listen(url: str) -> str:
    found = urlsplit(url)
    host = f"[{found.hostname}]" if found.hostname and ":" in found.hostname else found.hostname
    return f"{host}:{found.port or 443}"
