"""The DNS of a cluster, for nodes that have none: names of Services, from what its API server lists.

`python -m tests.labs.cluster_dns ADDRESS KUBECONFIG` answers on port 53 until it is killed. It knows A records only: of
a Service its cluster IP, of a headless one the addresses of its ready endpoints.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml

DOMAIN = "svc.cluster.local"
_NO_ERROR, _NO_NAME = 0, 3
_A, _IN = 1, 1


class Names:
    """The addresses of each name, read again and again."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = config["users"][0]["user"]["token"]
        self.addresses: dict[str, list[str]] = {}

    def follow(self) -> None:
        """Read for ever."""
        while True:
            try:
                self.addresses = self._read()
            except OSError as error:
                print(error, flush=True)
            time.sleep(0.5)

    def _read(self) -> dict[str, list[str]]:
        ready: dict[tuple[str, str], list[str]] = {}
        for value in self._list("/apis/discovery.k8s.io/v1/endpointslices"):
            metadata = value["metadata"]
            key = metadata["namespace"], metadata.get("labels", {}).get("kubernetes.io/service-name", "")
            for endpoint in value.get("endpoints") or ():
                if value["addressType"] == "IPv4" and endpoint.get("conditions", {}).get("ready", True):
                    ready.setdefault(key, []).extend(endpoint["addresses"])
        out = {}
        for value in self._list("/api/v1/services"):
            key = value["metadata"]["namespace"], value["metadata"]["name"]
            address = value["spec"].get("clusterIP")
            out[f"{key[1]}.{key[0]}.{DOMAIN}"] = ready.get(key, []) if address == "None" else [address]
        return out

    def _list(self, path: str) -> list[dict[str, Any]]:
        request = Request(self._server + path, headers={"Authorization": f"Bearer {self._token}"})
        with urlopen(request, context=self._context, timeout=10) as answer:
            items: list[dict[str, Any]] = yaml.load(answer.read(), Loader=yaml.CSafeLoader)["items"]
            return items


def answer(query: bytes, addresses: dict[str, list[str]]) -> bytes:
    """Return the answer to a query with one question (RFC 1035)."""
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    end = at + 5
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    known = addresses.get(".".join(labels))
    records = known if known is not None and kind == _A else []
    code = _NO_NAME if known is None else _NO_ERROR
    header = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
    # Each record repeats the name by a pointer to the question.
    body = b"".join(struct.pack("!HHHIH", 0xC00C, _A, _IN, 1, 4) + socket.inet_aton(address) for address in records)
    return header + query[12:end] + body


def main(address: str, kubeconfig: str) -> None:
    """Answer for ever."""
    names = Names(Path(kubeconfig))
    threading.Thread(target=names.follow, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            query, client = server.recvfrom(4096)
            try:
                server.sendto(answer(query, names.addresses), client)
            except (IndexError, UnicodeDecodeError, struct.error):
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
