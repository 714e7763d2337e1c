"""The parts of objects that planes read, decoded straight from the API server's JSON (docs/clusters.md#reading).

Decoding only these takes a tenth of the time and of the memory of decoding everything. What is not named here is
dropped: `managedFields`, most of a pod, the status of what no plane looks at. `apiVersion` and `kind` are, too: events
of a watch have them and items of a list do not, and the same object must be the same from both.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType


class Metadata(Struct, rename="camel", omit_defaults=True, gc=False):
    """`metadata` without what changes no answer."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | UnsetType = UNSET
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Any] | None = None


class SpecObject(Struct, rename="camel", omit_defaults=True):
    """An object without its status: what controllers report about it changes often, and is not enforced."""

    metadata: Metadata
    spec: Any = UNSET
    # Roles, bindings and webhook configurations have no `spec`.
    rules: Any = UNSET
    aggregation_rule: Any = UNSET
    role_ref: Any = UNSET
    subjects: Any = UNSET
    webhooks: Any = UNSET


class DataObject(Struct, rename="camel", omit_defaults=True):
    """A Secret or ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None

    def __repr__(self) -> str:
        # A Secret must not get into a message or a log.
        return f"<{type(self).__name__} {self.metadata.namespace}/{self.metadata.name}>"


class ApiObject(SpecObject, rename="camel", omit_defaults=True):
    """An object of a kind that is kept whole."""

    status: Any = UNSET


class MetadataObject(Struct, rename="camel", omit_defaults=True):
    """An object of which only `metadata` matters: a Namespace, or a workload, which owns pods."""

    metadata: Metadata


class ContainerPort(Struct, rename="camel", omit_defaults=True, gc=False):
    """A port of a container."""

    container_port: int = 0
    name: str = ""
    protocol: str = ""
    host_port: int = 0


class Container(Struct, rename="camel", omit_defaults=True):
    """A container: its ports, and whether it runs as long as the pod does."""

    ports: list[ContainerPort] | None = None
    restart_policy: str = ""


class PodSpec(Struct, rename="camel", omit_defaults=True):
    """`spec` of a Pod, as far as connections depend on it."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    host_network: bool = False
    node_name: str = ""
    service_account_name: str = ""


class PodAddress(Struct, omit_defaults=True, gc=False):
    """An address of a pod."""

    ip: str = ""


class PodStatus(Struct, omit_defaults=True):
    """`status` of a Pod, as far as connections depend on it."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[PodAddress] | None = msgspec.field(default=None, name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")


class PodObject(Struct, rename="camel", omit_defaults=True):
    """A Pod, as far as connections depend on it."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class EnvironmentVariable(Struct, rename="camel", omit_defaults=True):
    """A variable of a container: what it refers to, and not its value."""

    value_from: Any = UNSET


class ReferringContainer(Container, rename="camel", omit_defaults=True):
    """A container with what it refers to."""

    env: list[EnvironmentVariable] | None = None
    env_from: list[Any] | None = None


class ReferringPodSpec(PodSpec, rename="camel", omit_defaults=True):
    """`spec` of a Pod, with what it refers to: the Node authorizer follows it (`api.authorizers.node`)."""

    containers: list[ReferringContainer] | None = None  # type: ignore[assignment]
    init_containers: list[ReferringContainer] | None = None  # type: ignore[assignment]
    ephemeral_containers: list[ReferringContainer] | None = None
    image_pull_secrets: list[Any] | None = None
    resource_claims: list[Any] | None = None
    volumes: list[Any] | None = None


class ReferringPodObject(PodObject, rename="camel", omit_defaults=True):
    """A Pod with what it refers to."""

    spec: ReferringPodSpec = msgspec.field(default_factory=ReferringPodSpec)


class NodeStatus(Struct, omit_defaults=True):
    """`status` of a Node: its addresses."""

    addresses: list[Any] | None = None


class NodeObject(Struct, rename="camel", omit_defaults=True):
    """A Node, as far as connections depend on it."""

    metadata: Metadata
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class DefinitionVersion(Struct, omit_defaults=True):
    """A version of a CustomResourceDefinition without its schema, which may be large."""

    name: str = ""
    served: bool = False
    storage: bool = False
    subresources: Any = UNSET


class DefinitionSpec(Struct, rename="camel", omit_defaults=True):
    """`spec` of a CustomResourceDefinition, as far as names of resources depend on it."""

    group: str = ""
    names: Any = UNSET
    scope: str = ""
    versions: list[DefinitionVersion] | None = None


class DefinitionObject(Struct, rename="camel", omit_defaults=True):
    """A CustomResourceDefinition: which resources there are."""

    metadata: Metadata
    spec: DefinitionSpec = msgspec.field(default_factory=DefinitionSpec)
