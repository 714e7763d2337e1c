"""Writes conditions of settings as predicates of Envoy's matchers."""

from __future__ import annotations

from envoy.extensions.matching.common_inputs.network.v3 import network_inputs_pb2
from envoy.extensions.matching.input_matchers.ip.v3 import ip_pb2
from xds.type.matcher.v3 import matcher_pb2

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_message import parsed_expression
from tierwall.engines.envoy.config.matchers import Predicate, all_of, any_of, cel_predicate, extension_config
from tierwall.engines.envoy.config.settings.conditions import AddressCondition, Condition, ConditionList

_Predicate = matcher_pb2.Matcher.MatcherList.Predicate
_ADDRESS, _RAW = (
    extension_config("address", message)
    for message in (network_inputs_pb2.SourceIPInput(), network_inputs_pb2.DirectSourceIPInput())
)
_EVERY_ADDRESS = (("0.0.0.0", 0), ("::", 0))


def condition_predicate(condition: Condition) -> Predicate:
    """Return the predicate that holds where a condition is true."""
    match condition:
        case ConditionList(parts=parts, all_hold=all_hold):
            return (all_of if all_hold else any_of)([condition_predicate(part) for part in parts])
        case AddressCondition():
            return _address_predicate(condition)
        case ast.Literal(value=value):
            return _address_predicate(AddressCondition(_EVERY_ADDRESS, negated=value is not True))
        case _:
            return cel_predicate(parsed_expression(condition))


def negated(predicate: Predicate) -> Predicate:
    """Return the predicate that holds where another does not."""
    return _Predicate(not_matcher=predicate)


def _address_predicate(condition: AddressCondition) -> Predicate:
    if not condition.blocks:
        # It is in none of them.
        return _address_predicate(AddressCondition(_EVERY_ADDRESS, negated=not condition.negated))
    blocks = ip_pb2.Ip(stat_prefix="settings")
    for address, length in condition.blocks:
        blocks.cidr_ranges.add(address_prefix=address).prefix_len.value = length
    within = _Predicate(
        single_predicate={
            "input": _RAW if condition.raw else _ADDRESS,
            "custom_match": extension_config("blocks", blocks),
        }
    )
    return negated(within) if condition.negated else within
