"""With the ClusterRoles of `deploy/reader`, a real API server lets everything be listed that answers need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.labs.live_client import LiveClient, pod

pytestmark = pytest.mark.engine

# Commands that ask about one plane or about all, and the roles that they need.
COMMANDS = {
    "explain network --from readers/a --to readers/b --port 80": ("network",),
    "list": ("network",),
    "explain tool --gateway readers/g --backend readers/b --method initialize": ("tool",),
    "effective --all": ("gateway",),
    "can-i --list --as alice -n readers": ("api",),
    "can-i create pods --as alice -n readers": ("api",),
    "status": ("network", "tool", "gateway"),
    "diff --without NetworkPolicy/readers/shut": ("network", "tool", "gateway", "api"),
    "check": ("network", "tool", "gateway", "api"),
}
OBJECTS: list[dict[str, Any]] = [
    pod("readers", "a"),
    pod("readers", "b"),
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "shut", "namespace": "readers"},
        "spec": {"podSelector": {}},
    },
]


@pytest.fixture(scope="module")
def readers(live: LiveClient) -> LiveClient:
    """Users `reader-…`, each with one role, and some with several. The first worker creates them for all."""
    with live.lock():
        if live.request("GET", "/api/v1/namespaces/readers")[0] == 404:
            live.namespace("readers")
            roles = list(yaml.safe_load_all((ROOT / "deploy" / "reader" / "roles.yaml").read_text()))
            live.create(*roles, *OBJECTS, *map(_binding, roles))
    return live


def _binding(role: dict[str, Any]) -> dict[str, Any]:
    name, group = role["metadata"]["name"], "rbac.authorization.k8s.io"
    users = [name.replace("tierwall", "reader"), *_users_with(name.removeprefix("tierwall-"))]
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"readers-{name}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user} for user in users],
    }


def _user(planes: tuple[str, ...]) -> str:
    return f"reader-{'-'.join(planes)}"


def _users_with(plane: str) -> list[str]:
    return sorted({_user(planes) for planes in COMMANDS.values() if len(planes) > 1 and plane in planes})


def _forbidden(client: LiveClient, command: str, user: str) -> list[str]:
    words = [*command.split(), "--context", "admin", "--cluster-as", user]
    result = client.tierwall(*words, "-o", "json")
    assert result.returncode in (0, 1, 3, 4, 5), result.stderr
    if result.returncode == 1 and not result.stdout:
        # A name that does not exist: what could not be listed is said beside it.
        return ["refused"] if "may not list" in result.stderr else []
    document = json.loads(result.stdout)
    return [entry["kind"] for entry in document["notConsidered"] if entry["reason"] == "forbidden"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_roles_of_a_command_are_enough(readers: LiveClient, tmp_path: Path, command: str) -> None:
    assert _forbidden(readers, command, _user(COMMANDS[command])) == []


@pytest.mark.parametrize("command", ["list", "can-i create pods --as alice -n readers", "check"])
def test_without_a_role_what_is_missing_is_said(readers: LiveClient, command: str) -> None:
    assert _forbidden(readers, command, "reader-nobody") != []
