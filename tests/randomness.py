"""The length of random tests and storms: fixed seeds and lengths in `make test`, longer in `make fuzz` and `make soak`.

`TIERWALL_FUZZ` multiplies the examples of random tests and `TIERWALL_SOAK` the rounds of storms; the longest storm then
takes `TIERWALL_SOAK_SECONDS`, half an hour unless they are given. `TIERWALL_SEED` is the first seed of tests that count
their own seeds; with it, Hypothesis takes its seed from the command line too.
"""

from __future__ import annotations

import os

FUZZ = int(os.environ.get("TIERWALL_FUZZ", "1"))
SEED = int(os.environ.get("TIERWALL_SEED", "0"))
SEEDED = "TIERWALL_SEED" in os.environ
SOAK = int(os.environ.get("TIERWALL_SOAK", "1"))


def examples(number: int) -> int:
    """Return the number of examples of a random test that has `number` of them in `make test`."""
    return number * FUZZ


def seeds(number: int) -> range:
    """Return the seeds of a test that draws its own random inputs, `number` of them in `make test`."""
    return range(SEED, SEED + number * FUZZ)


def rounds(number: int) -> int:
    """Return the rounds of a storm that has `number` of them in `make test`."""
    return number * SOAK


def soak_seconds() -> float:
    """Return how long the longest storm goes on in `make soak`; 0 in `make test`, where it blows once."""
    return float(os.environ.get("TIERWALL_SOAK_SECONDS", "1800")) if SOAK > 1 else 0.0


def outage_seconds(least: float) -> float:
    """Return how long an API server is away in a storm: a minute in `make soak`, `least` in `make test`."""
    return 60.0 if SOAK > 1 else least
