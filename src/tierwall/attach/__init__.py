"""Find where policies attach, for the gateway plane and the tool plane.

The functions to call, from the outside in:

`place.Place(group, kind, namespace, name, section="", port=0)`
    A thing that policies attach to: an object, a section of it (listener, route rule, Service port, sub-backend), or a
    port of a Gateway. `Place.of(resource, section="", port=0)` makes one of an object; `whole` drops the section.
`target.targets(snapshot, policy) -> tuple[Target, ...]`
    The targets of `spec.targetRefs` and `spec.targetSelectors` in the policy's own namespace, each once. A `Target` has
    the place, the object (or None) and the path of the entry. Works for policies that admission refuses, too: invalid
    entries are left out.
`target.attachments(snapshot, kinds, admitted=…) -> AttachedPolicies`
    All policies of some kinds by place: `at(place)` returns them oldest first, then by `namespace/name`.
    `admitted=True` leaves out those that admission refuses or Tierwall does not know. `GATEWAY_POLICIES` and
    `ACCESS_POLICIES` are the kinds of the two planes.
`section.sections(resource) -> tuple[str, ...]` and `section.has_section(snapshot, resource, place)`
    The sections of an object, and whether the section or port of a place exists.
`listener.listeners(resource)`, `listener.gateway_listeners(snapshot, gateway)`, `listener.parent_gateway(…)`
    The listeners of a Gateway or ListenerSet; those of a Gateway with the ListenerSets that it admits.
`route.attach_route(snapshot, route)` and `backend.backend_refs(route)`
    The listeners that a route attaches to (parentRefs, allowedRoutes, hostnames), or why it does not; the backends of
    its rules (ReferenceGrant), and routes that it delegates to.
`reach.gateway_graph(snapshot) -> GatewayGraph`
    The graph that starts at Gateways: `gateways(place)` are the Gateways that lead to a place, `request_paths()` all
    paths from a listener through routes to a backend, `routes(gateway, listener)` the routes on a listener.
`attachment.attachment(snapshot, policy) -> tuple[TargetAttachment, ...]`
    For each target the Gateways through which the policy attaches there, or why it does not (`AttachmentProblem`).
`closing.closing_scope(policy)`
    The Gateways and backends that the unreadable entries of an invalid AccessPolicy may have named.
`backend.nested_refs(owner)`
    The `backendRef`s inside a policy or backend, and why one does not resolve.
`acceptance.exceeded_limits(snapshot, policy)`, `refusals(policy)`, `broken_expressions(…)`
    The limits of its targets that an AccessPolicy exceeds, its expressions that a controller refuses, and the
    expressions of an AgentgatewayPolicy that do not parse.
`status.ancestors(snapshot, policy, merge_status)`
    The `status.ancestors` that a controller would write; `merge_status` comes from the gateway plane's merge.

All of these are pure functions of the snapshot, memoised in it; their order does not depend on the files.
"""
