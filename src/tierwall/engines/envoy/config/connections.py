"""When connections and streams end (docs/semantics.md#requests-are-short-streams-may-be-long).

A client's certificate is checked only when its connection begins, so such a connection ends after a time. Envoy's limit
for connections asks clients to connect again, and closes what is idle, but lets open streams continue. So a connection
takes new requests in the first part of its time, and each request has the rest: enough to be finished by honest
clients, and not more. Silence never ends a stream; clients that are gone, or do not read, are noticed by TCP and by
what waits to be sent.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from envoy.config.core.v3 import address_pb2
from google.protobuf import duration_pb2

# A TLS connection is closed if its first message does not come in the first time, or its handshake is not finished in
# the second time after that; a connection without TLS if nothing comes in their sum.
HELLO_SECONDS, HANDSHAKE_SECONDS = 5, 10
# How long the headers of a request may take.
HEADER_SECONDS = 10
# How long Envoy keeps a connection that it has ended, so that the client can read what was sent: a stream whose
# permission has ended must be over within a second.
CLOSING_MS = 500
# How long Envoy drains the connections of a port, certificate or authority that is gone, and then closes them.
DRAIN_SECONDS: Final = 5
# The fields `tcp_keepalive` and `per_connection_buffer_high_watermark_timeout` of a Listener, which the generated
# messages lack.
_KEEPALIVE, _UNREAD = 37, 38


class ConnectionTimes(NamedTuple):
    """How the time of a connection is used, in milliseconds.

    It takes requests for `taking`; in the last `parting` of it, clients are told not to send more. A request may last
    for `request`. Then Envoy keeps the connection for `closing`, so that the client can read the last answer.
    """

    taking: int
    parting: int
    request: int
    closing: int

    @classmethod
    def of(cls, seconds: int) -> ConnectionTimes:
        """Return the times of a connection that is closed after these seconds at the latest."""
        whole = seconds * 1000
        taking, closing = whole // 4, min(CLOSING_MS, whole // 8)
        return cls(taking, min(5000, taking // 2), whole - taking - closing, closing)


def limit_streams(manager: Any, seconds: int) -> None:
    """Let clients take so many seconds to send a request, and responses any time."""
    manager.request_headers_timeout.seconds = HEADER_SECONDS
    manager.request_timeout.seconds = seconds
    manager.stream_idle_timeout.SetInParent()  # zero: never
    manager.delayed_close_timeout.FromMilliseconds(CLOSING_MS)
    # A client must read the end of a response that is complete.
    manager.stream_flush_timeout.seconds = seconds


def limit_connections(manager: Any, seconds: int) -> None:
    """Let connections last this many seconds at most, with everything that is open."""
    times = ConnectionTimes.of(seconds)
    common = manager.common_http_protocol_options
    common.max_connection_duration.FromMilliseconds(times.taking - times.parting)
    common.max_stream_duration.FromMilliseconds(times.request)
    manager.drain_timeout.FromMilliseconds(times.parting)
    manager.delayed_close_timeout.FromMilliseconds(times.closing)


def limit_silence(listener: Any, has_tls: bool) -> None:
    """Close connections that say nothing, have no peer any more, or whose peer does not read."""
    listener.listener_filters_timeout.seconds = HELLO_SECONDS if has_tls else HELLO_SECONDS + HANDSHAKE_SECONDS
    for chain in listener.filter_chains if has_tls else ():
        chain.transport_socket_connect_timeout.seconds = HANDSHAKE_SECONDS
    unread = duration_pb2.Duration(seconds=300)
    listener.MergeFromString(_field(_KEEPALIVE, tcp_keepalive()) + _field(_UNREAD, unread))


def keep_alive(listener: Any, time: int, interval: int, probes: int) -> None:
    """Notice that a client is gone after other times than `limit_silence` sets, in seconds."""
    alive = address_pb2.TcpKeepalive()
    alive.keepalive_time.value, alive.keepalive_interval.value, alive.keepalive_probes.value = time, interval, probes
    listener.MergeFromString(_field(_KEEPALIVE, alive))


def tcp_keepalive() -> Any:
    """Return how TCP notices within two minutes that the other machine is gone."""
    out = address_pb2.TcpKeepalive()
    out.keepalive_time.value, out.keepalive_interval.value, out.keepalive_probes.value = 60, 10, 6
    return out


def _field(number: int, message: Any) -> bytes:
    """Return a field of a message on the wire (Protocol Buffers, "Encoding"); the message is short."""
    content: bytes = message.SerializeToString()
    tag = number << 3 | 2
    return bytes((tag & 0x7F | 0x80, tag >> 7, len(content))) + content
