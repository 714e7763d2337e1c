"""A client that speaks HTTP/2 frame by frame, and can send what no library would send."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.labs.waiting import PATIENCE_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
JSON = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
Header = tuple[str | bytes, str | bytes]


@dataclass
class Answer:
    """The answer on a stream; `reset` is the code of RST_STREAM."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    closed: bool = False

    @property
    def reached(self) -> bool:
        """Whether the recording backend gave this answer."""
        return "x-tierwall-reached" in self.headers

    @property
    def refused(self) -> bool:
        """Whether the answer is a refusal, or the stream was reset or the connection closed instead."""
        if self.reached or not self.is_over:
            return False
        return not self.status or self.status >= 400 or b'"error"' in self.body

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.ended or self.reset is not None or self.closed


class Http2:
    """A connection; streams get the numbers 1, 3, 5, … in the order of opening."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, name: str = "localhost") -> None:
        self._socket: Any = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            context.set_alpn_protocols(["h2"])
            self._socket = context.wrap_socket(self._socket, server_hostname=name)
            assert self._socket.selected_alpn_protocol() == "h2"
        self._encoder, self._decoder = Encoder(), Decoder()
        # The dynamic tables would differ after a header block that the peer refuses.
        self._encoder.header_table_size = 0
        self._next = 1
        self._pending = b""
        self.answers: dict[int, Answer] = {}
        self.closed = False
        self.goaway: int | None = None
        self.send(PREFACE + SettingsFrame().serialize())

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged; a peer that has closed the connection gets nothing."""
        try:
            self._socket.sendall(data)
        except OSError:
            self._hung_up()

    def frames(self, *frames: Frame) -> None:
        """Send frames in one write."""
        self.send(b"".join(frame.serialize() for frame in frames))

    def open(self) -> int:
        """Return the number of a new stream; fail if the connection is closed, as nothing could refuse the request."""
        assert not self.closed, "the peer has hung up"
        number = self._next
        self._next += 2
        self.answers[number] = Answer()
        return number

    def headers(self, stream: int, headers: Iterable[Header], *, end: bool = False) -> HeadersFrame:
        """Return a header block or trailers; names and values are not checked."""
        flags = ["END_HEADERS", *(["END_STREAM"] if end else [])]
        return HeadersFrame(stream, self._encoder.encode([*headers], huffman=False), flags=flags)

    @staticmethod
    def data(stream: int, data: bytes, *, end: bool = False) -> DataFrame:
        """Return a piece of a body."""
        return DataFrame(stream, data, flags=["END_STREAM"] if end else [])

    def start(self, headers: Iterable[Header], pieces: Iterable[bytes] = (), trailers: Iterable[Header] = ()) -> int:
        """Send a request in one write: headers, pieces of a body, trailers; the last frame ends the stream."""
        stream = self.open()
        frames: list[Frame] = [self.headers(stream, headers)]
        frames += [self.data(stream, piece) for piece in pieces]
        trailers = list(trailers)
        if trailers:
            frames.append(self.headers(stream, trailers))
        frames[-1].flags.add("END_STREAM")
        self.frames(*frames)
        return stream

    def ask(self, headers: Iterable[Header], *pieces: bytes, trailers: Iterable[Header] = ()) -> Answer:
        """Send a request; return its answer."""
        stream = self.start(headers, pieces, trailers)
        self.wait([stream])
        return self.answers[stream]

    def wait(self, streams: Iterable[int] | None = None) -> None:
        """Read until these streams (by default all) are over, or the peer disconnects; silence is a failure."""
        wanted = list(self.answers) if streams is None else list(streams)
        self._read_until(lambda: all(self.answers[stream].is_over for stream in wanted))

    def poll(self, streams: Iterable[int], seconds: float) -> bool:
        """Read for some time; return whether these streams are over."""
        wanted, end = list(streams), time.monotonic() + seconds
        while not self.closed and not all(self.answers[stream].is_over for stream in wanted):
            if not self._read(end - time.monotonic()):
                break
        return all(self.answers[stream].is_over for stream in wanted)

    def round_trip(self) -> None:
        """Send a PING and wait for its answer: the peer has then read everything before it, or disconnected."""
        self._pongs = 0
        self.frames(PingFrame(0, b"tierwall"))
        self._read_until(lambda: self._pongs > 0)

    def _read_until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.closed and not holds():
            if not self._read(end - time.monotonic()) and not self.closed:
                raise AssertionError(f"nothing within {PATIENCE_S:g} s, and the connection is open: {self.answers}")

    def _read(self, seconds: float) -> bool:
        if seconds <= 0:
            return False
        self._socket.settimeout(seconds)
        try:
            part = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            part = b""
        if not part:
            self._hung_up()
            return False
        self._pending += part
        while len(self._pending) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._pending[:9]))
            if len(self._pending) < 9 + length:
                break
            frame.parse_body(memoryview(self._pending[9 : 9 + length]))
            self._pending = self._pending[9 + length :]
            self._take(frame)
        return True

    def _hung_up(self) -> None:
        self.closed = True
        for answer in self.answers.values():
            answer.closed = True

    def _take(self, frame: Frame) -> None:
        answer = self.answers.setdefault(frame.stream_id, Answer()) if frame.stream_id else Answer()
        assert not isinstance(frame, PushPromiseFrame)
        if isinstance(frame, HeadersFrame):
            assert "END_HEADERS" in frame.flags
            for name, value in self._decoder.decode(frame.data):
                answer.headers[str(name)] = str(value)
            answer.status = int(answer.headers.get(":status", 0))
        elif isinstance(frame, DataFrame):
            answer.body += frame.data
            if frame.flow_controlled_length:
                more = frame.flow_controlled_length
                self.frames(WindowUpdateFrame(0, more), WindowUpdateFrame(frame.stream_id, more))
        elif isinstance(frame, RstStreamFrame):
            answer.reset = frame.error_code
        elif isinstance(frame, GoAwayFrame):
            self.goaway = frame.error_code
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self.frames(SettingsFrame(flags=["ACK"]))
        elif isinstance(frame, PingFrame) and "ACK" in frame.flags:
            self._pongs += 1
        if "END_STREAM" in frame.flags:
            answer.ended = True


def post(path: str, body: bytes | None = None, *more: Header, host: str = "gate.test") -> list[Header]:
    """Return the headers of an MCP message, with the length of the body if one is given."""
    headers: list[Header] = [(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", path), *JSON]
    if body is not None:
        headers.append(("content-length", str(len(body))))
    return [*headers, *more]
