"""An installed definition that is newer than Tierwall refuses no object and opens nothing that a policy guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.worlds import gateway_objects as gateway
from tests.worlds import tool_objects as tool
from tests.worlds.api_fakes import document
from tests.worlds.network_objects import EVERYBODY, admin, namespace, pod, rule
from tests.worlds.newer_definitions import newer
from tierwall.cli.main import root
from tierwall.network.model.model import network_model
from tierwall.network.question import NetworkQuestion
from tierwall.resources.load import load_objects, load_text
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admission_problems, is_understood, is_valid, unknown_parts
from tierwall.serve.authorizer.policies import policy_set_of
from tierwall.serve.follower import problems as kept_out_by
from tierwall.world import World

Object = dict[str, Any]
SHOP = [namespace("shop"), pod("shop", "web", app="web"), pod("shop", "db", app="db")]
ADMIN = "policy.networking.k8s.io", "AdminNetworkPolicy"


def snapshot(*objects: Object) -> Snapshot:
    return Snapshot.of(load_objects(objects))


def checked(folder: Path, *objects: Object) -> int:
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    return CliRunner().invoke(root, ["check", str(folder)]).exit_code


def test_check_accepts_a_gateway_and_warns_about_a_policy(tmp_path: Path) -> None:
    assert checked(tmp_path, newer("Gateway"), gateway.gateway(colour="red")) == 0
    assert checked(tmp_path, newer("Gateway"), gateway.gateway(color="red")) == 4
    deny = rule("Deny", 80)
    assert checked(tmp_path, newer("AdminNetworkPolicy"), *SHOP, admin("a", deny)) == 0
    assert checked(tmp_path, newer("AdminNetworkPolicy"), *SHOP, admin("a", deny, colour="red")) == 4


def test_a_policy_is_valid_but_not_understood() -> None:
    these = snapshot(newer("AdminNetworkPolicy"), admin("a", rule("Deny"), colour="red"), admin("b", rule("Deny")))
    unknown, known = these.of_kind(*ADMIN)
    assert admission_problems(these, known) == ()
    (warning,) = admission_problems(these, unknown)
    assert (warning.code, str(warning.severity), warning.hint) == ("TW112", "warning", "the policy fails closed")
    assert is_valid(these, unknown)
    assert not is_understood(these, unknown)
    assert [problem.path for problem in unknown_parts(these, unknown)] == [("spec", "colour")]


@pytest.mark.parametrize(
    "objects",
    [
        [newer("Gateway"), gateway.gateway(colour="red")],
        [newer("AdminNetworkPolicy"), admin("a", rule("Deny"), colour="red")],
    ],
)
def test_a_follower_accepts_objects_that_the_installed_definition_admits(objects: list[Object]) -> None:
    loaded = load_text(yaml.safe_dump_all(objects), "objects.yaml")
    assert kept_out_by(loaded).errors == ()
    assert kept_out_by(load_text(yaml.safe_dump_all(objects[1:]), "objects.yaml")).errors != ()


def verdict(*objects: Object) -> str:
    question = NetworkQuestion(source="shop/db", to="shop/web", port=80)
    return str(World(snapshot(*SHOP, *objects)).ask(question).verdict)


DENY_OTHERS = rule("Deny", pods={"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "other"}}})


@pytest.mark.parametrize("action", ["Allow", "Pass", "Deny"])
def test_a_rule_with_an_unknown_field_fails_closed(action: str) -> None:
    definition = newer("AdminNetworkPolicy", "ingress", "items")
    below = admin("default", rule("Deny" if action == "Allow" else "Allow"))
    other = DENY_OTHERS if action == "Deny" else rule(action)
    opposite = verdict(definition, admin("a", other), below)
    assert opposite == "Allow"
    assert verdict(definition, admin("a", {**other, "colour": "red"}), below) == "Deny"
    # Another policy, and another rule of the same policy, are as they were.
    before = admin("b", rule("Allow"), priority=1)
    assert verdict(definition, before, admin("a", {**other, "colour": "red"}), below) == "Allow"
    assert verdict(definition, admin("a", rule("Allow"), {**other, "colour": "red"}), below) == "Allow"


def test_a_policy_with_an_unknown_field_fails_closed() -> None:
    definition = newer("AdminNetworkPolicy")
    below = admin("default", rule("Deny"))
    assert verdict(definition, admin("a", rule("Allow")), below) == "Allow"
    assert verdict(definition, admin("a", rule("Allow"), colour="red"), below) == "Deny"
    assert verdict(definition, admin("a", rule("Pass"), colour="red")) == "Deny"


def test_a_policy_with_an_unknown_part_of_its_subject_selects_every_pod() -> None:
    definition = newer("AdminNetworkPolicy", "subject", "pods")
    pods = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "nobody"}}}
    deny = rule("Deny")
    assert verdict(definition, admin("a", deny, subject={"pods": pods})) == "Allow"
    assert verdict(definition, admin("a", deny, subject={"pods": {**pods, "colour": "red"}})) == "Deny"


def test_a_policy_of_an_unknown_version_closes_every_rule() -> None:
    definition = newer("AdminNetworkPolicy")
    version = definition["spec"]["versions"][0]
    definition["spec"]["versions"].append({**version, "name": "v2", "storage": False})
    later = {**admin("a", DENY_OTHERS, subject=EVERYBODY), "apiVersion": "policy.networking.k8s.io/v2"}
    assert verdict(definition, later) == "Deny"
    these = snapshot(definition, later)
    assert kept_out_by(load_text(yaml.safe_dump_all([definition, later]), "objects.yaml")).errors == ()
    (read,) = network_model(these).policies
    assert "no matches for kind" in read.closed


def test_more_unknown_fields_than_are_listed_close_every_rule() -> None:
    definition = newer("AdminNetworkPolicy", "ingress", "items", "ports", "items", "portNumber")
    ports = [{"portNumber": {"port": port, "colour": "red"}} for port in range(1000, 1100)]
    few, full = ({**rule("Allow"), "ports": listed} for listed in (ports[:1], ports))
    below = admin("default", rule("Deny"))
    assert verdict(definition, admin("a", few, rule("Allow")), below) == "Allow"
    assert verdict(definition, admin("a", full, full, full, rule("Allow")), below) == "Deny"


def test_an_access_policy_with_an_unknown_field_closes_its_target_alone() -> None:
    definition = newer("XAccessPolicy")
    rules = [{"source": tool.spiffe(), "authorization": tool.mcp(tool.calls("add"))}]
    closed, other = tool.v1("p", tool.on_backend(), *rules), tool.v1("q", tool.on_backend("other"), *rules)
    where = [tool.gateway(), tool.backend(), tool.backend("other"), tool.route("r", "prod-gateway", "payment-service")]
    where += [tool.route("s", "prod-gateway", "other")]
    objects = [definition, *where, closed, other]
    asked = {"tool": "add"}
    assert tool.verdict(objects, **asked, backend="prod/payment-service") == "Allow"
    closed["spec"]["colour"] = "red"
    assert tool.verdict(objects, **asked, backend="prod/payment-service") == "Deny"
    assert tool.verdict(objects, **asked, backend="prod/other") == "Allow"


def test_an_authorization_policy_with_an_unknown_field_fails_for_every_request() -> None:
    question = {"verb": "get", "version": "v1", "resource": "pods", "namespace": "dev", "user": "bob"}

    def policy(name: str, effect: str, expression: str, **more: str) -> Object:
        spec = {"effect": effect, "expression": expression, **more}
        head = {"apiVersion": "tierwall.io/v1alpha1", "kind": "ClusterAuthorizationPolicy"}
        return {**head, "metadata": {"name": name}, "spec": spec}

    def answered(*policies: Object) -> str:
        these = snapshot(newer("ClusterAuthorizationPolicy"), *policies)
        assert policy_set_of(these).policies == len(policies)
        return str(document(these, question)["verdict"])

    def unknown(effect: str, expression: str) -> Object:
        return policy("unknown", effect, expression, colour="red")

    allow = policy("a", "Allow", "true")
    assert answered(allow) == "Allow"
    assert answered(unknown("Allow", "true")) == "NoOpinion"
    assert answered(allow, unknown("Allow", "true")) == "Allow"
    assert answered(allow, policy("b", "Deny", "false")) == "Allow"
    assert answered(allow, unknown("Deny", "false")) == "Deny"


def test_a_gateway_policy_with_an_unknown_field_takes_no_part_and_the_answer_says_so() -> None:
    timeout = {"timeouts": {"request": "5s"}}
    plain, other = (
        gateway.policy("p", "Gateway/gw", traffic=timeout),
        gateway.policy("q", "HTTPRoute/route", traffic=timeout),
    )
    unknown = gateway.policy("p", "Gateway/gw", traffic=timeout, colour="red")
    definition = newer("AgentgatewayPolicy")
    place = {"gateway": "ns/gw", "route": "HTTPRoute/ns/route"}
    assert gateway.settled(gateway.answer(definition, plain, **place), "traffic.timeouts") == "p"
    answer = gateway.answer(definition, unknown, **place)
    assert gateway.settled(answer, "traffic.timeouts") is None
    assert "AgentgatewayPolicy/ns/p uses fields or values that Tierwall does not know and takes no part" in str(
        answer["notes"]
    )
    assert gateway.settled(gateway.answer(definition, unknown, other, **place), "traffic.timeouts") == "q"
