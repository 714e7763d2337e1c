"""Names and namespaces of objects: those of the request, as the API server sees to it before anybody sees the object.

It refuses an update, and a create in a URL with a name, whose object has another name, and an object of another
namespace than the URL's; it fills in a namespace that is missing. What a request finds in the store stands there under
the name and the namespace of the URL. A create without a name takes that of the object, which may have none yet
(`generateName`). Objects of subresources that are about something else, such as evictions, are not tied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierwall.logic.cel.unknown import Unknown, ValueKind
from tierwall.proofs.api.object_shape import SUBRESOURCES

if TYPE_CHECKING:
    from tierwall.proofs.api.request import UnknownRequest

# Scale has the name and the namespace of what is scaled.
IDENTIFIED = (*SUBRESOURCES, "scale")
NAMESPACES = ("", "namespaces")
OBJECTS = ("object", "oldObject")


def require_identities(request: UnknownRequest) -> None:
    """Require names and namespaces of objects, as far as the question reads them."""
    for field in OBJECTS:
        metadata = request.data[field].fields.get("metadata")
        if metadata is None:
            continue
        for name in ("name", "namespace"):
            if metadata.value.is_whole or request.has_open:
                metadata.value.field(name)
        identified = request.circuit.all_of(
            (
                request.carries_data,
                -request.is_connect,
                request.one_of("subresource", IDENTIFIED),
                request.data[field].is_kind(ValueKind.MAP),
            )
        )
        if "name" in metadata.value.fields:
            _require_name(request, field, identified, metadata.value)
        if "namespace" in metadata.value.fields:
            _require_namespace(request, identified, metadata.value)


def _require_name(request: UnknownRequest, field: str, identified: int, metadata: Unknown) -> None:
    require, name = request.circuit.require, metadata.fields["name"]
    is_named = -request.equals("name", "")
    if field == "object":
        is_written = request.one_of("verb", ("update", "patch"))
        tied = request.circuit.any_of(
            (is_written, request.circuit.all_of((request.equals("verb", "create"), is_named)))
        )
    else:
        tied = -request.equals("verb", "deletecollection")
        require(-identified, name.present)
    tied = request.circuit.all_of((identified, tied))
    require(-tied, name.present)
    require(-tied, request.comparing.equal(name.value, request.name))


def _require_namespace(request: UnknownRequest, identified: int, metadata: Unknown) -> None:
    circuit, namespace = request.circuit, metadata.fields["namespace"]
    group, resource = NAMESPACES
    # Requests about a Namespace have its name as their namespace; the object itself has none.
    is_about_one = circuit.all_of((request.equals("apiGroup", group), request.equals("resource", resource)))
    is_inside = circuit.all_of((-request.equals("namespace", ""), -is_about_one))
    same = request.comparing.equal(namespace.value, request.field("namespace"))
    circuit.require(-identified, -is_inside, namespace.present)
    circuit.require(-identified, -is_inside, same)
    circuit.require(-identified, is_inside, -namespace.present)


def identified(value: Any, field: str, request: dict[str, Any], name: str) -> Any:
    """Return an object with the name and the namespace that nothing asked about."""
    if not isinstance(value, dict) or request["subresource"] not in IDENTIFIED:
        return value
    given: dict[str, str] = {}
    if name and (field == "oldObject" or request["verb"] in ("update", "patch", "create")):
        given["name"] = name
    if request["namespace"] and (request["apiGroup"], request["resource"]) != NAMESPACES:
        given["namespace"] = request["namespace"]
    return {**value, "metadata": {**given, **value["metadata"]}}
