"""The kernel for tests: only inside network namespaces that are made here and end with the process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.needs import unavailable
from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.probe.asking import PacketProbe
from tierwall.serve.nftables import Nftables


def need_kernel() -> None:
    if os.geteuid() != 0:
        unavailable("network namespaces and nftables need root")
    for program in ("nft", "ip"):
        if shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            unavailable(f"the program {program} is missing; `make kernel-tools` installs it")


@pytest.fixture(scope="module")
def nft_engine() -> Iterator[Nftables]:
    """The engine of `tierwall test --engine nft`."""
    need_kernel()
    engine = Nftables()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def asker() -> Iterator[PacketProbe]:
    """The probe that sends the engine's packets."""
    need_kernel()
    asker = PacketProbe()
    yield asker
    asker.close()


@pytest.fixture
def fresh_namespace() -> Iterator[NetworkNamespace]:
    """A new network namespace."""
    need_kernel()
    try:
        network_namespace = NetworkNamespace()
    except InputError as error:
        unavailable(str(error))
        raise
    yield network_namespace
    network_namespace.close()
