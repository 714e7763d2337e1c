"""TLS records that have arrived together are read together: each event of a watch is one."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.labs.recording_server import Authority
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.pem import PemData
from tierwall.cluster.tls import server_context

EVENTS = [b'{"type":"ADDED"}\n', b'{"type":"MODIFIED"}\n', b'{"type":"DELETED"}\n']


class Line:
    """A client and a server that have shaken hands, with nothing between them."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        (folder / "server.pem").write_bytes(b"".join(authority.issue("api", "127.0.0.1")))
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(folder / "server.pem")
        access = ClusterAccess("c", "https://127.0.0.1", "default", authority=PemData(authority.pem))
        self.to_client, self.to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = server_context(access).wrap_bio(self.to_client, self.to_server, server_hostname="127.0.0.1")
        self.server = serving.wrap_bio(self.to_server, self.to_client, server_side=True)
        left = [self.client, self.server]
        while left:
            end = left.pop(0)
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                left.append(end)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_records_that_have_arrived_are_read_together(line: Line) -> None:
    for event in EVENTS:
        line.server.write(event)
    assert line.client.read(65536) == b"".join(EVENTS)
    with pytest.raises(ssl.SSLWantReadError):
        line.client.read(65536)


def test_no_more_is_read_than_was_asked_for(line: Line) -> None:
    for event in EVENTS:
        line.server.write(event)
    text = b"".join(EVENTS)
    assert [line.client.read(size) for size in (5, 20, 1000)] == [text[:5], text[5:25], text[25:]]


def test_half_of_a_record_waits_for_its_other_half(line: Line) -> None:
    line.server.write(EVENTS[0])
    line.server.write(EVENTS[1])
    sent = line.to_client.read()
    line.to_client.write(sent[:-3])
    assert line.client.read(65536) == EVENTS[0]
    line.to_client.write(sent[-3:])
    assert line.client.read(65536) == EVENTS[1]


def test_the_end_comes_after_what_was_sent_before(line: Line) -> None:
    for event in EVENTS:
        line.server.write(event)
    with pytest.raises(ssl.SSLWantReadError):
        line.server.unwrap()
    assert line.client.read(65536) == b"".join(EVENTS)
    assert [line.client.read(65536) for _ in range(2)] == [b"", b""]


def test_a_record_that_was_tampered_with_is_refused(line: Line) -> None:
    line.server.write(EVENTS[0])
    line.server.write(EVENTS[1])
    sent = line.to_client.read()
    line.to_client.write(sent[:-1] + bytes([sent[-1] ^ 1]))
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        line.client.read(65536)
