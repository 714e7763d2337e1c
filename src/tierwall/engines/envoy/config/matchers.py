"""Predicates, trees and patterns of Envoy's matching API (`xds.type.matcher.v3.Matcher`).

This includes the HTTP matchers of rules (docs/tool.md#http-matchers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from envoy.type.matcher.v3 import http_inputs_pb2
from google.protobuf import any_pb2
from xds.core.v3 import extension_pb2
from xds.type.matcher.v3 import cel_pb2, matcher_pb2, string_pb2
from xds.type.matcher.v3 import http_inputs_pb2 as xds_inputs_pb2
from xds.type.v3 import cel_pb2 as cel_expression_pb2

from tierwall.engines.envoy.config.names import PATH
from tierwall.engines.envoy.config.patterns import check_http_match
from tierwall.tool.http_match import Comparison, HttpMatch, StringMatch
from tierwall.tool.request import SESSION_HEADER

Predicate: TypeAlias = Any
OnMatch: TypeAlias = Any
_Matcher = matcher_pb2.Matcher
_Predicate = _Matcher.MatcherList.Predicate
_HOST = ":authority"
_EMPTY = "()"  # Envoy does not take an empty pattern


def packed(message: Any) -> Any:
    """Return a message as `Any`; equal messages have equal bytes."""
    type_url = f"type.googleapis.com/{message.DESCRIPTOR.full_name}"
    return any_pb2.Any(type_url=type_url, value=message.SerializeToString(deterministic=True))


def extension_config(name: str, message: Any) -> Any:
    """Return a message as the configuration of an extension."""
    return extension_pb2.TypedExtensionConfig(name=name, typed_config=packed(message))


def header(name: str) -> Any:
    """Return the matcher input for a request header; Envoy joins repeated headers with commas."""
    return extension_config("request-headers", http_inputs_pb2.HttpRequestHeaderMatchInput(header_name=name))


_ATTRIBUTES = extension_config("attributes", xds_inputs_pb2.HttpAttributesCelMatchInput())


def header_predicate(name: str, *, regex: str | None = None, **matcher: Any) -> Predicate:
    """Return a predicate: the header is present and matches, as a whole, an RE2 pattern or a `StringMatcher`."""
    if regex is not None:
        matcher = {"safe_regex": {"google_re2": {}, "regex": regex}}
    return _Predicate(single_predicate={"input": header(name), "value_match": string_pb2.StringMatcher(**matcher)})


def cel_predicate(expression: Any) -> Predicate:
    """Return a predicate: the CEL expression (`cel.expr.ParsedExpr`) is true. An error does not match."""
    matcher = cel_pb2.CelMatcher(expr_match=cel_expression_pb2.CelExpression(cel_expr_parsed=expression))
    return _Predicate(single_predicate={"input": _ATTRIBUTES, "custom_match": extension_config("cel", matcher)})


def all_of(predicates: Sequence[Predicate]) -> Predicate:
    """Return the conjunction of one or more predicates."""
    if len(predicates) == 1:
        return predicates[0]
    return _Predicate(and_matcher=_Predicate.PredicateList(predicate=predicates))


def any_of(predicates: Sequence[Predicate]) -> Predicate:
    """Return the disjunction of one or more predicates."""
    if len(predicates) == 1:
        return predicates[0]
    return _Predicate(or_matcher=_Predicate.PredicateList(predicate=predicates))


def lookup(value: Any, choices: Mapping[str, OnMatch], otherwise: OnMatch | None, by_prefix: bool = False) -> OnMatch:
    """Return a tree that looks up an input exactly, by one hash lookup, or by its longest known prefix."""
    if not choices and otherwise is not None:
        return otherwise
    tree = _Matcher.MatcherTree(input=value)
    into = (tree.prefix_match_map if by_prefix else tree.exact_match_map).map
    for key in sorted(choices):
        into[key].CopyFrom(choices[key])
    return _Matcher.OnMatch(matcher=_Matcher(matcher_tree=tree, on_no_match=otherwise))


def first_of(choices: Sequence[tuple[Predicate, OnMatch]], otherwise: OnMatch | None) -> OnMatch | None:
    """Return the result of the first predicate that holds."""
    if not choices:
        return otherwise
    fields = [_Matcher.MatcherList.FieldMatcher(predicate=predicate, on_match=then) for predicate, then in choices]
    return _Matcher.OnMatch(matcher=_Matcher(matcher_list=_Matcher.MatcherList(matchers=fields), on_no_match=otherwise))


def matcher(decision: OnMatch | None) -> Any:
    """Return a complete matcher. Without a decision it never matches."""
    if decision is None:
        return _Matcher()
    if decision.HasField("matcher"):
        return decision.matcher
    return _Matcher(on_no_match=decision)


def http_predicate(match: HttpMatch, port: int, max_program_size: int) -> Predicate | bool | None:
    """Return the condition on the HTTP request: a predicate, None for any request, False if the port never matches."""
    if match.ports and port not in match.ports:
        return False
    check_http_match(match, max_program_size)
    families: list[Predicate] = []
    if match.methods:
        families.append(any_of([header_predicate(":method", exact=method) for method in sorted(match.methods)]))
    if match.paths:
        families.append(any_of([_text(PATH, path) for path in match.paths]))
    if match.hosts:
        families.append(any_of([_host(host) for host in sorted(match.hosts)]))
    families += [_text(_HOST if header.name == "host" else header.name, header.value) for header in match.headers]
    return all_of(families) if families else None


def session_predicate(path: str) -> Predicate:
    """Return a predicate for the stream (GET) or the end (DELETE with a session) of a session at the backend's path."""
    get = header_predicate(":method", exact="GET")
    delete = all_of([header_predicate(":method", exact="DELETE"), header_predicate(SESSION_HEADER, regex="(?s).*")])
    return all_of([header_predicate(PATH, exact=path), any_of([get, delete])])


def _text(header: str, text: StringMatch) -> Predicate:
    match text.type:
        case Comparison.EXACT:
            return header_predicate(header, exact=text.value) if text.value else header_predicate(header, regex=_EMPTY)
        case Comparison.PREFIX:
            lead = text.value.removesuffix("/")
            below = header_predicate(header, prefix=f"{lead}/")
            return any_of([header_predicate(header, exact=lead), below]) if lead else below
        case Comparison.REGEX:
            return header_predicate(header, regex=text.value or _EMPTY)
        case _:
            assert_never(text.type)


def _host(host: str) -> Predicate:
    """Return a predicate for a host name, or for every name below `*.x`, with or without a port, in any case."""
    name = host.removeprefix("*")
    is_wild = name != host
    bare, with_port = ("suffix", "contains") if is_wild else ("exact", "prefix")
    before_port = header_predicate(_HOST, **{with_port: f"{name}:"}, ignore_case=True)
    fits = any_of(
        [
            header_predicate(_HOST, **{bare: name}, ignore_case=True),
            all_of([header_predicate(_HOST, regex="[^:]+:[0-9]+"), before_port]),
        ]
    )
    # The wildcard stands for at least one character.
    return all_of([fits, header_predicate(_HOST, regex="[^.].*")]) if is_wild else fits
