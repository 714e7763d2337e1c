"""CustomResourceDefinitions among the objects are judged as an API server judges them, and define their kinds."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds.newer_definitions import newer
from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.admission import admit
from tierwall.resources.admission.question import AdmitQuestion, ask
from tierwall.resources.crd import crd_documents
from tierwall.resources.kinds.registry import all_kinds
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import admission_problems, has_other_defaults, is_judged, is_valid, unknown_parts

KNOWN = {document["metadata"]["name"]: document for document in crd_documents(all_kinds())}
GATEWAYS = "gateways.gateway.networking.k8s.io"


def cases(name: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name(name).read_text())
    return read


def definition(schema: str = "{type: object}", **changes: Any) -> dict[str, Any]:
    """Return the definition of Widget with this schema of its spec."""
    properties = {"spec": yaml.safe_load(schema)}
    version = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    spec = {"group": "example.com", "names": {"kind": "Widget", "plural": "widgets"}, "scope": "Namespaced"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {**spec, "versions": [version], **changes},
    }


def widget(text: str = "{}", name: str = "w", **changes: Any) -> dict[str, Any]:
    head = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "a"}}
    return {**head, "spec": yaml.safe_load(text), **changes}


def snapshot(*objects: dict[str, Any]) -> Snapshot:
    return Snapshot.of(load_objects(objects))


def judged(*objects: dict[str, Any], kind: str = "Widget") -> list[Diagnostic]:
    """Return the problems of the objects of one kind."""
    world = snapshot(*objects)
    return [problem for resource in world if resource.kind == kind for problem in admission_problems(world, resource)]


def messages(schema: str, spec: str) -> list[str]:
    refused = [problem.message for problem in admit(definition(schema))]
    assert refused == []
    return [diagnostic.message for diagnostic in judged(definition(schema), widget(spec))]


@pytest.mark.parametrize("name", KNOWN)
def test_every_printed_definition_is_valid(name: str) -> None:
    assert admit(KNOWN[name]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": "example"}, 'spec.group: Invalid value: "example": should be a domain with at least one dot'),
        ({"group": "Example.com"}, "spec.group: Invalid value"),
        ({"group": None}, "spec.group: Required value"),
        ({"group": "x.k8s.io"}, "metadata.annotations: Required value: protected groups must have approval"),
        ({"scope": "Nowhere"}, 'spec.scope: Unsupported value: "Nowhere": supported values: "Cluster", "Namespaced"'),
        ({"scope": None}, "spec.scope: Required value"),
        ({"names": {"kind": "Widget", "plural": "Widgets"}}, "spec.names.plural: Invalid value"),
        ({"names": {"kind": "Widget", "plural": "gadgets"}}, 'must be spec.names.plural+"."+spec.group'),
        ({"names": {"plural": "widgets"}}, "spec.names.kind: Required value"),
        ({"names": {"kind": "Wid_get", "plural": "widgets"}}, "may have mixed case, but should otherwise match"),
        ({"names": {"kind": "W", "listKind": "W", "plural": "widgets"}}, "kind and listKind may not be the same"),
        ({"versions": []}, "must have exactly one version marked as storage version"),
        ({"preserveUnknownFields": True}, "cannot set to true, set x-kubernetes-preserve-unknown-fields"),
        ({"conversion": {"strategy": "Webhook"}}, "required when strategy is set to Webhook"),
        ({"conversion": {"strategy": "Magic"}}, 'Unsupported value: "Magic"'),
        ({"validation": {}}, 'unknown field "spec.validation"'),
    ],
)
def test_a_definition_is_judged_outside_its_schemas_too(change: dict[str, Any], message: str) -> None:
    refusals = [problem.message for problem in admit(definition(**change))]
    assert any(message in refusal for refusal in refusals), refusals


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ({"name": "V1"}, "spec.versions[0].name: Invalid value"),
        ({"storage": False}, "must have exactly one version marked as storage version"),
        ({"schema": None}, "spec.versions[0].schema: Required value: schemas are required"),
        ({"deprecationWarning": "old"}, "can only be set for deprecated versions"),
        ({"subresources": {"scale": {"specReplicasPath": ".x", "statusReplicasPath": ".status.x"}}}, "under .spec"),
        ({"additionalPrinterColumns": [{"name": "a", "type": "text", "jsonPath": ".a"}]}, "must be one of boolean"),
        ({"additionalPrinterColumns": [{"name": "a", "type": "string", "jsonPath": "a"}]}, "simple json path"),
    ],
)
def test_a_version_is_judged_outside_its_schema_too(version: dict[str, Any], message: str) -> None:
    document = definition()
    document["spec"]["versions"][0] |= version
    refusals = [problem.message for problem in admit(document)]
    assert any(message in refusal for refusal in refusals), refusals


@pytest.mark.parametrize(
    ("message", "schema"),
    [
        pytest.param(message, schema, id=f"{message} {number}")
        for message, schemas in ((case["message"], case["schemas"]) for case in cases("definitions_refused.yaml"))
        for number, schema in enumerate(schemas)
    ],
)
def test_a_schema_that_is_not_structural_is_refused(message: str, schema: dict[str, Any]) -> None:
    document = definition()
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    refusals = [problem.message for problem in admit(document)]
    assert any(message in refusal for refusal in refusals), refusals


@pytest.mark.parametrize(
    "root",
    [
        {"type": "string"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "nullable": True},
        {
            "type": "object",
            "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
        },
        {"type": "object", "properties": {"metadata": {"type": "string"}}},
        {"type": "object", "properties": {"kind": {"type": "string", "default": "Widget"}}},
        {"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.labels.size() > 0"}]},
        {"type": "object", "anyOf": [{"properties": {"a": {"enum": ["b"]}}}]},
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "object"}}},
            "not": {"properties": {"a": {"items": {"properties": {"b": {}}}}}},
        },
    ],
    ids=str,
)
def test_the_root_of_a_schema_is_an_object_with_its_own_metadata(root: dict[str, Any]) -> None:
    document = definition()
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = root
    assert admit(document)


def test_items_that_are_not_a_schema_are_ignored_as_by_go() -> None:
    document = definition("{type: object, items: text, not: {items: 1, required: [a]}}")
    root = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root |= {"items": "text", "not": {"items": "text", "required": ["b"]}}
    assert admit(document) == []
    assert judged(document, widget("{}")) == []


def test_a_status_subresource_allows_few_keywords_at_the_root() -> None:
    document = definition()
    version = document["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["minProperties"] = 1
    assert admit(document) == []
    version["subresources"] = {"status": {}}
    assert admit(document)


@pytest.mark.parametrize("case", cases("definitions_objects.yaml"), ids=lambda case: str(case["schema"])[:80])
def test_objects_are_judged_by_the_schema(case: dict[str, Any]) -> None:
    assert [problem.message for problem in admit(definition(yaml.dump(case["schema"])))] == []
    for word in ("good", "bad"):
        for spec in case[word]:
            world = snapshot(definition(yaml.dump(case["schema"])), widget("{}", spec=spec))
            (resource,) = world.of_kind("example.com", "Widget")
            problems = admission_problems(world, resource)
            assert is_valid(world, resource) is (word == "good"), (spec, problems)


def test_messages_are_those_of_an_api_server() -> None:
    schema = """
    type: object
    properties:
      a: {type: integer, maximum: 3}
      b: {type: string}
    x-kubernetes-validations:
    - {rule: self.b == 'x', fieldPath: .b, reason: FieldValueForbidden, messageExpression: "'b is ' + self.b"}
    - {rule: self.b.size() < 3}
    - {rule: int(self.b) > 1, message: a number}
    """
    assert messages(schema, "{a: 4, b: long}") == [
        "spec.a: Invalid value: 4: spec.a in body should be less than or equal to 3",
        "spec.b: Forbidden: b is long",
        "spec: Invalid value: failed rule: self.b.size() < 3",
        "spec: Invalid value: \"object\": type conversion error from 'string' to 'int' evaluating rule: a number",
    ]


def test_only_served_versions_exist() -> None:
    document = definition()
    document["spec"]["versions"].append(
        {**document["spec"]["versions"][0], "name": "v2", "served": False, "storage": False}
    )
    for version in ("v2", "v3"):
        (problem,) = judged(document, widget("{}", apiVersion=f"example.com/{version}"))
        assert (problem.code, problem.message) == (
            "TW110",
            f'no matches for kind "Widget" in version "example.com/{version}"',
        )
        assert problem.hint == "CustomResourceDefinition/widgets.example.com serves `example.com/v1`"


def test_metadata_is_judged_and_a_definition_may_limit_names() -> None:
    document = definition()
    limit = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["metadata"] = limit
    assert judged(document, widget("{}")) == []
    (problem,) = judged(document, widget("{}", name="long"))
    assert problem.message == "metadata.name: Too long: may not be more than 3 bytes"
    (problem,) = judged(document, widget("{}", name="A"))
    assert problem.message.startswith('metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain')


def test_a_cluster_scoped_object_has_no_namespace() -> None:
    (problem,) = judged(definition(scope="Cluster"), widget("{}"))
    assert problem.code == "TW109"


def test_a_refused_definition_has_no_effect_on_objects() -> None:
    world = snapshot(definition("{type: text}"), widget("{}"))
    (resource,) = world.of_kind("example.com", "Widget")
    (problem,) = admission_problems(world, resource)
    assert (problem.code, str(problem.severity)) == ("TW113", "warning")
    assert not is_judged(world, resource)
    broken = deepcopy(KNOWN[GATEWAYS])
    broken["spec"]["scope"] = "Nowhere"
    codes = [problem.code for problem in judged(broken, gateway(colour="red"), kind="Gateway")]
    assert codes == ["TW101", "TW113"]


def gateway(**more: Any) -> dict[str, Any]:
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "g", "namespace": "a"},
        "spec": {"gatewayClassName": "c", "listeners": [listener], **more},
    }


def installed(name: str, change: Any) -> dict[str, Any]:
    """Return a built-in definition with a change."""
    document = deepcopy(KNOWN[name])
    for version in document["spec"]["versions"]:
        change(version["schema"]["openAPIV3Schema"])
    return document


def test_a_definition_that_equals_the_built_in_one_changes_nothing() -> None:
    for name, document in KNOWN.items():
        world = snapshot(document)
        assert [admission_problems(world, resource) for resource in world] == [()], name
    assert judged(KNOWN[GATEWAYS], gateway(), kind="Gateway") == []
    plain = judged(gateway(listener=[]), kind="Gateway")
    assert [problem.message for problem in plain] == ['unknown field "spec.listener"']
    assert judged(KNOWN[GATEWAYS], gateway(listener=[]), kind="Gateway") == plain


def test_the_installed_definition_counts_and_a_note_says_where_it_differs() -> None:
    def narrower(schema: dict[str, Any]) -> None:
        del schema["properties"]["spec"]["properties"]["infrastructure"]

    document = installed(GATEWAYS, narrower)
    (note,) = judged(document, kind="CustomResourceDefinition")
    assert (note.code, str(note.severity)) == ("TW111", "note")
    assert "`v1.spec.infrastructure`" in note.message
    assert judged(document, gateway(), kind="Gateway") == []
    assert judged(gateway(infrastructure={"labels": {"a": "b"}}), kind="Gateway") == []
    (problem,) = judged(document, gateway(infrastructure={"labels": {"a": "b"}}), kind="Gateway")
    assert problem.message == 'unknown field "spec.infrastructure"'


def test_a_part_of_a_gateway_that_only_the_installed_definition_admits_is_ignored() -> None:
    document = newer("Gateway")
    world = snapshot(document, gateway(colour="red"))
    (resource,) = world.of_kind("gateway.networking.k8s.io", "Gateway")
    (problem,) = admission_problems(world, resource)
    assert (problem.code, str(problem.severity), problem.hint) == ("TW114", "note", "unknown parts are ignored")
    assert problem.message.endswith('unknown field "spec.colour"')
    assert is_valid(world, resource)
    assert unknown_parts(world, resource) == ()
    assert ask(world, AdmitQuestion(object=gateway(colour="red"))).verdict == "Allow"
    assert ask(world, AdmitQuestion(object=gateway(colour=1))).verdict == "Deny"


def test_a_version_that_is_not_installed_does_not_exist() -> None:
    document = deepcopy(KNOWN[GATEWAYS])
    document["spec"]["versions"] = document["spec"]["versions"][:1]
    (note,) = judged(document, kind="CustomResourceDefinition")
    assert "`gateway.networking.k8s.io/v1beta1` is not served" in note.message
    beta = {**gateway(), "apiVersion": "gateway.networking.k8s.io/v1beta1"}
    assert [problem.code for problem in judged(document, beta, kind="Gateway")] == ["TW110"]


def test_a_native_kind_cannot_be_redefined() -> None:
    document = definition(group="rbac.authorization.k8s.io", names={"kind": "Role", "plural": "roles"})
    document["metadata"] = {
        "name": "roles.rbac.authorization.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved"},
    }
    assert admit(document) == []
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": [{}]}
    assert judged(document, role, kind="Role") == judged(role, kind="Role") != []


def test_defaults_that_differ_from_the_known_ones_are_noticed() -> None:
    name = "xbackends.agentic.networking.x-k8s.io"

    def other(schema: dict[str, Any]) -> None:
        schema["properties"]["spec"]["properties"]["mcp"]["properties"]["path"]["default"] = "/other"

    mcp = {"serviceName": "s", "port": 80}
    head = {"apiVersion": "agentic.networking.x-k8s.io/v0alpha0", "kind": "XBackend", "metadata": {"name": "b"}}
    for document, spec, differ in (
        (KNOWN[name], {"mcp": mcp}, False),
        (installed(name, other), {"mcp": mcp}, True),
        (installed(name, other), {"mcp": {**mcp, "path": "/mcp"}}, False),
    ):
        world = snapshot(document, {**head, "spec": spec})
        (resource,) = world.of_kind("agentic.networking.x-k8s.io", "XBackend")
        assert has_other_defaults(world, resource) is differ


def test_an_object_is_judged_again_when_its_definition_changes() -> None:
    objects = load_objects([definition("{type: object}"), widget("{a: 1}")])
    before = Snapshot.of(objects)
    assert is_valid(before, objects[1]) is False
    (other,) = load_objects([definition("{type: object, x-kubernetes-preserve-unknown-fields: true}")])
    after = before.with_changes(put=[other])
    assert is_valid(after, objects[1])
    assert not is_valid(before, objects[1])
    assert admission_problems(before, objects[1]) is admission_problems(before, objects[1])


# hostile definitions


def test_a_deep_definition_is_refused_quickly() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"a": schema}}
    document = definition()
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    (problem,) = admit(document)
    assert "nested deeper" in problem.message


def test_a_wide_definition_is_walked_only_up_to_a_limit() -> None:
    wide = {"type": "object", "properties": {f"a{index}": {"type": "string"} for index in range(400)}}
    schema = {"type": "object", "properties": {f"a{index}": wide for index in range(400)}}
    document = definition()
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    assert [problem.code for problem in admit(document)] == ["TW106"]


def test_a_definition_full_of_mistakes_gives_a_short_report() -> None:
    schema = {"type": "object", "properties": {f"a{index}": {"type": "text"} for index in range(5_000)}}
    document = definition()
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    problems = admit(document)
    assert len(problems) == 200
    assert all(len(problem.message) < 2_000 for problem in problems)


def test_the_rules_of_an_object_share_a_cost_budget() -> None:
    schema = """
    type: array
    items:
      type: integer
      x-kubernetes-validations:
      - rule: "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, a + b + c + self > 0)))"
    """
    (message,) = messages(schema, str([1] * 5_000))
    assert "running out of cost budget" in message


def test_a_malformed_definition_does_not_crash() -> None:
    specs: list[Any] = [None, 1, [], {}, {"names": 1, "group": 2}, {"versions": [None, 1, {"schema": 1}]}]
    for spec in specs:
        document = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
        world = snapshot(document)
        assert [resource for resource in world if not admission_problems(world, resource)] == []


def test_an_unknown_keyword_is_refused_where_decoding_is_strict() -> None:
    (problem,) = admit(definition("{type: string, maxlength: 3}"))
    assert problem.message.endswith('.properties[spec].maxlength"')
    assert (problem.code, problem.hint) == ("TW101", "did you mean `maxLength`?")
    # Strict decoding does not check items.
    (problem,) = admit(definition("{type: array, items: {type: string, maxlength: 3}}"))
    assert problem.message.endswith('.properties[spec].items.maxlength"; an API server ignores it')
    assert problem.code == "TW109"
    ignored = definition(
        "{type: array, items: {type: object, x-tierwall-max-bytes: 1, additionalProperties: {type: string}}}"
    )
    assert judged(ignored, widget("[{a: long}]")) == []


def test_tierwalls_own_keywords_mean_nothing_in_an_installed_definition() -> None:
    document = definition()
    document["x-tierwall"] = {"lenient": True, "native": True}
    document["x-tierwall-fragments"] = {}
    assert {problem.code for problem in admit(document)} == {"TW101"}
