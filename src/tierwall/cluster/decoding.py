"""Decoding what an API server sends: quickly as a rule, and item by item where something in it has the wrong form.

One object that cannot be decoded must not hide the others (docs/clusters.md#objects-that-cannot-be-decoded). A page is
decoded as a whole, into the fields that planes read. If that fails, each of its objects is decoded alone, and those at
fault are handed on as they are: admission refuses them, and they fail closed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from tierwall.cluster.shapes import ApiObject, Metadata, MetadataObject
from tierwall.errors import TierwallError
from tierwall.resources.json_text import MAX_DEPTH, JsonError, json_values

Item = TypeVar("Item")

# `msgspec` reports a wrong form by the first, text that is not UTF-8 by the second, and deep nesting by the third.
_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_WHOLE = tuple(field for field in ApiObject.__struct_fields__ if field != "metadata")
_KEYS = dict(zip(ApiObject.__struct_fields__, ApiObject.__struct_encode_fields__, strict=True))
_METADATA_KEYS = dict(zip(Metadata.__struct_fields__, Metadata.__struct_encode_fields__, strict=True))


class ListMetadata(Struct, frozen=True, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    # `continue` is a keyword of Python.
    mark: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ListPage(Struct, Generic[Item], frozen=True):
    """One answer to a list."""

    kind: str = ""
    metadata: ListMetadata = ListMetadata()
    items: list[Item] | None = None


class UndecodedObject(Struct, frozen=True):
    """An object of the wrong form, what is wrong with it, and the object as it is."""

    problem: str
    as_it_is: ApiObject


class AnswerError(TierwallError):
    """The API server has answered with something other than what was asked for."""


class ItemReader:
    """Decodes objects of one shape, and pages of them."""

    def __init__(self, shape: type[Any]) -> None:
        self._shape = shape
        # What to ask a server for. If only metadata matters, half of a workload need not be sent.
        self.accept = f"{_METADATA},application/json" if shape is MetadataObject else "application/json"
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ListPage[shape])  # type: ignore[valid-type]
        self._object: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)

    def page(self, body: bytes) -> ListPage[Any]:
        """Decode a page; AnswerError if it is not a list. Its items have the shape, or are undecoded objects."""
        page: ListPage[Any]
        try:
            page = self._page.decode(body)
        except _FAILURES:
            page = self._item_by_item(body)
        # Anything else that answers with a JSON object would count as a list without items, and drop everything.
        if not page.kind.endswith("List"):
            raise AnswerError(f"expected a list, found {_words(page.kind) if page.kind else 'something else'}")
        return page

    def object(self, data: msgspec.Raw | dict[str, Any]) -> Any:
        """Decode an object; an undecoded object if it has the wrong form; AnswerError if it is not an object."""
        if isinstance(data, dict):
            return self._convert(data)
        try:
            return self._object.decode(data)
        except _FAILURES:
            return self._convert(json_object(bytes(data)))

    def _item_by_item(self, body: bytes) -> ListPage[Any]:
        value = json_object(body)
        try:
            head = msgspec.convert({key: value[key] for key in ("kind", "metadata") if key in value}, ListPage[Any])
        except _FAILURES as error:
            raise AnswerError(_words(str(error))) from None
        items = value.get("items")
        if items is not None and not isinstance(items, list):
            raise AnswerError("expected a list as `items`")
        return ListPage(head.kind, head.metadata, [self._convert(item) for item in items or ()])

    def _convert(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise AnswerError("expected an object")
        if isinstance(metadata := value.get("metadata"), dict):
            # Nobody reads these, and whoever may write an object may nest them deeply.
            metadata.pop("managedFields", None)
        try:
            return msgspec.convert(value, self._shape)
        except _FAILURES as error:
            return UndecodedObject(_words(str(error)), _as_it_is(value))


def metadata_of(item: Any) -> Any:
    """Return the metadata of a decoded object, or of one that was not decoded."""
    return item.as_it_is.metadata if isinstance(item, UndecodedObject) else item.metadata


def name_of(item: Any) -> tuple[str, str]:
    """Return the namespace and the name of an object, decoded or not; the name is empty if it is of the wrong form."""
    metadata = metadata_of(item)
    return metadata.namespace, metadata.name


def json_object(data: bytes) -> dict[str, Any]:
    """Decode a map, however deeply it is nested; AnswerError if the text is anything else."""
    try:
        values = [value for value, _, _ in json_values(data, MAX_DEPTH)]
    except (JsonError, UnicodeDecodeError) as error:
        raise AnswerError(f"expected JSON: {_words(str(error))}") from None
    if len(values) != 1 or not isinstance(values[0], dict):
        raise AnswerError("expected one JSON object")
    return values[0]


def _as_it_is(value: dict[str, Any]) -> ApiObject:
    """Make an object without looking at the form of its parts. Structs check types only when they decode."""
    given = value.get("metadata")
    metadata = Metadata(
        **{name: given[key] for name, key in _METADATA_KEYS.items() if key in given} if isinstance(given, dict) else {}
    )
    metadata.name, metadata.namespace = _text(metadata.name), _text(metadata.namespace)
    metadata.resource_version = _text(metadata.resource_version)
    out = ApiObject(metadata, **{name: value.get(_KEYS[name], UNSET) for name in _WHOLE})
    try:
        msgspec.to_builtins(out)
    except (TypeError, ValueError, RecursionError):
        # Nested too deeply for anything: without content, admission refuses it.
        return ApiObject(Metadata(metadata.name, metadata.namespace, resource_version=metadata.resource_version))
    return out


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words(text: str) -> str:
    """Return a message in one line of a bounded length: it may quote what the server has sent."""
    return " ".join(text[:200].split())
