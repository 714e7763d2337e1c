"""The way to one API server as one user: what a context of a kubeconfig leads to (docs/clusters.md#kubeconfig).

Everything is checked as kubectl checks it before its first request. Relative paths start at the folder of the file in
which they stand. Without any kubeconfig, the ServiceAccount of the pod in which Tierwall runs is used.

No Python client reads a kubeconfig whole: all of them ignore `as` and `as-groups`, so they would read as somebody else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.cluster.kubeconfig import Kubeconfig, PlacedEntry, kubeconfig_error
from tierwall.cluster.kubeconfig_entries import ClusterEntry, ContextEntry, PluginEntry, UserEntry
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The name of a cluster's extension that is handed to plugins.
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Impersonation(Struct, frozen=True):
    """Whom to act as."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class PemData(Struct, frozen=True):
    """Certificates or a key: bytes, or the file that has them, which may be replaced while Tierwall runs."""

    data: bytes = b""
    file: Path | None = None

    def read(self) -> bytes:
        """Return the bytes as they are now; InputError if the file cannot be read."""
        if self.file is None:
            return self.data
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise kubeconfig_error(f"`{self.file}` cannot be read: {error.strerror}") from None

    def __bool__(self) -> bool:
        return bool(self.data) or self.file is not None


class ClusterAccess(Struct, frozen=True):
    """Everything needed to talk to one API server as one user."""

    context: str
    server: str
    namespace: str
    authority: PemData = PemData()
    insecure: bool = False
    server_name: str = ""
    proxy_url: str = ""
    compressed: bool = True
    certificate: PemData = PemData()
    key: PemData = PemData()
    token: str = ""
    token_file: Path | None = None
    basic: tuple[str, str] | None = None
    plugin: PluginEntry | None = None
    # What a plugin is told about the cluster, if it asks for that.
    plugin_config: Any = None
    impersonation: Impersonation = Impersonation()


def in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterAccess | None:
    """Return the way to the API server of the pod in which Tierwall runs; None outside of a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (folder / "token").exists():
        return None
    namespace = environment.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            namespace = (folder / "namespace").read_text().strip()
        except OSError:
            namespace = ""
    return ClusterAccess(
        context="",
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or "default",
        authority=PemData(file=folder / "ca.crt"),
        token_file=folder / "token",
    )


def find_access(context: str | None, kubeconfig: str | None, environment: Mapping[str, str]) -> ClusterAccess:
    """Return the way to the cluster that options and environment point at; InputError if they point at nothing."""
    config = Kubeconfig.find(kubeconfig, environment)
    if not config.files and context is None and (access := in_cluster(environment)) is not None:
        return access
    return context_access(config, context)


def impersonating(access: ClusterAccess, user: str | None, groups: tuple[str, ...] = ()) -> ClusterAccess:
    """Return the way to the same server as somebody else, as kubectl's `--as` and `--as-group`.

    As with kubectl, what is not given stays as the kubeconfig has it. InputError for groups without a user.
    """
    acting = access.impersonation
    acting = msgspec.structs.replace(acting, user=user or acting.user, groups=tuple(groups) or acting.groups)
    if acting.groups and not acting.user:
        raise kubeconfig_error("a group to act as needs a user to act as", "add --cluster-as USER")
    return msgspec.structs.replace(access, impersonation=acting)


def context_access(config: Kubeconfig, name: str | None = None) -> ClusterAccess:
    """Return the way to the cluster of a context, or of the current one; InputError with all that is wrong."""
    context = name or config.current_context
    if not context:
        message = "no context is selected" if config.contexts else "there is no kubeconfig"
        hint = "name one with --context" if config.contexts else "set KUBECONFIG, or name a file with --kubeconfig"
        raise kubeconfig_error(message, hint)
    if context not in config.contexts:
        hint = near_miss(context, config.contexts) or _listing(config.contexts)
        raise kubeconfig_error(f"context `{context}` does not exist", hint)
    entry = config.contexts[context].value
    return _Checker(config, context, entry).access()


def _listing(names: Mapping[str, object]) -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(names)[:10])
    return f"choose from {shown}" if shown else ""


class _Checker:
    """Checks what a context leads to, as kubectl does before its first request."""

    def __init__(self, config: Kubeconfig, name: str, context: ContextEntry) -> None:
        self._config, self._name, self._context = config, name, context
        self._problems: list[Diagnostic] = []

    def access(self) -> ClusterAccess:
        config, context = self._config, self._context
        cluster = config.clusters.get(context.cluster)
        if cluster is None:
            self._problem(
                f"context `{self._name}` names the cluster `{context.cluster}`, which does not exist",
                near_miss(context.cluster, config.clusters),
            )
            cluster = PlacedEntry(ClusterEntry(server="https://localhost"), Path())
        user = config.users.get(context.user)
        if user is None and context.user:
            self._problem(
                f"context `{self._name}` names the user `{context.user}`, which does not exist",
                near_miss(context.user, config.users),
            )
        user = user or PlacedEntry(UserEntry(), Path())
        authority = self._pem(cluster, "certificate-authority", f"cluster `{context.cluster}`")
        certificate = self._pem(user, "client-certificate", f"user `{context.user}`")
        key = self._pem(user, "client-key", f"user `{context.user}`")
        self._check_cluster(cluster.value, authority)
        self._check_user(user.value, certificate, key)
        if self._problems:
            raise InputError(self._problems)
        return self._settings(cluster, user, authority, certificate, key)

    def _settings(
        self,
        cluster: PlacedEntry[ClusterEntry],
        user: PlacedEntry[UserEntry],
        authority: PemData,
        certificate: PemData,
        key: PemData,
    ) -> ClusterAccess:
        where, who = cluster.value, user.value
        uses_tls = bool(authority or certificate or where.insecure_skip_tls_verify)
        server = where.server.rstrip("/")
        if "://" not in server:
            server = f"{'https' if uses_tls else 'http'}://{server}"
        plugin = who.plugin
        if plugin is not None and "/" in plugin.command:
            plugin = msgspec.structs.replace(plugin, command=str(user.file.parent / plugin.command))
        return ClusterAccess(
            context=self._name,
            server=server,
            namespace=self._context.namespace or "default",
            authority=authority,
            insecure=where.insecure_skip_tls_verify,
            server_name=where.tls_server_name,
            proxy_url=where.proxy_url,
            compressed=not where.disable_compression,
            certificate=certificate,
            key=key,
            token=who.token,
            token_file=user.file.parent / who.token_file if who.token_file else None,
            basic=(who.username, who.password) if who.username or who.password else None,
            # A token is used as it is: the plugin would not be asked.
            plugin=None if who.token or who.token_file else plugin,
            plugin_config=next((item.extension for item in where.extensions if item.name == _EXEC_EXTENSION), None),
            impersonation=Impersonation(
                who.impersonated_user,
                who.impersonated_uid,
                who.impersonated_groups,
                tuple(who.impersonated_extra.items()),
            ),
        )

    def _check_cluster(self, cluster: ClusterEntry, authority: PemData) -> None:
        place = f"cluster `{self._context.cluster}`"
        if not cluster.server:
            self._problem(f"{place} has no `server`")
        elif "://" in cluster.server and not cluster.server.startswith(("https://", "http://")):
            self._problem(f"{place}: expected an http or https address as `server`, found `{cluster.server}`")
        if authority and cluster.insecure_skip_tls_verify:
            self._problem(f"{place} has a certificate authority and `insecure-skip-tls-verify`", "remove one of them")
        scheme = cluster.proxy_url.partition("://")[0]
        if cluster.proxy_url and scheme not in ("http", "https", "socks5", "socks5h"):
            self._problem(f"{place}: expected an http, https or socks5 address as `proxy-url`, found `{scheme}`")

    def _check_user(self, user: UserEntry, certificate: PemData, key: PemData) -> None:
        place = f"user `{self._context.user}`"
        # A key without a certificate is of no use and does no harm.
        if certificate and not key:
            self._problem(f"{place} has a client certificate without `client-key`")
        if (user.token or user.token_file) and (user.username or user.password):
            self._problem(f"{place} has a token and a user name", "keep one of them")
        if user.auth_provider is not None:
            self._problem(
                f"{place} uses the auth provider `{user.auth_provider.name}`, which Tierwall does not support",
                "use a credential plugin (`exec`)",
            )
        if not user.impersonated_user and (
            user.impersonated_uid or user.impersonated_groups or user.impersonated_extra
        ):
            self._problem(f"{place} has `as-uid`, `as-groups` or `as-user-extra` without `as`", "add `as`")
        if user.plugin is not None:
            self._check_plugin(user.plugin, place)

    def _check_plugin(self, plugin: PluginEntry, place: str) -> None:
        versions = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
        if not plugin.command:
            self._problem(f"{place}: `exec` has no `command`")
        if plugin.api_version not in versions:
            self._problem(
                f"{place}: expected {' or '.join(versions)} as `exec.apiVersion`, found `{plugin.api_version}`"
            )
        modes = ("Never", "IfAvailable", "Always")
        is_required = plugin.api_version == versions[0]
        if plugin.interactive_mode not in modes and (plugin.interactive_mode or is_required):
            self._problem(
                f"{place}: expected {', '.join(modes[:-1])} or {modes[-1]} as `exec.interactiveMode`, "
                f"found `{plugin.interactive_mode}`"
            )
        for variable in plugin.env:
            if not variable.name:
                self._problem(f"{place}: an entry of `exec.env` has no `name`")

    def _pem(self, entry: PlacedEntry[Any], name: str, place: str) -> PemData:
        attribute = name.replace("-", "_")
        path, data = getattr(entry.value, attribute), getattr(entry.value, f"{attribute}_data")
        if path and data:
            self._problem(f"{place} has both `{name}` and `{name}-data`", "remove one of them")
        if data:
            try:
                # Line breaks are allowed, as in Go's decoder.
                return PemData(base64.b64decode(data.replace("\n", "").replace("\r", ""), validate=True))
            except (binascii.Error, ValueError):
                self._problem(f"{place}: `{name}-data` is not base64")
                return PemData(b"-")
        return PemData(file=entry.file.parent / path) if path else PemData()

    def _problem(self, message: str, hint: str = "") -> None:
        self._problems.append(Diagnostic("TW040", message, hint=hint))
