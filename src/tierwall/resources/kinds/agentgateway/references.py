"""References inside agentgateway policies: secrets, and the choice between a backendRef and a url."""

from tierwall.resources.kinds.gateway_types.names import object_name
from tierwall.resources.schema import Rule, exactly_one_of, extend, obj, optional, required, rule, string

NO_PATH = "^https?://[^/?#]+$"
WITH_PATH = "^https?://[^/?#]+/"

BACKEND_REF_OR_URL = exactly_one_of("backendRef", "url")

secret_object_ref = obj(
    required("name", object_name),
    optional("group", string(), "The group of the credential; the core group if left out."),
    optional("kind", string(), "The kind of the credential; `Secret` if left out."),
    rule(
        "(!has(self.group) || size(self.group) == 0) ? "
        "(!has(self.kind) || size(self.kind) == 0 || self.kind == 'Secret') : (has(self.kind) && size(self.kind) > 0)",
        "custom credential refs must set both group and kind",
    ),
    title="LocalSecretRef",
)

secret_key_ref = extend(secret_object_ref, optional("key", string(), "The key inside the credential's data."))


def url_without_path(purpose: str = "") -> Rule:
    """A `url` that names a host only."""
    return rule(f"!has(self.url) || self.url.matches('{NO_PATH}')", f"url must not include a path{purpose}")
