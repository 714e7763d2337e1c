"""Watches responses on protected ways (external processing, `envoy.service.ext_proc.v3`): lists, and open streams.

Lists are cut to what the caller may use (`lists`). The stream of a GET, or of `subscriptions/listen`, ends when what is
in force no longer permits it (docs/semantics.md#streams-end-with-their-permission); one that began where no policy was
ends when the first comes. It is judged again at every change, and once when it opens: a client that was sent away may
come back before its proxy has the new policies. If a change leaves a stream open and lets its caller use more or less
than before, the stream says so (`list_changed`).

Envoy asks only about these requests, and only about those that all policies let pass. So calls, and denials, do not
depend on this service. If it does not answer, lists fail, streams end, and none opens: a stream that nobody judges
could outlive its permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import grpc
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.http.composite.v3 import composite_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as processor_pb2
from msgspec import structs
from xds.type.matcher.v3 import matcher_pb2

from tierwall.core.reference import Reference
from tierwall.engines.envoy.config.bootstrap import CONTROL_PLANE
from tierwall.engines.envoy.config.matchers import (
    all_of,
    any_of,
    extension_config,
    first_of,
    header,
    header_predicate,
    lookup,
    matcher,
    packed,
)
from tierwall.engines.envoy.config.mcp import ELSEWHERE, SERVER
from tierwall.engines.envoy.config.names import (
    HEADER_PREFIX,
    ID,
    ITEMS,
    JOINED,
    JWT_METADATA,
    LISTENS,
    METHOD,
    PATH,
    SUBSCRIPTION,
    TO_RESOURCES,
    UNGUARDED,
    URI,
    backend_of_cluster,
    place_of,
)
from tierwall.engines.envoy.control.caller_view import CallerView, ViewOf
from tierwall.engines.envoy.control.item_view import ItemView, RulesOf, joined_view, request_variables
from tierwall.engines.envoy.control.lists import LISTS, ListFilter, Shown, list_changes
from tierwall.engines.envoy.control.processing_messages import (
    claims_of,
    ended,
    header_values,
    is_compressed,
    streamed,
    unreadable,
)
from tierwall.tool.protocol import LISTEN, SUBSCRIBE, VERSION_HEADER
from tierwall.tool.request import SESSION_HEADER, ToolRequest, tool_request

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
FILTER = "tierwall.responses"
EXT_PROC = "envoy.filters.http.ext_proc"  # the namespace of the attributes
_CALLER, _CLUSTER = "connection.uri_san_peer_certificate", "xds.cluster_name"
_CHAIN, _HOST = "xds.filter_chain_name", "xds.virtual_host_name"
_ADDRESS = "source.address"
_Mode = processing_mode_pb2.ProcessingMode
# What a cache, or a client with an older list, would go by.
OF_CACHES = ("etag", "last-modified", "age", "expires", "content-md5", "digest", "content-digest", "repr-digest")
CONDITIONS = ("accept-encoding", "if-none-match", "if-modified-since")


def http_filter(cuts_lists: bool = True) -> Any:
    """Return the filter that asks about lists and streams; it runs after the policy filters."""
    # A list comes in parts, whose number does not matter: it may be larger than Envoy's buffer. A stream takes what
    # this service has to say at any time.
    lists, streams = _asking(_Mode.STREAMED), _asking(_Mode.FULL_DUPLEX_STREAMED)
    # Only protected ways have the path header.
    of_mcp = any_of([header_predicate(name, regex="(?s).*") for name in (SESSION_HEADER, VERSION_HEADER)])
    elsewhere = all_of([header_predicate(UNGUARDED, prefix=ELSEWHERE), of_mcp])
    places = any_of([header_predicate(PATH, prefix="/"), header_predicate(UNGUARDED, prefix=SERVER), elsewhere])
    get = all_of([header_predicate(":method", exact="GET"), places])
    listens = [header_predicate(LISTENS, regex="(?s).*"), header_predicate(UNGUARDED, suffix=f" {LISTEN}")]
    opened = first_of([(any_of([get, *listens]), streams)], None)
    wanted = lookup(header(METHOD), dict.fromkeys(LISTS, lists), opened) if cuts_lists else opened
    wrapped = extension_matcher_pb2.ExtensionWithMatcher(
        xds_matcher=matcher(wanted),
        extension_config={"name": "composite", "typed_config": packed(composite_pb2.Composite())},
    )
    return http_connection_manager_pb2.HttpFilter(name=FILTER, typed_config=packed(wrapped))


def _asking(body_mode: Any) -> Any:
    """Return the action that asks this service.

    A composite filter runs the inner filter only for matching requests that reach it. A denied request never does, so
    denials work even if this service does not answer.
    """
    is_duplex = body_mode == _Mode.FULL_DUPLEX_STREAMED
    asking = ext_proc_pb2.ExternalProcessor(
        processing_mode=_Mode(
            request_header_mode=_Mode.SEND,
            response_header_mode=_Mode.SEND,
            request_body_mode=_Mode.NONE,
            response_body_mode=body_mode,
            request_trailer_mode=_Mode.SKIP,
            # Envoy wants it for both directions at once.
            response_trailer_mode=_Mode.SEND if is_duplex else _Mode.SKIP,
        ),
        request_attributes=[_CALLER, _CHAIN, _HOST, _CLUSTER, _ADDRESS],
        allow_mode_override=not is_duplex,
        stat_prefix="responses",
    )
    asking.grpc_service.envoy_grpc.cluster_name = CONTROL_PLANE
    asking.message_timeout.seconds = 10
    asking.metadata_options.forwarding_namespaces.untyped.extend((SUBSCRIPTION, JWT_METADATA))
    run = composite_pb2.ExecuteFilterAction(typed_config={"name": FILTER, "typed_config": packed(asking)})
    return matcher_pb2.Matcher.OnMatch(action=extension_config("filter", run))


class ResponseService:
    """The gRPC service that Envoys ask, and the streams that are open at them."""

    def __init__(
        self,
        view_of: ViewOf,
        cuts_lists: bool = True,
        rules_of: RulesOf = lambda name: None,
        has_rules: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._view_of = view_of
        self._rules_of, self._has_rules = rules_of, has_rules
        self._cuts_lists = cuts_lists
        self._change: asyncio.Future[None] | None = None

    def judge_again(self) -> None:
        """Judge every open stream again, after a change of what is in force."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None

    @property
    def handler(self) -> Any:
        """The handler of its calls."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            processor_pb2.ProcessingRequest.FromString,
            processor_pb2.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": handler})

    def _next_change(self) -> asyncio.Future[None]:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    async def _process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        messages = aiter(requests)
        first = await anext(messages, None)
        if first is None or first.WhichOneof("request") != "request_headers":
            return
        exchange = WatchedRequest(first, self._view_of, self._cuts_lists, self._rules_of)
        change = self._next_change()
        if not self._is_permitted(exchange):
            yield ended()
            return
        yield exchange.answer(first)
        following: asyncio.Task[Any] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(_next(messages))
                await asyncio.wait((following, change), return_when=asyncio.FIRST_COMPLETED)
                if change.done():
                    change = self._next_change()
                    if not self._is_permitted(exchange):
                        yield ended()
                        return
                    if told := exchange.list_changes():
                        yield told
                if following.done():
                    message, following = following.result(), None
                    if message is None:
                        return
                    answer = exchange.answer(message)
                    if answer is not None:
                        yield answer
        finally:
            if following is not None:
                following.cancel()

    def _is_permitted(self, exchange: WatchedRequest) -> bool:
        """Whether a stream may be open now, by rules about items that are still those that cut its lists."""
        return exchange.is_permitted() and (exchange.rules is None or self._has_rules(exchange.rules))


async def _next(messages: AsyncIterator[Any]) -> Any:
    return await anext(messages, None)


class WatchedRequest:
    """A request that Envoy asks about, and its response. The caller and the place come from Envoy, not from clients."""

    def __init__(self, first: Any, view_of: ViewOf, cuts_lists: bool, rules_of: RulesOf) -> None:
        headers = header_values(first.request_headers.headers)
        attributes = first.attributes[EXT_PROC].fields if EXT_PROC in first.attributes else {}
        strings = {key: value.string_value for key, value in attributes.items()}
        self._place = place_of(strings.get(_CHAIN, ""), strings.get(_HOST, "")) | {
            "backend": backend_of_cluster(strings.get(_CLUSTER, ""), with_group=True) or ""
        }
        self._caller = strings.get(_CALLER) or None
        self._view_of = view_of
        self._headers = headers
        metadata = first.metadata_context.filter_metadata
        further = metadata[SUBSCRIPTION]["uris"] if SUBSCRIPTION in metadata else ()
        self._further_uris = [str(uri) for uri in further]
        method = headers.get(METHOD, "")
        self._has_items = bool(headers.get(ITEMS))
        rules = rules_of(headers[ITEMS]) if self._has_items else None
        variables = request_variables(headers, claims_of(metadata), strings.get(_ADDRESS, ""))
        self._items = ItemView(rules, variables) if rules is not None else None
        # The servers whose items a list has, with their names as prefixes.
        self._joined = tuple(filter(None, headers.get(JOINED, "").split(",")))
        self._list = method if method in LISTS and LISTENS not in headers else None
        # Nothing of its message was read but the method, so it ends as soon as a policy comes.
        self._is_unguarded = UNGUARDED in headers
        view = self._view()
        # A list may come in answer to a GET of the endpoint: it resumes the stream of an earlier request.
        path = headers.get(":path", "").partition("?")[0]
        # Rules about items let streams pass only there.
        at_endpoint = view is not None and (self._has_items or path == view.way.backend.path)
        at_endpoint = at_endpoint and not self._is_unguarded
        self._cuts = cuts_lists and (self._list is not None or at_endpoint)
        self._filter: ListFilter | None = None
        # What the caller could use when the stream opened or last said so, and whether it has said what came since.
        self._grants = self._granted(view)
        self._is_told = True
        # The policies whose authorizers were asked when the stream opened; a list is not judged again.
        self._asked: frozenset[Reference] | None = None

    @property
    def rules(self) -> str | None:
        """The name of the rules about items that cut the lists of a stream; None without rules, and for a list."""
        return self._headers[ITEMS] if self._has_items and self._list is None else None

    def _view(self) -> CallerView | None:
        return self._view_of(self._place, self._caller)

    def _shown(self) -> Shown | None:
        """Return what policies and rules show; None if nothing is known of the place or of its rules."""
        view, items = self._view(), self._items
        if view is None or (self._has_items and items is None):
            return None
        if self._joined:
            return joined_view(self._joined, view.shown, items)
        if items is None:
            return view.shown

        def shown(use: str) -> Callable[[str], bool]:
            by_policies, by_rules = view.shown(use), items.shown(use)
            return lambda name: by_policies(name) and by_rules(name)

        return shown

    def is_permitted(self) -> bool:
        """Whether a stream may be open by what is in force now; a policy that asks an authorizer anew ends it."""
        if self._list is not None:
            return True
        view = self._view()
        if self._is_unguarded:
            return view is not None and not any(tier.policies for tier in view.way.stack)
        each = [view.asked_about(request) for request in self._requests(view)] if view is not None else [None]
        if None in each:
            return False
        asked = frozenset[Reference]().union(*(policies for policies in each if policies is not None))
        if self._asked is None:
            self._asked = asked
        return asked <= self._asked

    def _requests(self, view: CallerView) -> Iterator[ToolRequest]:
        """Yield the request, once for each resource if it subscribes to several."""
        headers = self._headers
        method, uris = headers.get(METHOD) or None, [headers.get(URI) or None, *self._further_uris]
        for uri in uris:
            request = tool_request(
                view.way.backend,
                view.caller,
                SUBSCRIBE if method == TO_RESOURCES else method,
                uri=uri,
                http_method=headers.get(":method", "GET"),
                path=headers.get(":path", "/"),
                host=headers.get(":authority"),
                headers={name: value for name, value in headers.items() if not name.startswith((":", HEADER_PREFIX))},
                port=view.port,
            )
            # Envoy has compared the headers with the body.
            yield structs.replace(request, unreadable="")

    def _granted(self, view: CallerView | None) -> dict[str, object]:
        return {kind.use: view.grants(kind.use) for kind in LISTS.values()} if view is not None and self._cuts else {}

    def list_changes(self) -> Any:
        """Return the message that tells the caller which of its lists have changed, or None.

        Envoy takes it only once the server has said something: until then it waits.
        """
        self._is_told = False
        told = self._changes()
        return streamed(told) if told else None

    def _changes(self) -> bytes:
        if self._is_told or self._filter is None or not self._filter.is_between_events:
            return b""
        before, self._grants, self._is_told = self._grants, self._granted(self._view()), True
        changed = {use for use, grants in self._grants.items() if grants != before.get(use)}
        return list_changes(changed, self._headers.get(LISTENS), self._headers.get(ID, ""))

    def answer(self, message: Any) -> Any:
        """Return the answer to a message of Envoy; None if there is nothing to say yet."""
        answer = processor_pb2.ProcessingResponse()
        match message.WhichOneof("request"):
            case "request_headers":
                # A compressed list could not be read, and one that has not changed may look different to this caller.
                names = CONDITIONS if self._cuts else ()
                answer.request_headers.response.SetInParent()
                answer.request_headers.response.header_mutation.remove_headers.extend(names)
            case "response_headers":
                headers = header_values(message.response_headers.headers)
                if self._is_unreadable(headers):
                    return unreadable()
                self._answer_headers(headers, answer)
            case "response_body":
                body = message.response_body
                shown = self._filter.feed(body.body, body.end_of_stream) if self._filter is not None else body.body
                if self._list is None:
                    shown += self._changes()
                    return streamed(shown, body.end_of_stream) if shown or body.end_of_stream else None
                if shown:
                    answer.response_body.response.body_mutation.body = shown
                else:
                    answer.response_body.response.body_mutation.clear_body = True
            case "response_trailers":
                answer.response_trailers.SetInParent()
        return answer

    def _is_unreadable(self, headers: Mapping[str, str]) -> bool:
        """Whether a response is a stream that may bring lists, but compressed, although nobody asked for that."""
        is_stream = ListFilter(headers.get("content-type", ""), None, None).is_stream
        return self._cuts and self._list is None and is_stream and is_compressed(headers)

    def _answer_headers(self, headers: Mapping[str, str], answer: Any) -> None:
        # Envoy takes an answer that says nothing at all for a mistake.
        answer.response_headers.response.SetInParent()
        mutation = answer.response_headers.response.header_mutation
        content_type = headers.get("content-type", "")
        if is_compressed(headers):
            content_type = "compressed"
        read = ListFilter(content_type, self._list, self._shown())
        if not self._cuts or (self._list is None and not read.is_stream):
            return
        self._filter = read
        mutation.remove_headers.extend(("content-length", *OF_CACHES))
        if self._list is not None:
            mutation.set_headers.add(header={"key": "cache-control", "raw_value": b"private, no-cache"})
