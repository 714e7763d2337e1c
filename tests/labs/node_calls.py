"""Calls in the network of a pod on a real node: an MCP server, and agents that call its tools through an Envoy.

`python -m tests.labs.node_calls serve PORT ADDRESS` is the server, and the DNS in which every name has this address.
With `call FOLDER FILE` it calls until it is killed: FOLDER has the certificates of the agents, and FILE is where the
numbers and what was wrong are written.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from pathlib import Path

from msgspec import Struct
from msgspec import json as msgjson

from tests.labs.envoy_lab import Backend, Caller

AGENTS = ("shopper", "clerk")
GATEWAY_PORT = 8443
# What policies always allow to the shopper, and what they allow to nobody. They never allow anything to the clerk.
ALLOWED, FORBIDDEN = "find_order", "delete_report"


class CallNumbers(Struct):
    """How calls were answered so far, and those that were answered wrong."""

    allowed: int = 0
    denied: int = 0
    unanswered: int = 0
    last_failure: str = ""
    wrong: list[str] = []


def numbers(file: Path) -> CallNumbers:
    """Return what was written last."""
    return msgjson.decode(file.read_bytes(), type=CallNumbers) if file.exists() else CallNumbers()


def _judge(told: CallNumbers, agent: str, tool: str, answer: str) -> None:
    may = agent == AGENTS[0] and tool == ALLOWED
    if answer == "allowed":
        told.allowed += 1
    elif answer.startswith(("denied by ", "no answer: 403")):
        told.denied += 1
    else:
        # An Envoy that was killed answers nobody; nothing is wrong with that.
        told.unanswered += 1
        told.last_failure = answer[:200]
        return
    if (answer == "allowed") is not may:
        told.wrong.append(f"{time.time():.3f} {agent} {tool}: {answer}")


def call(folder: Path, file: Path) -> None:
    """Call without end, each agent over a connection of its own; another one now and then."""
    callers = {}
    for agent in AGENTS:
        context = ssl.create_default_context(cafile=str(folder / "callers.pem"))
        context.load_cert_chain(folder / f"{agent}.pem")
        callers[agent] = Caller(context, GATEWAY_PORT)
    told, number = CallNumbers(), 0
    while True:
        for agent, caller in callers.items():
            for tool in (ALLOWED, FORBIDDEN):
                _judge(told, agent, tool, caller.call(tool))
        number += 1
        if number % 20 == 0:
            for caller in callers.values():
                caller.close()
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgjson.encode(told))
        fresh.replace(file)
        time.sleep(0.05)


def answer_names(address: str) -> None:
    """Answer DNS questions without end: every name has this IPv4 address and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("0.0.0.0", 53))
        while True:
            query, client = asked.recvfrom(512)
            # The question: labels up to an empty one, then its type and class (RFC 1035, section 4.1).
            end = query.index(b"\0", 12) + 5
            is_about_ipv4 = query[end - 4 : end - 2] == b"\0\1"
            record = b"\xc0\x0c\0\1\0\1" + (60).to_bytes(4) + b"\0\4" + socket.inet_aton(address)
            head = query[:2] + b"\x85\x80\0\1" + int(is_about_ipv4).to_bytes(2) + bytes(4)
            asked.sendto(head + query[12:end] + (record if is_about_ipv4 else b""), client)


def main() -> None:
    """Serve or call."""
    if sys.argv[1] == "serve":
        Backend(("0.0.0.0", int(sys.argv[2])))
        threading.Thread(target=answer_names, args=(sys.argv[3],)).start()
        threading.Event().wait()
    call(Path(sys.argv[2]), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
