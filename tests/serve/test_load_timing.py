"""How soon after a load the next one may begin: at once for a few changes, at a pace for a stream of them."""

from __future__ import annotations

import subprocess
import sys
import time
from random import Random

import pytest

from tests.randomness import seeds
from tierwall.serve.load_timing import FREE_S, LONGEST_REST_S, REST_TIMES, LoadTiming, cpu_seconds


def test_a_few_changes_in_quick_succession_do_not_wait() -> None:
    pace, now = LoadTiming(), 1000.0
    for _ in range(15):
        pace.count(now, now + 0.1, 0.05)
        now += 0.1
        assert pace.rest(now) == 0.0
        now += 0.1


def test_waiting_is_not_work() -> None:
    pace = LoadTiming()
    pace.count(1000.0, 1010.0, 0.05)
    assert pace.rest(1010.0) == 0.0


def test_programs_that_a_load_runs_are_part_of_its_work() -> None:
    of_process, of_everything = time.process_time(), cpu_seconds()
    subprocess.run([sys.executable, "-c", "for _ in range(400_000): pass"], check=True)
    assert cpu_seconds() - of_everything > time.process_time() - of_process + 0.005


def test_one_long_load_does_not_slow_the_next_ones_down() -> None:
    pace = LoadTiming()
    pace.count(1000.0, 1010.0, 10.0)
    assert pace.rest(1010.0) == LONGEST_REST_S
    assert pace.rest(1010.2) == pytest.approx(LONGEST_REST_S - 0.2)
    assert pace.rest(1011.0) == 0.0
    pace.count(1011.0, 1011.02, 0.02)
    assert pace.rest(1011.02) == 0.0


@pytest.mark.parametrize("took", [0.001, 0.005, 0.02, 0.1])
def test_a_stream_of_changes_leaves_the_processor_alone(took: float) -> None:
    pace, start = LoadTiming(), 1000.0
    now, busy = start, 0.0
    while now - start < 600:
        pace.count(now, now + took, took)
        busy += took
        now += took
        now += max(pace.rest(now), 0.001)
    share = busy / (now - start)
    free = FREE_S / REST_TIMES / 600
    assert share <= max(1 / (REST_TIMES + 1), took / (took + LONGEST_REST_S)) + free + 0.001


@pytest.mark.parametrize("seed", seeds(50))
def test_nothing_rests_longer_than_it_owes(seed: int) -> None:
    """What is owed is never negative, melts away second by second, and is never more than one longest rest."""
    random, pace, now, owed = Random(seed), LoadTiming(), 1000.0, 0.0
    for _ in range(50):
        idle, took = random.choice((0.01, 0.3, 3.0)), random.choice((0.001, 0.03, 0.5))
        owed = min(max(0.0, owed - idle) + REST_TIMES * took, FREE_S + LONGEST_REST_S)
        now += idle
        pace.count(now, now + took, took)
        now += took
        assert pace.rest(now) == pytest.approx(max(0.0, min(owed - FREE_S, LONGEST_REST_S)))
