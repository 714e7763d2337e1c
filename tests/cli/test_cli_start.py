"""A command imports only what it needs for its question."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

SHOP = ROOT / "examples" / "shop"
SCRIPT = """
import sys
from tierwall.cli.main import root
try:
    root(sys.argv[1:], standalone_mode=False)
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
LIBYAML = ("yaml", "tierwall.resources.yaml.libyaml")
PLANES = ("tierwall.gateway", "tierwall.tool", "tierwall.api", "tierwall.attach")
ENGINES = ("tierwall.serve", "tierwall.engines.nftables", "tierwall.engines.envoy", "grpc", "cryptography")
# Modules for objects that are wrong, unknown or named on the command line, and for lists of connections.
RARE = (
    "tierwall.resources.admission.mistakes",
    "tierwall.resources.admission.typed",
    "tierwall.resources.kinds.misspelling",
    "tierwall.resources.plain_objects",
    "tierwall.resources.removal",
    "tierwall.cel.library.url",
    "tierwall.network.reach.naming",
)
QUESTION = ("network", "--from", "shop/web-0", "--to", "shop/db-0", "--port", "5432")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (("--help",), ("msgspec", "tierwall.core.diagnostics", "tierwall.resources", *PLANES, *ENGINES)),
        (("explain", *QUESTION, "-f", SHOP / "manifests"), ("re2", *RARE, *LIBYAML, *PLANES, *ENGINES)),
        # Cases that are not proofs bring in nothing that proves.
        (
            ("test", SHOP / "tests" / "network.yaml"),
            ("re2", "pathlib", "pysat", "tierwall.proofs.proving", *RARE[1:], *LIBYAML, *PLANES, *ENGINES),
        ),
        (("check", SHOP / "manifests"), ("re2", *RARE, *LIBYAML, *PLANES, *ENGINES)),
    ],
    ids=lambda value: str(value[0]),
)
def test_a_command_imports_no_more_than_it_needs(arguments: tuple[object, ...], absent: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    imported = set(done.stderr.split())
    assert "tierwall.cli.main" in imported
    assert imported.isdisjoint(absent)


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "tierwall", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tierwall, version ")
