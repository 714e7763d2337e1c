"""Turn residuals into conditions within the limits of a set, without changing their meaning.

A text over 1,024 bytes is split at its top-level `||`. That is exact for every effect: a disjunction is true if a part
is true, and otherwise fails if a part fails. Where that is not enough, the text is packed: deflated and written in
base 85 (type `PACKED_CEL_TYPE`), so that any replica can unpack it without state, up to a bounded size. More than 128
conditions are joined by `||` again. A set that still does not fit falls to its failure mode. Few conditions are packed,
so the modules for packing are imported on use.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tierwall.api.algebra.condition import (
    CEL_TYPE,
    MAX_CONDITION_BYTES,
    MAX_CONDITIONS,
    PACKED_CEL_TYPE,
    Condition,
    Effect,
    digest,
)
from tierwall.cel.syntax.ast import Call, Expr
from tierwall.cel.syntax.printer import to_text

MAX_UNPACKED_BYTES = 64 * 1024


def pack(text: str) -> str:
    """Pack a text."""
    import base64
    import zlib

    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: str) -> str:
    """Unpack a text; ValueError if `packed` does not come from `pack`."""
    import base64
    import zlib

    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b85decode(packed), MAX_UNPACKED_BYTES)
        if not stream.eof or stream.unused_data:
            raise ValueError("the packed condition is cut short, too long, or followed by other bytes")
        return raw.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a packed condition: {error}") from None


def pack_condition(condition: Condition) -> Condition:
    """Pack the CEL of a condition, unless it is packed already."""
    if condition.type == PACKED_CEL_TYPE:
        return condition
    return replace(condition, text=pack(condition.text), type=PACKED_CEL_TYPE)


def residual_conditions(condition: Condition, tree: Expr) -> list[Condition]:
    """Return the conditions for the residual of a condition; nearly always one."""
    whole = replace(condition, text=to_text(tree), type=CEL_TYPE)
    if fits(whole.text):
        return [whole]
    if isinstance(tree, Call) and tree.function == "_||_":
        parts = [
            pack_if_too_long(replace(whole, id=_part_id(whole.id, number), text=to_text(part)))
            for number, part in enumerate(tree.args)
        ]
        if all(fits(part.text) for part in parts):
            return parts
    return [pack_if_too_long(whole)]


def join_to_limit(conditions: Iterable[Condition]) -> list[Condition]:
    """Join conditions until at most 128 are left, if that is possible."""
    all_conditions = list(conditions)
    if len(all_conditions) <= MAX_CONDITIONS:
        return all_conditions
    return [joined for effect in Effect for joined in _joined(all_conditions, effect)]


def fits(text: str) -> bool:
    """Whether a text is short enough for a condition."""
    return len(text.encode("utf-8", "surrogatepass")) <= MAX_CONDITION_BYTES


def _part_id(id: str, number: int) -> str:
    """Return the id of one part, which is a label key too: the end of a long name becomes its digest."""
    prefix, slash, name = id.rpartition("/")
    if len(name) > 58:
        name = f"{name[:40].rstrip('-_.')}-{digest(name)}"
    return f"{prefix}{slash}{name}.{number}"


def pack_if_too_long(condition: Condition) -> Condition:
    """Pack a condition that is too long, unless it is too long to be unpacked."""
    if fits(condition.text) or len(condition.text.encode()) > MAX_UNPACKED_BYTES:
        return condition
    return pack_condition(condition)


def _joined(conditions: list[Condition], effect: Effect) -> Iterable[Condition]:
    group: Condition | None = None
    for condition in conditions:
        if condition.effect is not effect:
            continue
        if condition.type != CEL_TYPE:
            yield condition
        elif group is None:
            group = replace(condition, text=f"({condition.text})")
        elif fits(both := f"{group.text} || ({condition.text})"):
            group = replace(group, text=both, description="")
        else:
            yield group
            group = replace(condition, text=f"({condition.text})")
    if group is not None:
        yield group
