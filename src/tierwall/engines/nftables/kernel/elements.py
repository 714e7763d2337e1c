"""Changes of set elements, sent straight to the kernel as one transaction.

nft first lists what the kernel holds, which takes longer for larger tables. An added or removed pod changes a few
elements, and for those no listing is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tierwall.engines.nftables.kernel.netlink import (
    NFNL_SUBSYS_NFTABLES,
    NFPROTO_INET,
    NLM_F_CREATE,
    Netlink,
    NetlinkError,
    NetlinkMessage,
    attribute,
    nested_attribute,
    number_attribute,
    string_attribute,
)
from tierwall.engines.nftables.kernel.nflog import PacketFlow, address_bytes
from tierwall.engines.nftables.table.table import (
    CUT,
    TABLE,
    Attached,
    ChainVerdict,
    Element,
    ElementChange,
    VerdictWord,
)
from tierwall.values.addresses import IPV6

_NEW, _DELETE = 12, 14
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_ITEM = 1
_KEY, _DATA, _TIMEOUT, _USERDATA = 1, 2, 4, 6
_FULL = 23  # ENFILE: the set is full
_VALUE, _VERDICT = 1, 2
_CODE, _CHAIN = 1, 2
_VERDICTS = {
    VerdictWord.GOTO: -4,
    VerdictWord.JUMP: -3,
    VerdictWord.RETURN: -5,
    VerdictWord.ACCEPT: 1,
    VerdictWord.DROP: 0,
}
_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
_COMMENT = 0
_NAME_BYTES = 16
# Some hundreds of elements of any kind fit into an attribute of 64 KiB.
_AT_ONCE = 200


def send(changes: Iterable[tuple[str, ElementChange]]) -> None:
    """Change elements in one transaction. After a NetlinkError nothing has changed."""
    messages = list(_messages(changes))
    if messages:
        with Netlink() as netlink:
            netlink.batch(NFNL_SUBSYS_NFTABLES, messages)


def add_flows(flows: Iterable[PacketFlow], seconds: int) -> int:
    """Add TCP flows, as their packets show them, to the sets of cut connections for a while; return how many fitted."""
    count = 0
    with Netlink() as netlink:
        for flow in flows:
            name = f"{CUT}{6 if flow.source >= IPV6 else 4}"
            endpoints = ((flow.source, flow.source_port), (flow.destination, flow.port))
            key = b"".join(address_bytes(address) + port.to_bytes(2, "big") + b"\0\0" for address, port in endpoints)
            timeout = attribute(_TIMEOUT, (seconds * 1000).to_bytes(8, "big"))
            item = nested_attribute(_ITEM, nested_attribute(_KEY, attribute(_VALUE, key)), timeout)
            body = (
                string_attribute(_LIST_TABLE, TABLE)
                + string_attribute(_LIST_SET, name)
                + nested_attribute(_LIST_ELEMENTS, item)
            )
            try:
                netlink.batch(NFNL_SUBSYS_NFTABLES, [(NetlinkMessage(_NEW, NFPROTO_INET, body), NLM_F_CREATE)])
            except NetlinkError as error:
                if error.errno != _FULL:
                    raise
                continue
            count += 1
    return count


def _messages(changes: Iterable[tuple[str, ElementChange]]) -> Iterator[tuple[NetlinkMessage, int]]:
    all_changes = list(changes)
    for name, change in all_changes:
        yield from _batches(_DELETE, 0, name, dict.fromkeys(change.removed, ""))
    for name, change in all_changes:
        yield from _batches(_NEW, NLM_F_CREATE, name, change.added)


def _batches(
    kind: int, flags: int, name: str, elements: Mapping[Element, Attached]
) -> Iterator[tuple[NetlinkMessage, int]]:
    keys = list(elements)
    for start in range(0, len(keys), _AT_ONCE):
        items = [_item(key, elements[key]) for key in keys[start : start + _AT_ONCE]]
        body = (
            string_attribute(_LIST_TABLE, TABLE)
            + string_attribute(_LIST_SET, name)
            + nested_attribute(_LIST_ELEMENTS, *items)
        )
        yield NetlinkMessage(kind, NFPROTO_INET, body), flags


def _item(element: Element, attached: Attached) -> bytes:
    parts = [nested_attribute(_KEY, attribute(_VALUE, _key(element)))]
    if isinstance(attached, ChainVerdict):
        inner = [number_attribute(_CODE, _VERDICTS[attached.word] & 0xFFFFFFFF)]
        if attached.chain:
            inner.append(string_attribute(_CHAIN, attached.chain))
        parts.append(nested_attribute(_DATA, nested_attribute(_VERDICT, *inner)))
    elif attached:
        comment = attached.encode() + b"\0"
        parts.append(attribute(_USERDATA, bytes([_COMMENT, len(comment)]) + comment))
    return nested_attribute(_ITEM, *parts)


def _key(element: Element) -> bytes:
    if isinstance(element, int):
        return address_bytes(element)
    if isinstance(element, str):
        return _name(element)
    if len(element) == 2:
        interface, bound = element
        assert isinstance(interface, str), "ranges are not changed one by one"
        return _name(interface) + address_bytes(bound)
    address, protocol, port = element
    # Each part of a concatenation fills whole 32-bit words.
    return address_bytes(address) + bytes([_PROTOCOLS[str(protocol)], 0, 0, 0]) + port.to_bytes(2, "big") + b"\0\0"


def _name(interface: str) -> bytes:
    """Return the name of an interface, filled up to the kernel's length."""
    return interface.encode().ljust(_NAME_BYTES, b"\0")
