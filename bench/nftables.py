"""The nftables engine: `python -m bench nftables` (root; everything happens in network namespaces of its own).

Throughput and connection rate between two namespaces through a router, without a table and with tables of 100 and of
10,000 policy rules; the time to apply 1,000 pods and 1,000 policies; one pod more or less; the kernel's memory.
Rounds of all tables take turns, so that what else the machine does hits all of them; the best round of each counts,
because other work can only slow one down.
"""

from __future__ import annotations

import copy
import os
import platform
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.network import cluster

ROUNDS, SECONDS = 21, 0.4
CLIENT, SERVER, PORT = "10.255.0.1", "10.255.0.2", 8080

Object = dict[str, Any]


def pods() -> list[Object]:
    """The two that talk, in a namespace of their own."""
    out: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}}]
    for name, address in (("client", CLIENT), ("server", SERVER)):
        out.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "bench", "labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
                "status": {"podIP": address},
            }
        )
    return out


def policies(rules: int, spread: int) -> list[Object]:
    """So many rules in all; `spread` namespaces share them, the server has its part, and its last rule allows."""
    out: list[Object] = []
    each = rules // spread
    for number in range(spread):
        name = "bench" if number == 0 else f"space-{number}"
        ingress: list[Object] = [
            {"from": [{"podSelector": {"matchLabels": {"app": f"none-{number}"}}}], "ports": [{"port": 1000 + number}]}
            for number in range(each - 1)
        ]
        ingress.append({"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": PORT}]})
        out.append(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "rules", "namespace": name},
                "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress},
            }
        )
        if number:
            server = copy.deepcopy(pods()[2])
            server["metadata"] |= {"namespace": name, "name": "server"}
            server["status"]["podIP"] = f"10.254.{number >> 8}.{number & 255}"
            out.append(server)
    return out


def tables() -> dict[str, Any]:
    """The tables to compare, by name; None stands for a kernel without one."""
    from tierwall.engines.nftables.table.compile import compile_model
    from tierwall.network.model.model import NetworkModel
    from tierwall.resources.load import load_objects
    from tierwall.resources.snapshot import Snapshot

    def table(rules: int, spread: int) -> Any:
        return compile_model(NetworkModel(Snapshot.of(load_objects([*pods(), *policies(rules, spread)])))).table

    return {
        "no table": None,
        "100 rules": table(100, 10),
        "10,000 rules": table(10_000, 1_000),
        "10,000 rules, all on the one pod": table(10_000, 1),
    }


def traffic() -> None:
    """Throughput and connection rate."""
    from tierwall.engines.nftables.kernel.apply import remove, replace
    from tierwall.engines.nftables.probe.topology import Topology
    from tierwall.values.addresses import parse_address

    addresses = [parse_address(address) for address in (CLIENT, SERVER)]
    topology = Topology([(address,) for address in addresses if address is not None])
    client, server = topology.hosts
    with server.entered():
        listener = socket.create_server((SERVER, PORT), backlog=1024)
    times: dict[str, dict[str, list[float]]] = {}
    every = tables()
    for _ in range(ROUNDS):
        for name, table in every.items():
            with topology.router.entered():
                if table is None:
                    remove()
                else:
                    replace(table)
            with client.entered():
                rates = times.setdefault(name, {"GB/s": [], "connections/s": []})
                rates["GB/s"].append(throughput(listener) / 1e9)
                rates["connections/s"].append(connections(listener))
    listener.close()
    topology.close()
    base = {unit: max(values) for unit, values in times["no table"].items()}
    for name, rates in times.items():
        line = [f"{name:34}"]
        for unit, values in rates.items():
            best, middle = max(values), statistics.median(values)
            line.append(f"{best:10,.2f} {unit} (×{best / base[unit]:.3f}, median {middle:,.2f})")
        print("  ".join(line), flush=True)


def throughput(listener: socket.socket) -> float:
    """Octets a second over one established connection."""
    sender = socket.create_connection((SERVER, PORT), timeout=10)
    receiver, _ = listener.accept()
    chunk, buffer = b"\0" * (1 << 20), bytearray(1 << 20)
    stop = threading.Event()

    def send() -> None:
        try:
            while not stop.is_set():
                sender.sendall(chunk)
        except OSError:
            return

    thread = threading.Thread(target=send)
    thread.start()
    total, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < SECONDS:
        total += receiver.recv_into(buffer)
    stop.set()
    receiver.close()
    thread.join(10)
    sender.close()
    return total / (now - start)


def connections(listener: socket.socket) -> float:
    """Connections a second, opened and closed one after the other."""
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < SECONDS:
        sender = socket.create_connection((SERVER, PORT), timeout=10)
        receiver, _ = listener.accept()
        # Closed by reset, so that no port is kept in TIME_WAIT.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sender.close()
        receiver.close()
        count += 1
    return count / (now - start)


def applying(size: int = 1_000) -> None:
    """The time to apply, to follow one pod, and the kernel's memory."""
    from tierwall.engines.nftables.kernel.apply import check, execute, remove
    from tierwall.engines.nftables.kernel.enforcer import Enforcer
    from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
    from tierwall.engines.nftables.table.compile import compile_model
    from tierwall.engines.nftables.table.pods import PodChange
    from tierwall.engines.nftables.table.table import table_script
    from tierwall.network.model.model import NetworkModel
    from tierwall.resources.load import load_objects
    from tierwall.resources.snapshot import Snapshot

    objects = list(cluster(size, size // 3))
    count = sum(value["kind"].endswith("Policy") for value in objects)
    model, model_s = _timed(lambda: NetworkModel(Snapshot.of(load_objects(objects))))
    compiled, compile_s = _timed(lambda: compile_model(model))
    script = table_script(compiled.table)
    rules = sum(len(chain.rules) for chain in compiled.table.chains.values())
    print(
        f"{size:,} pods, {count:,} policies: {len(compiled.table.chains):,} chains, {rules:,} nftables rules, "
        f"{len(compiled.table.sets):,} sets, {len(script) / 1e6:.1f} MB of text"
    )
    print(f"model {model_s:.2f} s, compile {compile_s:.2f} s", end="")
    namespace = NetworkNamespace()
    with namespace.entered():
        _, check_s = _timed(lambda: check(script))
        applied, memory = [], []
        for _ in range(3):
            before = _kernel_memory()
            applied.append(_timed(lambda: execute(script))[1])
            memory.append(_kernel_memory() - before)
            remove()
            time.sleep(0.2)
        print(f", nft -c {check_s:.2f} s, nft -f {statistics.median(applied):.2f} s", end="")
        print(f", kernel memory {statistics.median(memory) / 1024:.1f} MB")
        enforcer = Enforcer()

        def follow(change: PodChange) -> bool:
            step = enforcer.step([change])
            if step is not None:
                enforcer.take(step)
            return step is not None

        _, put_s = _timed(lambda: enforcer.put(compiled))
        new = copy.deepcopy(next(value for value in objects if value["kind"] == "Pod"))
        new["metadata"]["name"], new["status"] = "one-more", {"podIP": "10.250.0.1"}
        (pod,) = load_objects([new])
        come, gone = [], []
        for _ in range(50):
            done, seconds = _timed(lambda: follow(PodChange(None, pod)))
            come.append(seconds)
            done_too, seconds = _timed(lambda: follow(PodChange(pod, None)))
            gone.append(seconds)
            assert done
            assert done_too
        print(f"enforced from nothing in {put_s:.2f} s; one pod more {_milliseconds(come)}, less {_milliseconds(gone)}")
    namespace.close()


def _milliseconds(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(values) * 1e3:.1f} ms (90 % under {ordered[int(len(ordered) * 0.9)] * 1e3:.1f})"


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def _kernel_memory() -> int:
    """Return the memory that the kernel holds for itself, in KiB."""
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) for name in ("Slab", "Percpu", "VmallocUsed"))


def run() -> None:
    """Print all of it."""
    if os.geteuid() != 0:
        print("nftables: needs root, left out")
        return
    print(f"nftables engine, Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    applying()
    traffic()


if __name__ == "__main__":
    run()
