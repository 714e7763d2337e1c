"""The Deployment and the Service of a Gateway of our class, made of a template (docs/fleet.md#what-a-gateway-gets).

Names and labels are those of GEP-1762, and `spec.infrastructure` of the Gateway adds labels and annotations. The pods
fulfil the Pod Security profile `restricted`. All functions are pure; `infrastructure_part` writes what they return.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.attach.listener import gateway_listeners
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.gateway_class import GATEWAY_LABEL, short_name

MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "tierwall-controller"
CLASS_LABEL = "gateway.networking.k8s.io/gateway-class-name"
NAME_LABEL, ENVOY_NAME = "app.kubernetes.io/name", "tierwall-envoy"
# What was last written: a digest of it, and the annotations that are ours.
RECORD = "tierwall.io/infrastructure"
AUTHORITY = "tierwall.io/authority"
XDS_PORT, CERTIFICATES_PORT, FIRST_HEALTH_PORT = 18000, 18001, 15020
Value = dict[str, Any]


class InfrastructureTemplate(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The common parts of the Envoys of all Gateways: the JSON file of `--envoy-template`."""

    image: str
    # The DNS name of the controllers, which is in their certificates.
    controller: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[Value, ...] = ()
    # None: somebody else scales, such as a HorizontalPodAutoscaler.
    replicas: int | None = 2
    service_type: str = "LoadBalancer"
    resources: Value = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Value, ...] = ()
    # None: the platform chooses, as OpenShift does.
    run_as_user: int | None = None


def read_template(text: bytes) -> InfrastructureTemplate:
    """Read a template; ValueError says what is wrong with it."""
    return msgspec.json.decode(text, type=InfrastructureTemplate)


def infrastructure_name(gateway: Resource) -> str:
    """Return the name of a Gateway's Deployment and Service: those of the Gateway and of its class."""
    return short_name(f"{gateway.name}-{gateway.spec.get('gatewayClassName')}".replace(".", "-"))


def gateway_ports(snapshot: Snapshot, gateway: Resource) -> tuple[int, ...]:
    """Return the ports of a Gateway's listeners, those of its ListenerSets included."""
    listeners = gateway_listeners(snapshot, gateway)
    return tuple(sorted({listener.port for listener in listeners if listener.protocol != "UDP"}))


def wanted_objects(
    snapshot: Snapshot, gateway: Resource, template: InfrastructureTemplate, authority: str
) -> tuple[Value, ...]:
    """Return the Deployment and the Service of a Gateway; nothing if it has no listener.

    `authority` are the CA certificates of controllers. A new one replaces the pods, one by one.
    """
    ports = gateway_ports(snapshot, gateway)
    if not ports:
        return ()
    objects = _deployment(gateway, template, ports, authority), _service(gateway, template, ports)
    return tuple(map(_recorded, objects))


def is_ours(value: Mapping[str, Any], gateway_uid: str = "") -> bool:
    """Whether an object is one that a controller made, for this Gateway if one is given."""
    metadata = nested_map(value, "metadata")
    owners = metadata.get("ownerReferences") or ()
    return nested_map(metadata, "labels").get(MANAGED_BY) == OURS and any(
        owner.get("kind") == "Gateway" and owner.get("uid") == (gateway_uid or owner.get("uid"))
        for owner in owners
        if isinstance(owner, dict)
    )


def owner_uid(value: Mapping[str, Any]) -> str:
    """Return the uid of the Gateway that an object of ours belongs to."""
    owners = nested_map(value, "metadata").get("ownerReferences") or ()
    return next((owner.get("uid", "") for owner in owners if owner.get("kind") == "Gateway"), "")


def updated(actual: Value, wanted: Value) -> Value | None:
    """Return an object as it should be written; None if it is right. What others have added to it stays."""
    record = wanted["metadata"]["annotations"][RECORD]
    annotations = nested_map(nested_map(actual, "metadata"), "annotations")
    if annotations.get(RECORD) == record and _covers(actual, wanted):
        return None
    metadata, spec = dict(actual["metadata"]), dict(wanted["spec"])
    metadata["labels"] = wanted["metadata"]["labels"]
    metadata["ownerReferences"] = wanted["metadata"]["ownerReferences"]
    before = _recorded_annotations(annotations)
    metadata["annotations"] = {key: value for key, value in annotations.items() if key not in before} | wanted[
        "metadata"
    ]["annotations"]
    if wanted["kind"] == "Service":
        spec = _service_spec(actual["spec"], spec)
    else:
        spec["selector"] = actual["spec"]["selector"]
        if "replicas" not in spec and "replicas" in actual["spec"]:
            spec["replicas"] = actual["spec"]["replicas"]
    return {**actual, "metadata": metadata, "spec": spec}


def _service_spec(actual: Value, wanted: Value) -> Value:
    """Return the spec of a Service: its addresses stay, and its node ports as long as its type does."""
    if actual.get("type") != wanted["type"]:
        addresses = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
        return {key: actual[key] for key in addresses if key in actual} | wanted
    nodes = {port.get("port"): port["nodePort"] for port in actual.get("ports", ()) if port.get("nodePort")}
    ports = [port | ({"nodePort": nodes[port["port"]]} if port["port"] in nodes else {}) for port in wanted["ports"]]
    return {**actual, **wanted, "ports": ports}


def service_addresses(snapshot: Snapshot, gateway: Resource) -> tuple[tuple[str, str], ...]:
    """Return the addresses of a Gateway with their types: of its load balancer, or else of its Service."""
    service = snapshot.get("", "Service", gateway.namespace, infrastructure_name(gateway))
    if service is None or not is_ours(service.value, str(gateway.metadata.get("uid"))):
        return ()
    balancer = nested_map(nested_map(service.value, "status"), "loadBalancer")
    addresses: list[tuple[str, str]] = []
    for ingress in balancer.get("ingress") or ():
        if ingress.get("ip"):
            addresses.append(("IPAddress", str(ingress["ip"])))
        elif ingress.get("hostname"):
            addresses.append(("Hostname", str(ingress["hostname"])))
    if not addresses and service.spec.get("clusterIP") not in (None, "", "None"):
        addresses.append(("IPAddress", str(service.spec["clusterIP"])))
    return tuple(addresses)


def _deployment(gateway: Resource, template: InfrastructureTemplate, ports: tuple[int, ...], authority: str) -> Value:
    health = next(port for port in range(FIRST_HEALTH_PORT, 65536) if port not in ports)
    labels, annotations = _labels(gateway, template), _annotations(gateway, template)
    pod: Value = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            # Listeners may have ports below 1024.
            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _selector(gateway)},
            }
        ],
        "containers": [_container(gateway, template, ports, health)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            {
                "name": "identity",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"audience": "tierwall", "expirationSeconds": 3600, "path": "token"}},
                        {
                            "downwardAPI": {
                                "items": [
                                    {
                                        "path": "ca.crt",
                                        "fieldRef": {"fieldPath": f"metadata.annotations['{AUTHORITY}']"},
                                    }
                                ]
                            }
                        },
                    ]
                },
            },
        ],
    }
    if template.run_as_user is not None:
        pod["securityContext"]["runAsUser"] = template.run_as_user
    for field, chosen in (
        ("nodeSelector", template.node_selector),
        ("tolerations", list(template.tolerations)),
        ("imagePullSecrets", list(template.image_pull_secrets)),
    ):
        if chosen:
            pod[field] = chosen
    spec: Value = {
        "selector": {"matchLabels": _selector(gateway)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels, "annotations": annotations | {AUTHORITY: authority}}, "spec": pod},
    }
    if template.replicas is not None:
        spec["replicas"] = template.replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(gateway, labels, annotations),
        "spec": spec,
    }


def _container(gateway: Resource, template: InfrastructureTemplate, ports: tuple[int, ...], health: int) -> Value:
    host = template.controller
    return {
        "name": "envoy",
        "image": template.image,
        "imagePullPolicy": template.image_pull_policy,
        "args": [
            "envoy",
            f"--gateway={gateway.namespace}/{gateway.name}",
            f"--xds={host}:{XDS_PORT}",
            f"--certificates={host}:{CERTIFICATES_PORT}",
            "--ca=/var/run/tierwall/ca.crt",
            "--token=/var/run/tierwall/token",
            f"--http=0.0.0.0:{health}",
        ],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [
            *({"name": f"port-{port}", "containerPort": port, "protocol": "TCP"} for port in ports),
            {"name": "health", "containerPort": health, "protocol": "TCP"},
        ],
        "startupProbe": {
            "httpGet": {"path": "/livez", "port": "health"},
            "periodSeconds": 2,
            "failureThreshold": 30,
        },
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "health"}, "periodSeconds": 20, "timeoutSeconds": 5},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5, "timeoutSeconds": 5},
        # Whoever balances load learns that the pod goes before it does.
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": template.resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "identity", "mountPath": "/var/run/tierwall", "readOnly": True},
        ],
    }


def _service(gateway: Resource, template: InfrastructureTemplate, ports: tuple[int, ...]) -> Value:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(gateway, _labels(gateway, template), _annotations(gateway, template)),
        "spec": {
            "type": template.service_type,
            "selector": _selector(gateway),
            "ports": [{"name": f"port-{port}", "port": port, "targetPort": port, "protocol": "TCP"} for port in ports],
        },
    }


def _selector(gateway: Resource) -> dict[str, str]:
    return {NAME_LABEL: ENVOY_NAME, GATEWAY_LABEL: short_name(gateway.name)}


def _labels(gateway: Resource, template: InfrastructureTemplate) -> dict[str, str]:
    fixed = {**_selector(gateway), MANAGED_BY: OURS, CLASS_LABEL: short_name(str(gateway.spec.get("gatewayClassName")))}
    return template.labels | _texts(nested_map(gateway.spec, "infrastructure").get("labels")) | fixed


def _annotations(gateway: Resource, template: InfrastructureTemplate) -> dict[str, str]:
    chosen = _texts(nested_map(gateway.spec, "infrastructure").get("annotations"))
    both = template.annotations | chosen
    return {key: value for key, value in both.items() if key not in (RECORD, AUTHORITY)}


def _texts(value: object) -> dict[str, str]:
    """Return the texts of a map; nothing else can be a label or an annotation."""
    entries = value.items() if isinstance(value, dict) else ()
    return {key: text for key, text in entries if isinstance(key, str) and isinstance(text, str)}


def _metadata(gateway: Resource, labels: dict[str, str], annotations: dict[str, str]) -> Value:
    owner = {
        "apiVersion": gateway.api_version,
        "kind": "Gateway",
        "name": gateway.name,
        "uid": gateway.metadata.get("uid"),
        "controller": True,
    }
    return {
        "name": infrastructure_name(gateway),
        "namespace": gateway.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
    }


def _recorded(value: Value) -> Value:
    """Return an object with a record of itself."""
    digest = sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
    metadata = value["metadata"]
    record = json.dumps({"digest": digest, "annotations": sorted(metadata["annotations"])})
    return {**value, "metadata": {**metadata, "annotations": metadata["annotations"] | {RECORD: record}}}


def _recorded_annotations(annotations: Mapping[str, str]) -> frozenset[str]:
    try:
        return frozenset(json.loads(annotations.get(RECORD, "{}")).get("annotations", ()))
    except (ValueError, AttributeError, TypeError):
        return frozenset()


def _covers(actual: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is there. The API server adds defaults, and has its own form of quantities."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return all(
            key == "resources" or (key in actual and _covers(actual[key], value)) or value in ({}, [])
            for key, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(actual, list):
        return len(wanted) == len(actual) and all(map(_covers, actual, wanted))
    return bool(actual == wanted)
