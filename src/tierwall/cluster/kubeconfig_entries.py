"""The entries of a kubeconfig file, with the names and types of its format (`v1.Config` of client-go)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class ConfidentialData(Struct, frozen=True):
    """Something that may hold tokens, keys or passwords: it never prints what it holds."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class NamedExtension(ConfidentialData, frozen=True):
    """One extension of a cluster's entry."""

    name: str = ""
    extension: Any = None


class ClusterEntry(ConfidentialData, frozen=True, rename="kebab"):
    """`clusters[].cluster`: where the API server is, and how to know that it is the right one."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[NamedExtension, ...] = ()


class PluginVariable(ConfidentialData, frozen=True):
    """An environment variable of a credential plugin."""

    name: str = ""
    value: str = ""


class PluginEntry(ConfidentialData, frozen=True, rename="camel"):
    """`users[].user.exec`: a program that prints credentials."""

    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[PluginVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProviderEntry(ConfidentialData, frozen=True):
    """`users[].user.auth-provider`: credentials that kubectl once had built in."""

    name: str = ""


class UserEntry(ConfidentialData, frozen=True, rename="kebab"):
    """`users[].user`: credentials, and whom to act as."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    impersonated_user: str = field(default="", name="as")
    impersonated_uid: str = field(default="", name="as-uid")
    impersonated_groups: tuple[str, ...] = field(default=(), name="as-groups")
    impersonated_extra: dict[str, tuple[str, ...]] = field(default_factory=dict, name="as-user-extra")
    username: str = ""
    password: str = ""
    auth_provider: AuthProviderEntry | None = None
    plugin: PluginEntry | None = field(default=None, name="exec")


class ContextEntry(Struct, frozen=True):
    """`contexts[].context`: a cluster, a user, and the namespace of names without one."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(ConfidentialData, frozen=True):
    """One of `clusters`."""

    name: str = ""
    cluster: ClusterEntry = ClusterEntry()


class NamedUser(ConfidentialData, frozen=True):
    """One of `users`."""

    name: str = ""
    user: UserEntry = UserEntry()


class NamedContext(Struct, frozen=True):
    """One of `contexts`."""

    name: str = ""
    context: ContextEntry = ContextEntry()


class KubeconfigDocument(ConfidentialData, frozen=True, rename="kebab"):
    """One kubeconfig file."""

    api_version: str = field(default="", name="apiVersion")
    kind: str = ""
    current_context: str = ""
    clusters: tuple[NamedCluster, ...] = ()
    users: tuple[NamedUser, ...] = ()
    contexts: tuple[NamedContext, ...] = ()
