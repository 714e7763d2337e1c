"""The way to one API server as one user: what a context of a kubeconfig leads to (docs/clusters.md#kubeconfig).

Everything is checked as kubectl checks it before its first request. Relative paths start at the folder of the file in
which they stand. Without any kubeconfig, the ServiceAccount of the pod in which Tierwall runs is used.

No Python client reads a kubeconfig whole: all of them ignore `as` and `as-groups`, so they would read as somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from tierwall.cluster.kubeconfig import Kubeconfig, PlacedEntry, from_base64, kubeconfig_error
from tierwall.cluster.kubeconfig_entries import ClusterEntry, ConfidentialData, ContextEntry, PluginEntry, UserEntry
from tierwall.cluster.pem import PemData
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss
from tierwall.core.source import Position

Entry = TypeVar("Entry")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The name of a cluster's extension that is handed to plugins.
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Impersonation(Struct, frozen=True):
    """Whom to act as."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ClusterAccess(ConfidentialData, frozen=True):
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
    if not host or not port or not (folder / "token").is_file():
        return None
    namespace = environment.get("POD_NAMESPACE", "")
    if not namespace:
        with suppress(OSError, UnicodeDecodeError):
            namespace = (folder / "namespace").read_text().strip()
    authority = folder / "ca.crt"
    return ClusterAccess(
        context="",
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or "default",
        # As with kubectl, the authorities of the system count if there is no other.
        authority=PemData(file=authority) if authority.is_file() else PemData(),
        token_file=folder / "token",
    )


def find_access(
    context: str | None, kubeconfig: str | None, environment: Mapping[str, str], pod: Path = SERVICE_ACCOUNT
) -> ClusterAccess:
    """Return the way to the cluster that options and environment point at; InputError if they point at nothing.

    `pod` is the folder in which a pod finds its ServiceAccount.
    """
    config = Kubeconfig.find(kubeconfig, environment)
    if config.is_empty and not context and (access := in_cluster(environment, pod)) is not None:
        return access
    return context_access(config, context)


def impersonating(access: ClusterAccess, user: str | None, groups: Sequence[str] = ()) -> ClusterAccess:
    """Return the way to the same server as somebody else, as kubectl's `--as` and `--as-group`.

    As with kubectl, what is not given stays as the kubeconfig has it. InputError for groups without a user.
    """
    acting = access.impersonation
    acting = replace(acting, user=user or acting.user, groups=tuple(groups) or acting.groups)
    if acting.groups and not acting.user:
        raise kubeconfig_error("a group to act as needs a user to act as", "add --cluster-as USER")
    if not all(is_header_value(text) for text in (acting.user, *acting.groups)):
        raise kubeconfig_error("the user or group to act as has a line break or another control character in it")
    return replace(access, impersonation=acting)


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
    return _ContextReader(config, context).access()


def is_header_value(text: str) -> bool:
    """Whether a text can be sent as the value of a header."""
    return not any((character < " " and character != "\t") or character == "\x7f" for character in text)


def _listing(names: Mapping[str, object]) -> str:
    shown = ", ".join(f"`{name}`" for name in sorted(names)[:10])
    return f"choose from {shown}" if shown else ""


class _ContextReader:
    """Checks what a context leads to, as kubectl does before its first request."""

    def __init__(self, config: Kubeconfig, name: str) -> None:
        self._name = name
        self._problems: list[Diagnostic] = []
        context = config.contexts[name]
        self._context = context.value
        # Problems with what a context names are problems of the context.
        self._cluster = self._named(context, "cluster", config.clusters, context.value.cluster, ClusterEntry())
        self._user = self._named(context, "user", config.users, context.value.user, UserEntry())

    def access(self) -> ClusterAccess:
        cluster, user, context = self._cluster.value, self._user.value, self._context
        authority = self._pem(self._cluster, "certificate-authority", self._cluster_problem)
        certificate = self._pem(self._user, "client-certificate", self._user_problem)
        # A key without a certificate is of no use and does no harm.
        key = self._pem(self._user, "client-key", self._user_problem) if certificate else PemData()
        if self._cluster.text is not None:
            self._check_cluster(authority)
        self._check_user(certificate, key)
        server = self._server(bool(authority or certificate or cluster.insecure_skip_tls_verify))
        if self._problems:
            raise InputError(self._problems)
        plugin = user.plugin
        if plugin is not None and "/" in plugin.command:
            plugin = replace(plugin, command=str(self._user.folder / plugin.command))
        return ClusterAccess(
            context=self._name,
            server=server,
            namespace=context.namespace or "default",
            authority=authority,
            insecure=cluster.insecure_skip_tls_verify,
            server_name=cluster.tls_server_name,
            proxy_url=cluster.proxy_url,
            compressed=not cluster.disable_compression,
            certificate=certificate,
            key=key,
            token=user.token.rstrip(" \t"),
            token_file=self._user.folder / user.token_file if user.token_file else None,
            # As with kubectl, a password without a name is nobody's.
            basic=(user.username, user.password) if user.username else None,
            # A token is used as it is: the plugin would not be asked.
            plugin=None if user.token or user.token_file else plugin,
            plugin_config=next((item.extension for item in cluster.extensions if item.name == _EXEC_EXTENSION), None),
            impersonation=Impersonation(
                user.impersonated_user,
                user.impersonated_uid,
                user.impersonated_groups,
                tuple(user.impersonated_extra.items()),
            ),
        )

    def _named(
        self,
        context: PlacedEntry[ContextEntry],
        kind: str,
        entries: Mapping[str, PlacedEntry[Entry]],
        name: str,
        nothing: Entry,
    ) -> PlacedEntry[Entry]:
        entry = entries.get(name)
        # A context without a user asks as nobody; a name that is there must lead to something.
        if entry is None and (name or kind == "cluster"):
            problem = f"names the {kind} `{name}`, which does not exist" if name else f"names no {kind}"
            self._problem(f"context `{self._name}` {problem}", near_miss(name, entries), context.at)
        return entry or PlacedEntry(nothing)

    def _server(self, uses_tls: bool) -> str:
        """Return the address of the server, without a final slash."""
        text = self._cluster.value.server
        if not text or self._cluster.text is None:
            return ""
        has_scheme = "://" in text
        parts = _split(text if has_scheme else f"{'https' if uses_tls else 'http'}://{text}")
        if parts is None or parts.scheme not in ("http", "https") or (not has_scheme and parts.path.strip("/")):
            shown = text.rpartition("@")[2]
            self._cluster_problem(f"expected an http or https address as `server`, found `{shown}`")
            return ""
        if parts.username is not None or parts.password is not None:
            self._cluster_problem(
                "`server` has a user or password in it", "move them to `username` and `password` of the user"
            )
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"

    def _check_cluster(self, authority: PemData) -> None:
        cluster = self._cluster.value
        if not cluster.server:
            self._cluster_problem("there is no `server`")
        if authority and cluster.insecure_skip_tls_verify:
            self._cluster_problem(
                "`certificate-authority` and `insecure-skip-tls-verify` are both given", "remove one of them"
            )
        if not cluster.proxy_url:
            return
        proxy = _split(cluster.proxy_url)
        if proxy is None or proxy.scheme not in ("http", "https", "socks5"):
            # An address may have a password in it.
            scheme, colon, _ = cluster.proxy_url.partition("://")
            actual = f", found `{scheme}`" if colon and scheme not in ("http", "https", "socks5") else ""
            self._cluster_problem(f"expected an http, https or socks5 address as `proxy-url`{actual}")

    def _check_user(self, certificate: PemData, key: PemData) -> None:
        user = self._user.value
        if certificate and not key:
            self._user_problem("a client certificate needs `client-key`")
        if (user.token and (user.username or user.password)) or (user.token_file and user.username):
            self._user_problem("`token` and `username` are both given", "remove one of them")
        if user.auth_provider is not None:
            self._user_problem(
                f"the auth provider `{user.auth_provider.name}` is not supported", "use a credential plugin, `exec`"
            )
        if not user.impersonated_user and (
            user.impersonated_uid or user.impersonated_groups or user.impersonated_extra
        ):
            self._user_problem("`as-uid`, `as-groups` and `as-user-extra` need `as`")
        for name, texts in (
            ("token", (user.token,)),
            ("as", (user.impersonated_user,)),
            ("as-uid", (user.impersonated_uid,)),
            ("as-groups", user.impersonated_groups),
            ("as-user-extra", [text for values in user.impersonated_extra.values() for text in values]),
        ):
            if not all(is_header_value(text) for text in texts):
                self._user_problem(f"`{name}` has a line break or another control character in it")
        if user.plugin is not None:
            self._check_plugin(user.plugin)

    def _check_plugin(self, plugin: PluginEntry) -> None:
        versions = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
        if not plugin.command:
            self._user_problem("`exec` has no `command`")
        if plugin.api_version not in versions:
            self._user_problem(f"expected {' or '.join(versions)} as `exec.apiVersion`, found `{plugin.api_version}`")
        modes = ("Never", "IfAvailable", "Always")
        is_required = plugin.api_version == versions[0]
        if plugin.interactive_mode not in modes and (plugin.interactive_mode or is_required):
            self._user_problem(
                f"expected {', '.join(modes[:-1])} or {modes[-1]} as `exec.interactiveMode`, "
                f"found `{plugin.interactive_mode}`"
            )
        for variable in plugin.env:
            if not variable.name or "=" in variable.name:
                self._user_problem(f"expected the name of a variable in `exec.env`, found `{variable.name}`")

    def _pem(self, entry: PlacedEntry[Any], name: str, report: Callable[..., None]) -> PemData:
        attribute = name.replace("-", "_")
        path, data = getattr(entry.value, attribute), getattr(entry.value, f"{attribute}_data")
        if path and data:
            report(f"`{name}` and `{name}-data` are both given", "remove one of them")
        if data:
            # INVARIANT: a file with data that is not base64 has been refused.
            return PemData(from_base64(data) or b"")
        return PemData(file=entry.folder / path) if path else PemData()

    def _cluster_problem(self, message: str, hint: str = "") -> None:
        self._problem(f"cluster `{self._context.cluster}`: {message}", hint, self._cluster.at)

    def _user_problem(self, message: str, hint: str = "") -> None:
        self._problem(f"user `{self._context.user}`: {message}", hint, self._user.at)

    def _problem(self, message: str, hint: str, at: Position | None) -> None:
        self._problems.append(Diagnostic("TW040", f"kubeconfig: {message}", at, hint=hint))


def _split(url: str) -> SplitResult | None:
    """Split an address; None if it is not one."""
    if any(character <= " " or character == "\x7f" for character in url):
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
