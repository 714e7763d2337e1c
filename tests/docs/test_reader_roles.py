"""The ClusterRoles of `deploy/reader` permit what reading each plane needs, and no more (docs/clusters.md#permissions).

`pytest --renew tests/docs/test_reader_roles.py` writes them anew after a change of what planes read.
"""

from __future__ import annotations

import pytest
import yaml

from tests import ROOT
from tierwall.cluster.wanted import wanted_kinds
from tierwall.resources.kinds.registry import all_kinds

FILE = ROOT / "deploy" / "reader" / "roles.yaml"
# The planes of each role, as commands ask about them.
ROLES = {
    "network": ("network", "ways"),
    "tool": ("tool",),
    "gateway": ("gateway",),
    "api": ("api", "node", "aggregation"),
}
HEADER = "# What Tierwall lists in a cluster, by plane: docs/clusters.md#permissions. Nothing is ever written.\n"
_PLURALS = {(kind.group, kind.kind): kind.plural for kind in all_kinds()} | {
    ("consul.hashicorp.com", "ServiceIntentions"): "serviceintentions",
    ("k8s.cni.cncf.io", "MultiNetworkPolicy"): "multi-networkpolicies",
    ("k8s.cni.cncf.io", "NetworkAttachmentDefinition"): "network-attachment-definitions",
    ("agentgateway.dev", "AgentgatewayParameters"): "agentgatewayparameters",
}


def plural(group: str, kind: str) -> str:
    """Return the plural of a kind: the one that is known, or as Kubernetes forms it by default."""
    name = kind.lower()
    if kind == "*" or (group, kind) in _PLURALS:
        return _PLURALS.get((group, kind), kind)
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def role(name: str, planes: tuple[str, ...]) -> dict[str, object]:
    """Return the role that lets everything be listed that questions about some planes need."""
    groups: dict[str, set[str]] = {}
    for group, kind in wanted_kinds(planes):
        groups.setdefault(group, set()).add(plural(group, kind))
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"tierwall-{name}"},
        "rules": [
            {"apiGroups": [group], "resources": ["*"] if "*" in plurals else sorted(plurals), "verbs": ["list"]}
            for group, plurals in sorted(groups.items())
        ],
    }


def test_the_roles_are_what_planes_read(renew: bool) -> None:
    roles = [role(name, planes) for name, planes in ROLES.items()]
    text = HEADER + "---\n".join(yaml.safe_dump(value, sort_keys=False, default_flow_style=None) for value in roles)
    if renew:
        FILE.write_text(text)
    assert FILE.read_text() == text


@pytest.mark.parametrize("name", ROLES)
def test_no_role_permits_secrets_or_writing(name: str) -> None:
    roles = {value["metadata"]["name"]: value for value in yaml.safe_load_all(FILE.read_text())}
    rules = roles[f"tierwall-{name}"]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list"}
    (core,) = (rule for rule in rules if rule["apiGroups"] == [""])
    assert not {"secrets", "*"} & set(core["resources"])
    assert not any("*" in rule["apiGroups"] for rule in rules)
