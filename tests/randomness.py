"""How far random tests and storms go. `make test` has fixed seeds and lengths; `make fuzz` and `make soak` go further.

`TIERWALL_FUZZ` is how many times the examples of a random test are tried, `TIERWALL_SEED` where tests begin that count
their own seeds (with it, Hypothesis takes its seed from outside too), `TIERWALL_SOAK` how many times as long a storm
lasts.
"""

from __future__ import annotations

import os

FUZZ = int(os.environ.get("TIERWALL_FUZZ", "1"))
SEED = int(os.environ.get("TIERWALL_SEED", "0"))
SEEDED = "TIERWALL_SEED" in os.environ
SOAK = int(os.environ.get("TIERWALL_SOAK", "1"))


def examples(number: int) -> int:
    """The examples of a random test that tries so many in `make test`."""
    return number * FUZZ


def seeds(number: int) -> range:
    """The seeds of a test that makes its own random things, so many in `make test`."""
    return range(SEED, SEED + number * FUZZ)


def rounds(number: int) -> int:
    """The rounds of a storm that has so many in `make test`."""
    return number * SOAK
