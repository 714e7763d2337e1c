"""Cuts a server's lists to the tools, prompts and resources that a caller may use.

docs/run.md#lists. An entry is shown if some request for it may pass, perhaps only with certain arguments or headers: a
tool if it may be called, a prompt if it may be got, a resource if it may be read. A template of resources is shown to
callers of rules without params, or with that very template. Everything else of a message stays as it is written, the
cursor to the next page included, except what would let caches show one caller's list to another, or an old one.

A list that cannot be read is replaced by an error, so that a list in an unknown form is never shown uncut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from tierwall.tool.protocol import CALL, GET_PROMPT, READ

INTERNAL_ERROR = -32603
# The longest message, in bytes, that is kept in memory until it is whole.
LONGEST = 64 << 20


class ListKind(NamedTuple):
    """A list: the key of its entries, the key of an entry's name, and the method that uses an entry."""

    entries: str
    name: str
    use: str


LISTS = {
    "tools/list": ListKind("tools", "name", CALL),
    "prompts/list": ListKind("prompts", "name", GET_PROMPT),
    "resources/list": ListKind("resources", "uri", READ),
    "resources/templates/list": ListKind("resourceTemplates", "uriTemplate", READ),
}
# By the method that uses an entry, the category whose lists a notification says to have changed.
_CATEGORIES = {CALL: "tools", GET_PROMPT: "prompts", READ: "resources"}
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

# Of a method, whether a caller may use it with a name.
Shown = Callable[[str], Callable[[str], bool]]
_Fields = dict[str, msgspec.Raw]
_read_fields = msgspec.json.Decoder(_Fields).decode
_read_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_names = {
    kind.name: msgspec.json.Decoder(msgspec.defstruct("Named", [("value", str, msgspec.field(name=kind.name))])).decode
    for kind in LISTS.values()
}
# What only the newest protocol version has in the results of lists.
_OF_CACHES = ("resultType", "ttlMs", "cacheScope")
# The fields of an event besides `data` (HTML, "Server-sent events"); comments have an empty name.
_FIELDS = (b"event", b"id", b"retry", b"")
# What some clients take for the end of a line: control characters, U+0085, U+2028 and U+2029.
_OTHER_ENDS = re.compile(rb"[\x00-\x08\x0b-\x1f]|\xc2\x85|\xe2\x80[\xa8\xa9]")
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


class ListFilter:
    """Cuts one response to what a caller may use: JSON as a whole, events one by one as they come.

    `method` is the list that was asked for; None for a stream of the server, which may bring any list. `shown` is None
    if nothing is known of the caller's place: then nothing is shown.
    """

    def __init__(self, content_type: str, method: str | None, shown: Shown | None) -> None:
        self._media_type = content_type.partition(";")[0].strip().lower()
        self._method = method
        self._shown = shown
        self._kept = bytearray()
        self._has_begun = False
        self._is_over = False

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events."""
        return self._media_type == "text/event-stream"

    @property
    def is_between_events(self) -> bool:
        """Whether it is a stream that has begun; no event is ever shown in part."""
        return self.is_stream and self._has_begun and not self._is_over

    def feed(self, data: bytes, ends: bool) -> bytes:
        """Take a part of the body, and return what can be shown; `ends` says that it is the last part."""
        if self._is_over:
            return b""
        searched = max(0, len(self._kept) - 3)
        self._kept += data
        if len(self._kept) > LONGEST:
            self._is_over = True
            return self._event(_refusal()) if self.is_stream else _refusal()
        if self.is_stream:
            stop = (
                len(self._kept) if ends else max((end.end() for end in _END.finditer(self._kept, searched)), default=0)
            )
            whole = b""
            if stop == len(self._kept):
                # Most often nothing is left: a large list is copied once.
                whole, self._kept = bytes(self._kept), bytearray()
            elif stop:
                whole = bytes(self._kept[:stop])
                del self._kept[:stop]
            self._has_begun, self._is_over = self._has_begun or bool(whole), ends
            return b"".join(self._events(whole)) if whole else b""
        if not ends or not self._kept:
            return b""
        return self._message(bytes(self._kept)) if self._media_type == "application/json" else _refusal()

    def _events(self, body: bytes) -> Iterator[bytes]:
        """Yield every event with its data cut; other fields stay the same.

        Lines without a field are left out, and those that a client could read as several.
        """
        kept: list[bytes] = []
        data: list[bytes] = []
        for line in [*body.removeprefix(b"\xef\xbb\xbf").splitlines(), b""]:
            if line:
                name, _, rest = line.partition(b":")
                if name == b"data":
                    data.append(rest.removeprefix(b" "))
                elif name in _FIELDS and not _OTHER_ENDS.search(line):
                    kept.append(line)
                continue
            if data and b"".join(data).strip():
                kept += (b"data: " + part for part in self._message(b"\n".join(data)).split(b"\n"))
            elif data:
                kept.append(b"data: ")
            if kept:
                yield b"\n".join(kept) + b"\n\n"
            kept, data = [], []

    def _event(self, message: bytes) -> bytes:
        return b"data: " + message + b"\n\n"

    def _message(self, text: bytes) -> bytes:
        try:
            message = _read_fields(text)
            if "result" not in message:
                # An error, a request or a notification from the server: nothing to cut.
                return text
            result = _result(message["result"])
            kinds = [LISTS[self._method]] if self._method is not None else _kinds(result)
            if not kinds:
                return text
            identity = message.get("id")
            if self._shown is None or any(kind.entries not in result for kind in kinds):
                return _refusal(identity)
            for kind in kinds:
                result[kind.entries] = self._cut(kind, result[kind.entries], self._shown(kind.use))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return _refusal()
        if any(key in result for key in _OF_CACHES):
            result |= {"ttlMs": msgspec.Raw(b"0"), "cacheScope": msgspec.Raw(b'"private"')}
        return msgspec.json.encode({**message, "result": result})

    def _cut(self, kind: ListKind, entries: msgspec.Raw, is_shown: Callable[[str], bool]) -> msgspec.Raw:
        read_name, kept = _names[kind.name], []
        listed = _read_entries(entries)
        for entry in listed:
            try:
                name: Any = read_name(entry)
            except msgspec.ValidationError:
                continue
            if is_shown(name.value):
                kept.append(entry)
        return entries if len(kept) == len(listed) else msgspec.Raw(msgspec.json.encode(kept))


def list_changes(uses: Collection[str], listens: str | None, identity: str) -> bytes:
    """Return the events that tell that lists of what these methods use have changed.

    `listens` has the categories that a subscription asked for (MCP 2026-07-28, `subscriptions/listen`), and `identity`
    its id as it is written, which every notification of it has. It is None for the stream of a session, which has no
    filter.
    """
    events = []
    for category in sorted(_CATEGORIES[use] for use in uses):
        message: dict[str, object] = {"jsonrpc": "2.0", "method": f"notifications/{category}/list_changed"}
        if listens is not None:
            if category not in listens.split():
                continue
            message["params"] = {"_meta": {_SUBSCRIPTION: msgspec.Raw(identity.encode())}}
        events.append(b"data: " + msgspec.json.encode(message) + b"\n\n")
    return b"".join(events)


def _result(value: msgspec.Raw) -> _Fields:
    """Return the fields of a result; none if it is not an object."""
    try:
        return _read_fields(value)
    except msgspec.ValidationError:
        return {}


def _kinds(result: _Fields) -> list[ListKind]:
    """Return the lists that a result has, whatever it answers."""
    return [kind for kind in LISTS.values() if kind.entries in result]


def _refusal(identity: msgspec.Raw | None = None) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": "the list cannot be read, so it is not shown"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": error})
