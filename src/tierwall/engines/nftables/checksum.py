"""CRC32c (RFC 9260, appendix A), the checksum of SCTP; the kernel's connection tracking drops packets without it."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    out = []
    for octet in range(256):
        value = octet
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        out.append(value)
    return out


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of some octets."""
    value = 0xFFFFFFFF
    for octet in data:
        value = (value >> 8) ^ _TABLE[(value ^ octet) & 0xFF]
    return value ^ 0xFFFFFFFF
