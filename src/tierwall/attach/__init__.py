"""Where a policy attaches: targeting, once for the gateway plane and the tool plane.

What to call, from the outside in:

`place.Place(group, kind, namespace, name, section="", port=0)`
    A thing that policies attach to: an object, a section of it (listener, route rule, Service port, sub-backend), or a
    port of a Gateway. `Place.of(resource, section="", port=0)` makes one of an object; `whole` drops the section.
`target.targets(snapshot, policy) -> tuple[Target, ...]`
    What `spec.targetRefs` and `spec.targetSelectors` name, selectors resolved, in the policy's own namespace, repeats
    dropped. A `Target` has the place, the object (or None) and the path where it was written. Works on policies that
    admission refuses too: what is unreadable is left out.
`target.attachments(snapshot, kinds, admitted=…) -> Attachments`
    All policies of some kinds by place: `at(place)` gives them oldest first, then by `namespace/name`, each once.
    With `admitted=True` those that admission refuses or Tierwall does not know are left out. `GATEWAY_POLICIES`
    and `ACCESS_POLICIES` are the kinds of the two planes.
`section.sections(resource) -> tuple[str, ...]` and `section.has(snapshot, resource, place)`
    The sections that an object has, and whether the section or port of a place is there.
`listener.listeners(resource)`, `listener.gateway_listeners(snapshot, gateway)`, `listener.parent_gateway(…)`
    Listeners of a Gateway or ListenerSet; those of a Gateway with the ListenerSets that it lets in.
`route.attach_route(snapshot, route)` and `backend.backend_refs(route)`
    Which listeners a route attaches to (parentRefs, allowedRoutes, hostnames), or why not; where its rules lead
    (ReferenceGrant), delegation to other routes included.
`reach.reach(snapshot) -> Reach`
    The whole graph from Gateways on: `gateways(place)` are the Gateways that lead to a place, `ways()` every way from a
    listener through routes to a backend, `routes(gateway, listener)` the routes on a listener.
`attachment.attachment(snapshot, policy) -> tuple[Attached, ...]`
    For each target whether the policy attaches there and through which Gateways, or why not (`Problem`).
`backend.nested_refs(owner)`
    The `backendRef`s inside a policy or backend, and why one does not resolve.
`acceptance.excesses(snapshot, policy)`, `refusals(policy)`, `broken_expressions(…)`
    Which limits of a target an AccessPolicy goes beyond; which of its expressions a controller refuses; the same for
    those of an AgentgatewayPolicy.
`status.ancestors(snapshot, policy, standing)`
    What a controller would write into `status.ancestors`; `standing` is what the gateway plane's merge adds.

Everything is a pure function of the snapshot, memoised in it, and in an order that does not depend on the files.
"""
