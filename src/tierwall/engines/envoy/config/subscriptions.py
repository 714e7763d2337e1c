"""Subscriptions to several resources: every URI must be granted.

docs/semantics.md#subscriptions-ask-for-their-resources. Envoy looks up one value by hash, the first URI. The others are
in the metadata that `strict.lua` writes, and are compared in an expression, which has the granted URIs once for each
place in the list. So places and granted URIs are limited; beyond the limits a subscription needs a rule without params.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from tierwall.cel.syntax.parser import parse
from tierwall.engines.envoy.config.cel_message import parsed_expression
from tierwall.engines.envoy.config.matchers import Predicate, all_of, any_of, cel_predicate
from tierwall.engines.envoy.config.names import MOST_URIS, SUBSCRIPTION

# The most URIs that the rules about one caller may list for this.
MOST_GRANTED = 100
_URIS = f'metadata.filter_metadata["{SUBSCRIPTION}"].uris'
# The URIs that a rule lists (None for all), and its condition (None for none).
Grant = tuple[Collection[str] | None, Predicate | None]


def subscribed_predicate(grants: Sequence[Grant]) -> Predicate | None:
    """Return a predicate: some grant covers every URI after the first; None if the rules list too many URIs."""
    unconditional = {uri for uris, condition in grants if condition is None for uri in uris or ()}
    conditional = [(uris, condition) for uris, condition in grants if condition is not None]
    if len(unconditional) + sum(len(uris or ()) for uris, _ in conditional) > MOST_GRANTED:
        return None
    places = range(MOST_URIS - 1)
    if not conditional:
        return _covered(places, unconditional)
    return all_of(
        [
            any_of(
                [
                    _covered([place], unconditional),
                    *(
                        condition if uris is None else all_of([condition, _covered([place], uris)])
                        for uris, condition in conditional
                    ),
                ]
            )
            for place in places
        ]
    )


def _covered(places: Collection[int], granted: Collection[str]) -> Predicate:
    """Return a predicate: the URIs at these places, if there are any, are granted."""
    listed = ", ".join(json.dumps(uri, ensure_ascii=False) for uri in sorted(granted))
    texts = (f"(size({_URIS}) <= {place} || {_URIS}[{place}] in [{listed}])" for place in places)
    return cel_predicate(parsed_expression(parse(" && ".join(texts))))
