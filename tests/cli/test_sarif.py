"""SARIF documents have the form of the standard (OASIS SARIF 2.1.0), and explain every code that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner

from tests import ROOT
from tests.docs.test_docs_citations import anchors
from tierwall.cli.main import root
from tierwall.core.catalogue import CATALOGUE
from tierwall.render.rule_help import PAGE, anchor, rule_help


def record(required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other properties."""
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


# The part of the standard that Tierwall writes, in its words and with its requirements (sections 3.13 to 3.50).
TEXT, NUMBER, INDEX = {"type": "string"}, {"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 0}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = record("text", text=TEXT)
PLACE = record(
    "artifactLocation region",
    artifactLocation=record("uri", uri={"type": "string", "pattern": r"^[A-Za-z0-9\-._~:/@!$&'()*+,;=%]+$"}),
    region=record("startLine", startLine=NUMBER, startColumn=NUMBER),
)
# A place in an object of a cluster has no file (section 3.33).
LOGICAL = record("name fullyQualifiedName kind", name=TEXT, fullyQualifiedName=TEXT, kind={"const": "resource"})
LOCATION = {
    **record("", physicalLocation=PLACE, logicalLocations=array(LOGICAL), message=MESSAGE),
    "oneOf": [{"required": ["physicalLocation"]}, {"required": ["logicalLocations"]}],
}
RULE = record(
    "id shortDescription help helpUri",
    id={"type": "string", "pattern": "^TW[0-9]{3}$"},
    name=TEXT,
    shortDescription=MESSAGE,
    defaultConfiguration=record("level", level=LEVEL),
    help=record("text", text={"type": "string", "minLength": 20}, markdown=TEXT),
    helpUri={"type": "string", "pattern": "^https://[^ ]+#tw[0-9]{3}-[a-z0-9-]+$"},
)
RESULT = record(
    "ruleId ruleIndex level message locations",
    ruleId=TEXT,
    ruleIndex=INDEX,
    level=LEVEL,
    message=MESSAGE,
    locations=array(LOCATION),
    relatedLocations=array(LOCATION),
    baselineState={"enum": ["new", "unchanged", "updated", "absent"]},
    suppressions=array(record("kind", kind={"enum": ["inSource", "external"]}, justification=TEXT)),
)
RUN = record(
    "tool results",
    tool=record("driver", driver=record("name", name=TEXT, version=TEXT, rules=array(RULE))),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=array(RESULT),
    invocations=array(
        record(
            "executionSuccessful",
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications=array(record("message", level=LEVEL, message=MESSAGE)),
        )
    ),
)
LOG = record("version runs", version={"const": "2.1.0"}, runs=array(RUN), **{"$schema": TEXT})


@pytest.mark.parametrize(
    "file", sorted((ROOT / "tests/golden/outputs/check").glob("*.sarif")), ids=lambda file: file.stem
)
def test_a_document_has_the_form_of_the_standard(file: Path) -> None:
    jsonschema.validate(json.loads(file.read_text()), LOG)


def test_too_many_findings_and_accepted_ones_have_the_form_too(tmp_path: Path) -> None:
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}, "spek": 1}
    objects = [{**policy, "metadata": {"name": f"policy-{number}"}} for number in range(200)]
    objects.append({**policy, "metadata": {"name": "known", "annotations": {"tierwall.io/ignore": "TW101 known"}}})
    (tmp_path / "many.yaml").write_text(yaml.safe_dump_all(objects))
    document = json.loads(CliRunner().invoke(root, ["check", str(tmp_path), "-o", "sarif"]).stdout)
    jsonschema.validate(document, LOG)
    (run,) = document["runs"]
    assert run["invocations"]
    assert any("suppressions" in result for result in run["results"])
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_is_explained_and_leads_to_its_heading(code: str) -> None:
    explained = rule_help(code)
    assert len(explained["help"]["markdown"]) > 20
    assert "](" not in explained["help"]["markdown"]
    assert explained["helpUri"] == f"{PAGE}#{anchor(code)}"
    assert anchor(code) in anchors("diagnostics.md")
