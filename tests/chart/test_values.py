"""Values of the chart: each one is documented and has an effect, and unknown ones are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest
import yaml

from tests.labs.chart import CHART, EVERYTHING, OTHER_APIS, RenderError, arguments, helm, rendered, rendered_text
from tierwall.analyze.change_findings import WORST_FIRST
from tierwall.cli.main import root

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
# Values that take a map of the user's own keys.
FREE = {"labels", "annotations", "nodeSelector", "requests", "limits", "seccompProfile"}

# Another value for every value of the chart, and what it puts into the manifests, or takes out of them.
GONE, REFUSED = "gone: ", "refused: "
OTHERS: dict[str, tuple[Any, str]] = {
    "image.name": ("registry.example/tierwall", 'image: "registry.example/tierwall:'),
    "image.tag": ("1.2.3", ":1.2.3"),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always"),
    "image.pullSecrets": (["pull-me"], '- {name: "pull-me"}'),
    "controller.enabled": (False, "gone: kind: PodDisruptionBudget\nmetadata:\n  name: tierwall-controller"),
    "controller.replicas": (5, "replicas: 5"),
    "controller.resources": ({"limits": {"cpu": "3"}}, 'cpu: "3"'),
    "controller.tolerations": ([{"key": "taint-c", "operator": "Exists"}], "key: taint-c"),
    "controller.extraArgs": (["--lease-duration=30s"], "--lease-duration=30s"),
    "nodeAgent.enabled": (False, "gone: kind: DaemonSet"),
    "nodeAgent.resources": ({"limits": {"cpu": "4"}}, 'cpu: "4"'),
    "nodeAgent.tolerations": ([{"key": "taint-n", "operator": "Exists"}], "key: taint-n"),
    "nodeAgent.exemptProbes": (False, "gone: - --exempt-probes"),
    "nodeAgent.extraArgs": (["--unknown-pods=open"], "--unknown-pods=open"),
    "authorizer.enabled": (False, "gone: name: tierwall-authorizer"),
    "authorizer.replicas": (7, "replicas: 7"),
    "authorizer.resources": ({"limits": {"cpu": "5"}}, 'cpu: "5"'),
    "authorizer.tolerations": ([{"key": "taint-a", "operator": "Exists"}], "key: taint-a"),
    "authorizer.extraArgs": (["--settle=5"], "--settle=5"),
    "authorizer.secretName": ("my-pki", 'secretName: "my-pki"'),
    "authorizer.clusterIP": ("10.96.0.77", 'clusterIP: "10.96.0.77"'),
    "gatewayClass.enabled": (False, "gone: kind: GatewayClass"),
    "gatewayClass.image": ({"name": "registry.example/envoy", "tag": "9"}, '"image":"registry.example/envoy:9"'),
    "gatewayClass.replicas": (11, '"replicas":11'),
    "gatewayClass.resources": ({"limits": {"cpu": "6"}}, '"cpu":"6"'),
    "gatewayClass.tolerations": ([{"key": "taint-g"}], "taint-g"),
    "gatewayClass.nodeSelector": ({"edge": "yes"}, '"nodeSelector":{"edge":"yes"}'),
    "gatewayClass.labels": ({"team": "edge"}, '"labels":{"team":"edge"}'),
    "gatewayClass.annotations": ({"lb": "internal"}, '"annotations":{"lb":"internal"}'),
    "gatewayClass.serviceType": ("NodePort", '"serviceType":"NodePort"'),
    "gatewayNamespaces": (["edge"], "--gateway-namespace=edge"),
    "warnings.enabled": (False, "gone: kind: ValidatingWebhookConfiguration"),
    "warnings.refuse": (["TW201"], "--refuse=TW201"),
    "warnings.revealAdminPolicies": (True, "--reveal-admin-policies"),
    "certificates.self": (False, "refused: set self to true, or secretName"),
    "certificates.secretName": ("my-certificates", "--webhook-cert=/etc/tierwall/certificates/tls.crt"),
    "metrics.serviceMonitor.enabled": (False, "gone: kind: ServiceMonitor"),
    "metrics.serviceMonitor.interval": ("7s", "interval: 7s"),
    "metrics.serviceMonitor.labels": ({"release": "prom"}, "release: prom"),
    "networkPolicies.enabled": (False, "gone: kind: NetworkPolicy"),
    "networkPolicies.apiServers": (["192.0.2.0/24"], '- {ipBlock: {cidr: "192.0.2.0/24"}}'),
    "networkPolicies.apiServerPorts": ([16443], "- {protocol: TCP, port: 16443}"),
    "networkPolicies.metricsFrom": ([{"matchLabels": {"prom": "yes"}}], '{"matchLabels":{"prom":"yes"}}'),
    "podSecurity.runAsUser": (1234, "runAsUser: 1234"),
    "podSecurity.seccompProfile": ({"type": "Localhost", "localhostProfile": "p"}, '"localhostProfile":"p"'),
    "crds.install": (False, "gone: kind: CustomResourceDefinition"),
    "crds.keep": (False, "gone: helm.sh/resource-policy: keep"),
}


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the values that somebody sets as a whole."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value and here not in OTHERS:
            yield from leaves(value, here)
        else:
            yield here


def with_value(path: str, value: Any, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with one of them set."""
    key, _, rest = path.partition(".")
    below = base.get(key, {})
    return {**base, key: with_value(rest, value, below) if rest else value}


def test_the_chart_has_no_faults() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def assert_taken(words: list[str]) -> None:
    """Let the command read its arguments, without running it; a wrong option raises."""
    # Any file stands in for those of volumes, and a kubelet puts variables in.
    left = [re.sub(r"=/etc/tierwall/.*", f"={CHART / 'Chart.yaml'}", word) for word in words]
    left = [word.replace("$(POD_NAMESPACE)", "tierwall") for word in left]
    command: click.Command = root
    context = root.make_context("tierwall", left)
    while isinstance(command, click.Group) and (left := [*context._protected_args, *context.args]):
        name, subcommand, rest = command.resolve_command(context, left)
        assert subcommand is not None
        command, context = subcommand, subcommand.make_context(name, rest, parent=context)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_the_commands_take_their_arguments(values: dict[str, Any]) -> None:
    given = list(arguments(rendered_text(values, OTHER_APIS)))
    assert len(given) == (3 if values else 2)
    for words in given:
        assert_taken(words)
    with pytest.raises(click.UsageError):
        assert_taken([*given[0], "--no-such-option"])


def test_every_value_is_tried() -> None:
    assert set(leaves(VALUES)) == set(OTHERS)


@pytest.fixture(scope="module")
def usual() -> str:
    """The manifests with everything in them."""
    return rendered_text(EVERYTHING, OTHER_APIS)


@pytest.mark.parametrize("path", OTHERS)
def test_every_value_has_its_effect(path: str, usual: str) -> None:
    value, sign = OTHERS[path]
    values = with_value(path, value, EVERYTHING)
    if sign.startswith(REFUSED):
        with pytest.raises(RenderError, match=sign.removeprefix(REFUSED)):
            rendered_text(values, OTHER_APIS)
        return
    if path == "controller.enabled":
        # The class needs the controller.
        values = with_value("gatewayClass.enabled", False, values)
    text = rendered_text(values, OTHER_APIS)
    assert list(yaml.safe_load_all(text))
    for words in arguments(text):
        assert_taken(words)
    if sign.startswith(GONE):
        assert sign.removeprefix(GONE) in usual
        assert sign.removeprefix(GONE) not in text
    else:
        assert sign not in usual
        assert sign in text


def test_the_schema_has_every_value_and_no_other() -> None:
    def compare(schema: Mapping[str, Any], values: Mapping[str, Any], path: str) -> None:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        known = set(schema["properties"])
        assert set(values) <= known, path
        assert known - set(values) <= {"global", "enabled"}, path
        assert schema["additionalProperties"] is False, path
        for key, value in values.items():
            if isinstance(value, dict) and value and key not in FREE | {"resources"}:
                compare(schema["properties"][key], value, f"{path}.{key}")

    compare(SCHEMA, VALUES, "values")


def _sections(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    yield path
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in FREE:
            yield from _sections(value, f"{path}.{key}".lstrip("."))


@pytest.mark.parametrize("section", [*_sections(VALUES)])
def test_an_unknown_key_is_refused(section: str) -> None:
    path = f"{section}.tolerationz".lstrip(".")
    with pytest.raises(RenderError, match="tolerationz"):
        rendered(with_value(path, [], {}))


def test_a_parent_chart_may_share_values_and_switch_this_one() -> None:
    assert rendered({"global": {"any": {"thing": 1}}, "enabled": True}) == rendered()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("warnings.refuse", ["everything"]),
        ("controller.replicas", "two"),
        ("gatewayNamespaces", ["Not_A_Name"]),
        ("networkPolicies.apiServers", ["api.example.com"]),
        ("networkPolicies.apiServerPorts", []),
        ("warnings.refuse", ["TW999"]),
        ("podSecurity.runAsUser", 0),
        ("podSecurity.seccompProfile", {"type": "Localhost"}),
        ("podSecurity.seccompProfile", {"type": "RuntimeDefault", "localhostProfile": "p"}),
        ("image.pullPolicy", "Sometimes"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused(path: str, value: Any) -> None:
    with pytest.raises(RenderError, match=path.split(".")[-1]):
        rendered(with_value(path, value, {}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gatewayClass": {"enabled": True}}, "name the namespaces whose Gateways get Envoys"),
        (
            {"gatewayClass": {"enabled": True}, "controller": {"enabled": False}, "gatewayNamespaces": ["a"]},
            "gatewayClass needs the controller",
        ),
        ({"warnings": {"enabled": False, "refuse": ["TW201"]}}, "warnings.refuse has no effect"),
        ({"controller": {"enabled": False}, "warnings": {"refuse": ["TW201"]}}, "warnings.refuse has no effect"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RenderError, match=words):
        rendered(values)


def test_the_codes_that_can_be_refused_are_those_that_the_controller_knows() -> None:
    assert SCHEMA["properties"]["warnings"]["properties"]["refuse"]["items"]["enum"] == sorted(WORST_FIRST)


def _scalars(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _scalars(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from _scalars(below, key)
    else:
        yield key, value


@pytest.mark.parametrize("name", ["7", "1e3", "null", "yes"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str) -> None:
    """A label of DNS may look like a number. Ids of users are large on OpenShift, and helm reads numbers as floats."""
    values = {**EVERYTHING, "gatewayNamespaces": [name], "podSecurity": {"runAsUser": 1000680000}}
    text = rendered_text(values, OTHER_APIS, namespace=name, release=name)
    scalars = [scalar for value in yaml.safe_load_all(text) for scalar in _scalars(value)]
    for key in ("namespace", "app.kubernetes.io/instance"):
        assert {value for member, value in scalars if member == key} == {name}
    assert {value for member, value in scalars if member == "runAsUser"} == {0, 1000680000}
    assert "1.0006" not in text
