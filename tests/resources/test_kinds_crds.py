"""`tierwall crds` prints definitions that obey the rules of structural schemas; the reference pages are up to date."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import re2
import yaml
from click.testing import CliRunner

from tests import ROOT
from tests.resources.reference_pages import pages, write
from tierwall.cli.documents import crds
from tierwall.render.manifests import to_yaml
from tierwall.resources.crd import crd_documents
from tierwall.resources.kinds.registry import all_kinds
from tierwall.version import __version__

DEFINITIONS = {document["metadata"]["name"]: document for document in crd_documents(all_kinds())}
REFERENCE = ROOT / "docs" / "reference" / "kinds"
_NO_TYPE = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


def schemas(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a structural schema that must have a type."""
    yield place, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{place}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schemas(schema["additionalProperties"], f"{place}.*")


def all_schemas(definition: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for version in definition["spec"]["versions"]:
        yield from schemas(version["schema"]["openAPIV3Schema"], version["name"])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_is_named_and_versioned_as_the_api_server_wants(name: str) -> None:
    spec = DEFINITIONS[name]["spec"]
    assert name == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["scope"] in ("Namespaced", "Cluster")
    assert [version["storage"] for version in spec["versions"]].count(True) == 1
    approved = "api-approved.kubernetes.io" in DEFINITIONS[name]["metadata"].get("annotations", {})
    assert approved == spec["group"].endswith((".k8s.io", ".kubernetes.io"))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_has_a_structural_schema(name: str) -> None:
    for place, schema in all_schemas(DEFINITIONS[name]):
        assert "type" in schema or any(word in schema for word in _NO_TYPE), place
        assert not ("properties" in schema and "additionalProperties" in schema), place
        if schema.get("x-kubernetes-list-type") == "map":
            fields = schema["items"]["properties"]
            for key in schema["x-kubernetes-list-map-keys"]:
                assert key in schema["items"].get("required", ()) or "default" in fields[key], (place, key)
        if "pattern" in schema:
            re2.compile(schema["pattern"])
        for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            assert not {"default", "description", "nullable"} & set(part), place
        for rule in schema.get("x-kubernetes-validations", ()):
            assert set(rule) <= {"rule", "message", "messageExpression", "fieldPath", "reason"}
            assert "\n" not in rule.get("message", ""), place


def test_only_custom_resources_are_printed() -> None:
    assert "networkpolicies.networking.k8s.io" not in DEFINITIONS
    assert "policytests.tierwall.io" not in DEFINITIONS
    assert {"adminnetworkpolicies.policy.networking.k8s.io", "authorizationpolicies.tierwall.io"} <= set(DEFINITIONS)


def test_a_printed_definition_reads_back_unchanged() -> None:
    assert list(yaml.safe_load_all(to_yaml(DEFINITIONS.values()))) == list(DEFINITIONS.values())


@pytest.mark.parametrize("text", ["1e3", "y", "No", "0x1", "1_000", ".inf", "~", "null", "2001-01-01", "a: b", "", "é"])
def test_a_string_that_a_reader_could_take_for_another_type_is_quoted(text: str) -> None:
    assert to_yaml([{"a": text}]).startswith('---\na: "')
    assert yaml.safe_load(to_yaml([{"a": text}])) == {"a": text}


def test_the_command_prints_all_or_the_named_definitions() -> None:
    everything = CliRunner().invoke(crds, ["-o", "json"])
    assert [item["metadata"]["name"] for item in json.loads(everything.stdout)["items"]] == sorted(DEFINITIONS)
    some = CliRunner().invoke(crds, ["anp", "ClusterAuthorizationPolicy"])
    assert [document["spec"]["names"]["kind"] for document in yaml.safe_load_all(some.stdout)] == [
        "AdminNetworkPolicy",
        "ClusterAuthorizationPolicy",
    ]


def test_a_name_that_does_not_exist_is_a_usage_error_with_a_hint() -> None:
    result = CliRunner().invoke(crds, ["AdminNetworkPolcy"])
    assert result.exit_code == 2
    assert "did you mean `AdminNetworkPolicy`?" in result.stderr


def test_the_reference_pages_are_those_of_the_schemas(renew: bool) -> None:
    if renew:
        write(REFERENCE)
    written = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
    assert written == pages(), "`pytest --renew tests/resources` writes them anew"


def test_every_definition_names_its_release_and_so_does_the_page() -> None:
    page = (ROOT / "docs" / "definitions.md").read_text().split("## Releases")[1]
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    for definition in DEFINITIONS.values():
        release = definition["metadata"]["annotations"]["tierwall.io/release"]
        kind = definition["spec"]["names"]["kind"]
        if definition["spec"]["group"] == "tierwall.io":
            assert release == f"tierwall {__version__}"
        else:
            assert [row for row in rows if kind in re.findall(r"\w+", row.split("|")[1]) and release in row], kind
