"""AuthorizationConfiguration (`apiserver.config.k8s.io`): the API server's list of authorizers.

A file of the API server, not an object of its API. Checks as in apiserver's `ValidateAuthorizationConfiguration`; the
type `CEL` and the field `failureMode` are Tierwall's own.
"""

from tierwall.resources.kinds.kind import Kind
from tierwall.resources.schema import any_object, array, boolean, enum, obj, optional, required, rule, string

_TYPES = ("ABAC", "AlwaysAllow", "AlwaysDeny", "CEL", "Node", "RBAC", "Webhook")
_connection = obj(
    optional("type", enum("InClusterConfig", "KubeConfigFile"), "How the webhook is reached."),
    optional("kubeConfigFile", string(), "An absolute path, with type KubeConfigFile."),
    preserve_unknown=True,
)
_webhook = obj(
    optional("timeout", string(), "How long an answer may take; at most 30s."),
    optional("authorizedTTL", string()),
    optional("unauthorizedTTL", string()),
    optional("cacheAuthorizedRequests", boolean()),
    optional("cacheUnauthorizedRequests", boolean()),
    optional("subjectAccessReviewVersion", enum("v1", "v1beta1")),
    optional("matchConditionSubjectAccessReviewVersion", enum("v1")),
    optional("failurePolicy", enum("NoOpinion", "Deny"), "What an unreachable webhook means."),
    optional("connectionInfo", _connection),
    optional("matchConditions", array(any_object(), max_items=64), "CEL conditions on which it is asked."),
    preserve_unknown=True,
)
_authorizer = obj(
    required("type", string(enum=_TYPES), "What kind of authorizer."),
    required("name", string(format="k8s-long-name"), "Its name, unique in the list."),
    optional("webhook", _webhook, "With type Webhook."),
    optional("failureMode", enum("Deny", "NoOpinion"), "With type CEL: what an error in a Deny policy means."),
    rule("size(self.name) > 0", message_expression="''", field_path=".name", reason="FieldValueRequired"),
    rule(
        "self.type != 'Webhook' || has(self.webhook)",
        "required when type=Webhook",
        field_path=".webhook",
        reason="FieldValueRequired",
    ),
    rule(
        "self.type == 'Webhook' || !has(self.webhook)",
        "may only be specified when type=Webhook",
        field_path=".webhook",
    ),
    rule(
        "self.type == 'CEL' || !has(self.failureMode)",
        "may only be specified when type=CEL",
        field_path=".failureMode",
    ),
)

_schema = obj(
    required("authorizers", array(_authorizer, list_type="map", keys=("name",)), "Asked in this order."),
    rule(
        "size(self.authorizers) > 0",
        "at least one authorization mode must be defined",
        field_path=".authorizers",
        reason="FieldValueRequired",
    ),
    rule(
        f"{[name for name in _TYPES if name not in ('CEL', 'Webhook')]}.all(t, "
        "self.authorizers.filter(a, a.type == t).size() <= 1)",
        "only authorizers of type Webhook and CEL may appear more than once",
        field_path=".authorizers",
    ),
)

KINDS = tuple(
    Kind(
        group="apiserver.config.k8s.io",
        version=version,
        kind="AuthorizationConfiguration",
        plural="authorizationconfigurations",
        scope="None",
        is_crd=False,
        description="The chain of authorizers.",
        schema=_schema,
    )
    for version in ("v1", "v1beta1", "v1alpha1")
)
