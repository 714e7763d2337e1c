"""Transformation of requests and responses: headers to set, add and remove, the body, and metadata."""

from tierwall.resources.kinds.agentgateway.scalars import any_header_name, cel_expression
from tierwall.resources.schema import array, at_least_one_of, mapping, obj, optional, required

_header = obj(required("name", any_header_name), required("value", cel_expression))
_headers = array(_header, min_items=1, max_items=16, list_type="map", keys=("name",))

transform = obj(
    optional("set", _headers),
    optional("add", _headers),
    optional("remove", array(any_header_name, min_items=1, max_items=16, list_type="set")),
    optional("body", cel_expression),
    optional("metadata", mapping(cel_expression, min_properties=1, max_properties=16)),
    at_least_one_of("add", "body", "metadata", "remove", "set"),
    title="Transform",
)

transformation = obj(
    optional("request", transform),
    optional("response", transform),
    at_least_one_of("request", "response"),
    title="Transformation",
)
