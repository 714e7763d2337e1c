"""Asking another authorizer over HTTPS: the webhooks of the chain, reached as their kubeconfig says.

The kubeconfig's current context names the endpoint for SubjectAccessReviews. Conditions go to the context named by
`conditionsEndpointKubeConfigContext` (the KEP) or `conditionsReview.kubeConfigContextName` (the API server's commit
series), or else to the same endpoint. Anything that prevents an answer is a WebhookError, which the failure policy of
the webhook turns into a decision.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import msgspec

from tierwall.api.algebra.authorizer import Authorizer
from tierwall.api.authorizers.webhook import WebhookAuthorizer, WebhookError, read_settings
from tierwall.api.model import AuthorizerConfig, unreachable_webhook
from tierwall.resources.read import read_paths

# A longer answer does not come from an authorizer.
MAX_BYTES = 1 << 20


def webhook(member: AuthorizerConfig) -> Authorizer:
    """Return the authorizer of a webhook. Without a kubeconfig, its failure policy answers."""
    # INVARIANT: a chain with settings that cannot be read has been refused (`api.model`).
    settings, _ = read_settings(member.webhook)
    connection = member.webhook.get("connectionInfo")
    file = connection.get("kubeConfigFile") if isinstance(connection, Mapping) else None
    if not isinstance(file, str):
        return unreachable_webhook(member)
    series = member.webhook.get("conditionsReview")
    named = series.get("kubeConfigContextName") if isinstance(series, Mapping) else None
    context = named or member.webhook.get("conditionsEndpointKubeConfigContext") or ""
    return WebhookAuthorizer(
        member.name, HttpReviewClient(file, str(context), settings.timeout), settings, time.monotonic
    )


class HttpReviewClient:
    """Sends reviews as a kubeconfig says. Connections are made on first use and kept open."""

    def __init__(self, kubeconfig: str, conditions_context: str, timeout: float) -> None:
        self._kubeconfig = kubeconfig
        self._conditions_context = conditions_context
        self._timeout = timeout
        self._clients: dict[str, tuple[str, httpx.Client]] = {}
        self._lock = Lock()

    def access(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send a SubjectAccessReview."""
        return self._post("", review)

    def conditions(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send an AuthorizationConditionsReview."""
        return self._post(self._conditions_context, review)

    def _post(self, context: str, review: dict[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            if context not in self._clients:
                self._clients[context] = self._endpoint(context)
        url, client = self._clients[context]
        try:
            reply = client.post(url, content=msgspec.json.encode(review), headers={"content-type": "application/json"})
            if reply.status_code not in (200, 201):
                raise WebhookError(f"it answered with status {reply.status_code}")
            if len(reply.content) > MAX_BYTES:
                raise WebhookError(f"its answer is longer than {MAX_BYTES} bytes")
            value = msgspec.json.decode(reply.content)
        except httpx.HTTPError as error:
            raise WebhookError(f"it cannot be reached: {str(error) or type(error).__name__}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise WebhookError("its answer is not JSON") from None
        if not isinstance(value, Mapping):
            raise WebhookError("its answer is not a review")
        return value

    def _endpoint(self, context: str) -> tuple[str, httpx.Client]:
        """Return the address and a client for one context of the kubeconfig."""
        try:
            cluster, user = _context(self._kubeconfig, context)
            server = cluster["server"]
            if not isinstance(server, str) or not server.startswith("https://"):
                raise WebhookError(f"expected an https address as `server` in `{self._kubeconfig}`, found `{server}`")
            trust = _trust(cluster, user, Path(self._kubeconfig).parent)
        except (KeyError, TypeError, StopIteration, ValueError, OSError) as error:
            raise WebhookError(f"kubeconfig `{self._kubeconfig}` cannot be used: {error!r}") from None
        token = user.get("token")
        headers = {"authorization": f"Bearer {token}"} if isinstance(token, str) else {}
        return server, httpx.Client(verify=trust, timeout=self._timeout, headers=headers, trust_env=False)


def _context(file: str, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    read = read_paths([file])
    if read.diagnostics or not read.documents:
        raise ValueError(read.diagnostics[0].message if read.diagnostics else "it is empty")
    value = read.documents[0].value
    wanted = name or value["current-context"]
    context = _entry(value["contexts"], wanted)["context"]
    cluster = _entry(value["clusters"], context["cluster"])["cluster"]
    user = _entry(value.get("users") or [], context["user"])["user"] if context.get("user") else {}
    return cluster, user


def _entry(entries: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _contents(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = (_contents(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate and key:
        # The ssl module reads a certificate only from a file; this one is private and deleted at once.
        with tempfile.NamedTemporaryFile(prefix="tierwall-client-") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _contents(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """Return the contents of a named file, or of the kubeconfig's own `…-data`."""
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data, validate=True)
    return (folder / entry[name]).read_bytes() if entry.get(name) else b""
