"""Predicates and trees of Envoy's matching API (`xds.type.matcher.v3.Matcher`), made without repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from envoy.type.matcher.v3 import http_inputs_pb2
from google.protobuf import any_pb2
from xds.core.v3 import extension_pb2
from xds.type.matcher.v3 import cel_pb2, matcher_pb2, string_pb2
from xds.type.matcher.v3 import http_inputs_pb2 as xds_inputs_pb2
from xds.type.v3 import cel_pb2 as cel_expression_pb2

Predicate: TypeAlias = Any
OnMatch: TypeAlias = Any
_Matcher = matcher_pb2.Matcher
_Predicate = _Matcher.MatcherList.Predicate


def packed(message: Any) -> Any:
    """A message as Any, in the one form that equal messages have."""
    out = any_pb2.Any(type_url=f"type.googleapis.com/{message.DESCRIPTOR.full_name}")
    out.value = message.SerializeToString(deterministic=True)
    return out


def typed(name: str, message: Any) -> Any:
    """A message as the configuration of an extension."""
    return extension_pb2.TypedExtensionConfig(name=name, typed_config=packed(message))


def header(name: str) -> Any:
    """The input that is a request header; several of one name are joined by commas."""
    return typed("request-headers", http_inputs_pb2.HttpRequestHeaderMatchInput(header_name=name))


_ATTRIBUTES = typed("attributes", xds_inputs_pb2.HttpAttributesCelMatchInput())


def exact(text: str, ignore_case: bool = False) -> Any:
    """A text that is this one."""
    return string_pb2.StringMatcher(exact=text, ignore_case=ignore_case)


def prefix(text: str, ignore_case: bool = False) -> Any:
    """A text that begins so."""
    return string_pb2.StringMatcher(prefix=text, ignore_case=ignore_case)


def contains(text: str, ignore_case: bool = False) -> Any:
    """A text that has this one in it."""
    return string_pb2.StringMatcher(contains=text, ignore_case=ignore_case)


def suffix(text: str, ignore_case: bool = False) -> Any:
    """A text that ends so."""
    return string_pb2.StringMatcher(suffix=text, ignore_case=ignore_case)


def regex(pattern: str) -> Any:
    """A text that an RE2 pattern matches as a whole."""
    out = string_pb2.StringMatcher()
    out.safe_regex.google_re2.SetInParent()
    out.safe_regex.regex = pattern
    return out


def has(name: str, text: Any) -> Predicate:
    """A header is there, and fits."""
    out = _Predicate()
    out.single_predicate.input.CopyFrom(header(name))
    out.single_predicate.value_match.CopyFrom(text)
    return out


def present(name: str) -> Predicate:
    """A header is there, whatever it says."""
    return has(name, regex("(?s).*"))


def holds(expression: Any) -> Predicate:
    """A CEL expression (`cel.expr.ParsedExpr`) is true; an error is no match."""
    matcher = cel_pb2.CelMatcher(expr_match=cel_expression_pb2.CelExpression(cel_expr_parsed=expression))
    out = _Predicate()
    out.single_predicate.input.CopyFrom(_ATTRIBUTES)
    out.single_predicate.custom_match.CopyFrom(typed("cel", matcher))
    return out


def all_of(predicates: Sequence[Predicate]) -> Predicate:
    """Every one of one or more."""
    if len(predicates) == 1:
        return predicates[0]
    return _Predicate(and_matcher=_Predicate.PredicateList(predicate=predicates))


def any_of(predicates: Sequence[Predicate]) -> Predicate:
    """One of one or more."""
    if len(predicates) == 1:
        return predicates[0]
    return _Predicate(or_matcher=_Predicate.PredicateList(predicate=predicates))


def lookup(text: Any, found: Mapping[str, OnMatch], otherwise: OnMatch | None, by_prefix: bool = False) -> OnMatch:
    """What a text, or its longest known prefix, leads to; one hash lookup for exact texts, however many there are."""
    if not found and otherwise is not None:
        return otherwise
    tree = _Matcher.MatcherTree(input=text)
    into = (tree.prefix_match_map if by_prefix else tree.exact_match_map).map
    for key in sorted(found):
        into[key].CopyFrom(found[key])
    return _Matcher.OnMatch(matcher=_Matcher(matcher_tree=tree, on_no_match=otherwise))


def first_of(choices: Sequence[tuple[Predicate, OnMatch]], otherwise: OnMatch | None) -> OnMatch:
    """What the first predicate that holds leads to."""
    if not choices and otherwise is not None:
        return otherwise
    fields = [_Matcher.MatcherList.FieldMatcher(predicate=one, on_match=then) for one, then in choices]
    return _Matcher.OnMatch(matcher=_Matcher(matcher_list=_Matcher.MatcherList(matchers=fields), on_no_match=otherwise))


def matcher(decision: OnMatch | None) -> Any:
    """A whole matcher; one without a decision never matches."""
    if decision is None:
        return _Matcher()
    if decision.HasField("matcher"):
        return decision.matcher
    return _Matcher(on_no_match=decision)
