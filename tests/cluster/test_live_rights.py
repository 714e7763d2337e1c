"""Kinds that a user may not list are `forbidden` in answers; with --strict the exit code is 6 (docs/clusters.md)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tests.labs.live_client import LiveClient, pod
from tierwall.cli.main import root

pytestmark = pytest.mark.engine

ASK = ("explain", "network", "--from", "rights/web", "--to", "rights/db", "--port", "5432")
AS_DORA = ("--cluster-as", "dora", "--cluster-as-group", "developers")
DEVELOPERS = [("--context", "developer"), ("--context", "developer-certificate"), ("--context", "admin", *AS_DORA)]
CLUSTER_WIDE = {"AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"}


@pytest.fixture(scope="module")
def rights(live: LiveClient) -> LiveClient:
    """A cluster with two pods in a namespace of developers."""
    with live.lock():
        if live.request("GET", "/api/v1/namespaces/rights")[0] == 404:
            live.namespace("rights")
            live.grant("rights")
            live.create(pod("rights", "web", {}, "10.244.8.1"), pod("rights", "db", {}, "10.244.8.2", 5432))
    return live


def run(live: LiveClient, *arguments: str) -> Result:
    return CliRunner().invoke(root, [*arguments, "--kubeconfig", str(live.kubeconfig)], catch_exceptions=False)


def forbidden(result: Result) -> set[str]:
    """Return the kinds that an answer calls forbidden."""
    return {entry["kind"] for entry in json.loads(result.stdout)["notConsidered"] if entry["reason"] == "forbidden"}


@pytest.mark.parametrize("who", DEVELOPERS)
def test_a_developer_learns_what_could_change_the_answer(rights: LiveClient, who: tuple[str, ...]) -> None:
    """Pods and policies of their own namespace are read; policies of the whole cluster are not."""
    result = run(rights, *ASK, *who, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (0, "Allow")
    # A policy of another system, which developers may not list either.
    assert forbidden(result) == CLUSTER_WIDE | {"CiliumNetworkPolicy"}
    assert run(rights, *ASK, *who, "--strict").exit_code == 6


def test_an_administrator_may_list_everything(rights: LiveClient) -> None:
    result = run(rights, *ASK, "--context", "admin", "--strict", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["notConsidered"]) == (0, [])


def test_permissions_that_cannot_be_listed_are_named(rights: LiveClient) -> None:
    command = ("can-i", "list", "pods", "-n", "rights", "--as", "dora", "--as-group", "developers", "--strict")
    result = run(rights, *command, "--context", "developer", "-o", "json")
    assert result.exit_code == 6
    assert {"ClusterRole", "ClusterRoleBinding"} <= forbidden(result)
    assert run(rights, *command, "--context", "admin").exit_code == 0


def test_nobody_learns_that_the_pods_are_not_known(rights: LiveClient) -> None:
    """A user who may list nothing gets no answer, rather than the wrong one that there are no such pods."""
    result = run(rights, *ASK, "--context", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is a pod `web` in namespace `rights` is not known: you may not list Pods" in result.stderr


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (("--context", "stranger"), "does not accept the credential"),
        (("--context", "nobody", "--cluster-as", "root"), 'User "nils" cannot impersonate'),
    ],
)
def test_a_credential_that_is_refused_ends_with_one_sentence(
    rights: LiveClient, who: tuple[str, ...], words: str
) -> None:
    result = run(rights, *ASK, *who)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f"the API server at {rights.url}" in result.stderr
    assert words in result.stderr
