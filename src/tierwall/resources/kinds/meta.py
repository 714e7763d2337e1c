"""Fragments that every API group uses: object metadata, label selectors, status conditions (`meta.k8s.io/v1`).

The checks and their words are those of apimachinery (`pkg/api/validation/objectmeta.go`,
`pkg/apis/meta/v1/validation/validation.go`).
"""

from collections.abc import Iterable

from tierwall.resources.kinds.kind import Kind, NameFormat
from tierwall.resources.schema import (
    Property,
    Rule,
    Schema,
    any_object,
    any_value,
    array,
    boolean,
    enum,
    integer,
    mapping,
    obj,
    only_warn,
    optional,
    refine,
    required,
    rule,
    string,
    warning,
)

labels = mapping(string(format="k8s-label-value"), keys=string(format="k8s-label-key"))

# All keys and values together (`TotalAnnotationSizeLimitB`).
_annotations = mapping(string(), keys=string(format="k8s-annotation-key"), max_bytes=256 * 1024)

_REQUIREMENT_RULES = (
    rule(
        "!(self.operator in ['In', 'NotIn']) || has(self.values) && size(self.values) > 0",
        "must be specified when `operator` is 'In' or 'NotIn'",
        field_path=".values",
        reason="FieldValueRequired",
    ),
    rule(
        "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        field_path=".values",
        reason="FieldValueForbidden",
    ),
    rule(
        "self.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist']",
        "not a valid selector operator",
        field_path=".operator",
        hint="operators are `In`, `NotIn`, `Exists` and `DoesNotExist`",
    ),
)


def _selector(key: Property, operator: Property, value: Schema, label_map: Schema, rules: Iterable[Rule]) -> Schema:
    requirement = obj(
        key,
        operator,
        optional("values", array(value, list_type="atomic"), "Values for In and NotIn; empty for the other operators."),
        *rules,
    )
    return obj(
        optional("matchLabels", label_map, "Labels that must all be there with exactly these values."),
        optional(
            "matchExpressions",
            array(requirement, list_type="atomic"),
            "Requirements that must all hold, together with matchLabels.",
            hint="a list of `{key, operator, values}`",
        ),
        title="LabelSelector",
        map_type="atomic",
    )


_KEY_WORDS = "The label key that the requirement is about."
_OPERATOR_WORDS = "In, NotIn, Exists or DoesNotExist."

# Native kinds: validation written in Go checks keys, values and operators, and reads a missing text as an empty one.
label_selector = _selector(
    optional("key", string(format="k8s-label-key", default=""), _KEY_WORDS),
    optional("operator", string(default=""), _OPERATOR_WORDS),
    string(format="k8s-label-value"),
    labels,
    _REQUIREMENT_RULES,
)
# CRDs: an API server lets any text through, so what no implementation can read is a warning.
crd_label_selector = _selector(
    required("key", string(), _KEY_WORDS),
    required("operator", string(), _OPERATOR_WORDS),
    string(),
    mapping(string()),
    map(only_warn, _REQUIREMENT_RULES),
)

_condition = obj(
    required("type", string(max_length=316), "The aspect of the object."),
    required("status", enum("True", "False", "Unknown")),
    optional("observedGeneration", integer(minimum=0, format="int64")),
    required("lastTransitionTime", string(format="date-time")),
    required("reason", string(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")),
    required("message", string(max_length=32768)),
)
conditions = array(_condition, list_type="map", keys=("type",))

_owner_reference = obj(
    required("apiVersion", string(rule("self.matches('^([^/]*/)?[^/]+$')", "version must not be empty"))),
    required("kind", string(min_length=1)),
    required("name", string(min_length=1)),
    required("uid", string(min_length=1)),
    optional("controller", boolean()),
    optional("blockOwnerDeletion", boolean()),
    rule(
        "!(self.apiVersion in ['v1', '/v1']) || self.kind != 'Event'",
        "/v1, Kind=Event is disallowed from being an owner",
    ),
)
_owner_references = array(
    _owner_reference,
    rule(
        "self.filter(one, has(one.controller) && one.controller).size() < 2",
        "Only one reference can have Controller set to true",
    ),
)
_finalizers = array(
    string(format="k8s-label-key"),
    rule(
        "!('orphan' in self) || !('foregroundDeletion' in self)",
        "finalizer orphan and foregroundDeletion cannot be both set",
    ),
)


# A generated name is the first 58 characters of generateName and five random ones.
_GENERATED = "self.generateName.substring(0, size(self.generateName) > 58 ? 58 : size(self.generateName)) + 'xxxxx'"
_FORGIVEN = "self.generateName.substring(0, size(self.generateName) - 2) + 'a'"
_GENERATED_FORMATS: dict[NameFormat, str] = {
    "k8s-long-name": "dns1123Subdomain",
    "k8s-short-name": "dns1123Label",
    "k8s-service-name": "dns1035Label",
}


def object_meta(kind: Kind) -> Schema:
    """metadata, as objects of this kind must have it. A namespace that is left out is filled in by the client."""
    rules: list[Rule] = []
    if kind.scope != "None":
        rules.append(
            rule(
                "has(self.name) && size(self.name) > 0 || has(self.generateName) && size(self.generateName) > 0",
                "name or generateName is required",
                field_path=".name",
                reason="FieldValueRequired",
            )
        )
    if name_format := _GENERATED_FORMATS.get(kind.name_format):
        # A prefix that passes for one may still make no name: upstream forgives the character before a last dash.
        form = f"format.{name_format}()"
        checked = f"{form}.validate({_GENERATED})"
        rules.append(
            rule(
                "has(self.name) && size(self.name) > 0 || !has(self.generateName) || size(self.generateName) < 2"
                f" || !self.generateName.endsWith('-') || {form}.validate({_FORGIVEN}).hasValue()"
                f" || !{checked}.hasValue()",
                "makes no valid name",
                message_expression=f"{checked}.value().join(', ')",
                field_path=".generateName",
            )
        )
    if kind.scope == "Cluster":
        rules.append(
            warning(
                "!has(self.__namespace__) || size(self.__namespace__) == 0",
                "objects of this kind have no namespace; the API server drops it",
                field_path=".namespace",
            )
        )
    prefix = f"{kind.name_format}-prefix" if kind.name_format else ""
    namespace = string(format="k8s-short-name" if kind.scope == "Namespaced" else "")
    return obj(
        optional("name", string(format=kind.name_format), "Unique in the namespace, or in the cluster."),
        optional("generateName", string(format=prefix), "A prefix from which the server makes a unique name."),
        optional("namespace", namespace, "The namespace; the client's own if left out."),
        optional("labels", labels, "What selectors look at."),
        optional("annotations", _annotations, "Notes for tools."),
        optional("creationTimestamp", string(format="date-time", nullable=True)),
        optional("deletionTimestamp", string(format="date-time", nullable=True)),
        optional("deletionGracePeriodSeconds", integer(format="int64")),
        optional("finalizers", _finalizers),
        optional("generation", integer(minimum=0, format="int64")),
        optional("managedFields", array(any_object())),
        optional("ownerReferences", _owner_references),
        optional("resourceVersion", string()),
        optional("selfLink", string()),
        optional("uid", string()),
        *rules,
        title="ObjectMeta",
    )


def whole_object(kind: Kind) -> Schema:
    """The schema of a kind with what every object has: apiVersion, kind, metadata. Status is not judged."""
    parts = [part for part in kind.schema.properties if not (part.name == "status" and kind.status_subresource)]
    if kind.status_subresource:
        parts.append(optional("status", any_value()))
    head = [required("apiVersion", string()), required("kind", string())]
    if kind.schema.property("metadata") is None:
        # Metadata that is missing is read as empty, so that the missing name is what the message is about.
        meta = refine(object_meta(kind), default={}) if kind.scope != "None" else any_value()
        head.append(optional("metadata", meta))
    return obj(*head, *parts, *kind.schema.rules, preserve_unknown=kind.schema.preserve_unknown)
