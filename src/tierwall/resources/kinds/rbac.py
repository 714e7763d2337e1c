"""Role, ClusterRole, RoleBinding and ClusterRoleBinding (`rbac.authorization.k8s.io/v1`).

The checks are those of Kubernetes' own Go validation (`pkg/apis/rbac/validation/validation.go`), as data. Go reads a
missing text as an empty one, so the defaults here are empty and the checks speak of that.
"""

from tierwall.resources.kinds.kind import Kind, Scope
from tierwall.resources.kinds.meta import label_selector
from tierwall.resources.schema import Rule, Schema, array, obj, optional, refine, rule, string

_GROUP = "rbac.authorization.k8s.io"
_texts = array(string())
_NON_RESOURCE = "has(self.nonResourceURLs) && size(self.nonResourceURLs) > 0"


def _some(name: str) -> str:
    return f"has(self.{name}) && size(self.{name}) > 0"


def _must_have(name: str, message: str) -> Rule:
    return rule(f"{_NON_RESOURCE} || {_some(name)}", message, field_path=f".{name}", reason="FieldValueRequired")


def _policy_rule(namespaced: bool) -> Schema:
    for_roles = rule(
        f"!({_NON_RESOURCE})", "namespaced rules cannot apply to non-resource URLs", field_path=".nonResourceURLs"
    )
    return obj(
        optional("verbs", _texts, "Verbs that are granted; `*` is all."),
        optional("apiGroups", _texts, 'API groups; "" is the core group, `*` is all.'),
        optional("resources", _texts, "Resources, `pods/log` for a subresource; `*` is all."),
        optional("resourceNames", _texts, "Only these names; all if left out."),
        optional("nonResourceURLs", _texts, "Paths; only at the end may a `*` stand."),
        rule(
            _some("verbs"),
            "verbs must contain at least one value",
            field_path=".verbs",
            reason="FieldValueRequired",
        ),
        *((for_roles,) if namespaced else ()),
        rule(
            f"!({_NON_RESOURCE}) || !({_some('apiGroups')}) && !({_some('resources')}) && !({_some('resourceNames')})",
            "rules cannot apply to both regular resources and non-resource URLs",
            field_path=".nonResourceURLs",
        ),
        _must_have("apiGroups", "resource rules must supply at least one api group"),
        _must_have("resources", "resource rules must supply at least one resource"),
    )


def _role_ref(kinds: tuple[str, ...]) -> Schema:
    return obj(
        optional("apiGroup", string(), "The group of the role; may be left out."),
        optional("kind", string(enum=kinds, default=""), "The kind of the role."),
        optional("name", string(format="k8s-path-segment-name", default=""), "The name of the role."),
        rule(
            f"!has(self.apiGroup) || self.apiGroup in ['', '{_GROUP}']",
            f'supported values: "{_GROUP}"',
            field_path=".apiGroup",
            reason="FieldValueNotSupported",
        ),
        rule("size(self.name) > 0", message_expression="''", field_path=".name", reason="FieldValueRequired"),
    )


def _subject(namespaced: bool) -> Schema:
    namespace = rule(
        "self.kind != 'ServiceAccount' || has(self.__namespace__) && size(self.__namespace__) > 0",
        "",
        message_expression="''",
        field_path=".namespace",
        reason="FieldValueRequired",
    )
    return obj(
        optional("kind", string(enum=("ServiceAccount", "User", "Group"), default=""), "Who it is."),
        optional("apiGroup", string(), "The group of users and groups; empty for a ServiceAccount."),
        optional("name", string(default=""), "Its name."),
        optional("namespace", string(), "Of a ServiceAccount; the binding's own in a RoleBinding."),
        rule("size(self.name) > 0", message_expression="''", field_path=".name", reason="FieldValueRequired"),
        rule(
            "self.kind != 'ServiceAccount' || self.name == '' || "
            "!format.dns1123Subdomain().validate(self.name).hasValue()",
            message_expression="format.dns1123Subdomain().validate(self.name).value().join(', ')",
            field_path=".name",
        ),
        rule(
            "self.kind != 'ServiceAccount' || !has(self.apiGroup) || self.apiGroup == ''",
            'supported values: ""',
            field_path=".apiGroup",
            reason="FieldValueNotSupported",
        ),
        rule(
            f"!(self.kind in ['User', 'Group']) || !has(self.apiGroup) || self.apiGroup in ['', '{_GROUP}']",
            f'supported values: "{_GROUP}"',
            field_path=".apiGroup",
            reason="FieldValueNotSupported",
        ),
        *(() if namespaced else (namespace,)),
    )


def _rbac(kind: str, plural: str, scope: Scope, description: str, schema: Schema) -> Kind:
    return Kind(
        group=_GROUP,
        version="v1",
        kind=kind,
        plural=plural,
        scope=scope,
        name_format="k8s-path-segment-name",
        is_crd=False,
        description=description,
        schema=schema,
    )


_aggregation = obj(optional("clusterRoleSelectors", array(label_selector), "ClusterRoles whose rules it takes."))


def _binding(namespaced: bool) -> Schema:
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    return obj(
        optional("roleRef", refine(_role_ref(kinds), default={}), "The role that is granted."),
        optional("subjects", array(_subject(namespaced)), "To whom."),
    )


KINDS = (
    _rbac(
        "Role",
        "roles",
        "Namespaced",
        "Grants inside one namespace.",
        obj(optional("rules", array(_policy_rule(namespaced=True)), "What is granted.")),
    ),
    _rbac(
        "ClusterRole",
        "clusterroles",
        "Cluster",
        "Grants in the whole cluster, or in the namespaces where it is bound.",
        obj(
            optional("rules", array(_policy_rule(namespaced=False)), "What is granted."),
            optional("aggregationRule", _aggregation, "Takes the rules of other ClusterRoles."),
        ),
    ),
    _rbac("RoleBinding", "rolebindings", "Namespaced", "Grants a role in one namespace.", _binding(namespaced=True)),
    _rbac(
        "ClusterRoleBinding",
        "clusterrolebindings",
        "Cluster",
        "Grants a ClusterRole everywhere.",
        _binding(namespaced=False),
    ),
)
