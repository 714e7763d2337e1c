"""Objects of every wrong shape: no input makes a decision, a check or a status crash."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.gateway_clusters import cluster, question
from tierwall.analyze.checks import check
from tierwall.analyze.statuses import statuses
from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import InputError
from tierwall.gateway.question import GatewayQuestion, ask, ask_everywhere
from tierwall.render import text
from tierwall.render.formats import View
from tierwall.render.status import status_document, status_lines
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

JUNK: tuple[Any, ...] = (None, 3, True, "x", "", [], {}, [None], {"a": 1}, [[]], -1, 1.5)

STATUS: dict[str, Any] = {
    "ancestors": [
        {
            "ancestorRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "a", "name": "gw"},
            "conditions": [{"type": "Accepted", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"}],
        }
    ]
}


def spoil(rng: Random, value: Any, likely: float) -> Any:
    if rng.random() < likely:
        return copy.deepcopy(rng.choice(JUNK))
    if isinstance(value, dict):
        return {key: spoil(rng, item, likely) for key, item in value.items()}
    return [spoil(rng, item, likely) for item in value] if isinstance(value, list) else value


def refusal(error: InputError) -> str:
    """Return the message of a refusal. It must have a code, and no trace of a Python error."""
    for diagnostic in error.diagnostics:
        assert diagnostic.code in CATALOGUE
        assert diagnostic.message.strip()
        assert "Traceback" not in diagnostic.message
        assert "Error(" not in diagnostic.message
    assert error.diagnostics
    return "; ".join(diagnostic.message for diagnostic in error.diagnostics)


def written(document: dict[str, Any], lines: Iterable[object]) -> None:
    """Check that an answer or a status can be written as text and as JSON."""
    assert json.loads(json.dumps(document)) == document
    assert any(str(line).strip() for line in lines)


@pytest.mark.hypothesis
def test_malformed_objects_are_answered_or_refused_with_a_message() -> None:
    """An answer must not depend on unreadable objects, so most questions about valid places get one."""
    outcomes: Counter[str] = Counter()

    @given(seed=st.integers(0, 2**48))
    @settings(max_examples=examples(150))
    def spoiled(seed: int) -> None:
        rng = Random(seed)
        objects = [
            manifest
            | {key: spoil(rng, manifest[key], 0.03) for key in ("metadata", "spec") if key in manifest}
            | {"status": spoil(rng, STATUS, 0.1)}
            for manifest in cluster(rng)
        ]
        snapshot = Snapshot.of(load_objects(objects))
        for _ in range(4):
            asked = question(rng)
            for profile in ("docs", "agentgateway"):
                try:
                    answer = ask(snapshot, GatewayQuestion.from_dict(asked | {"profile": profile}))
                except InputError as error:
                    refusal(error)
                    outcomes["refused"] += 1
                    continue
                assert answer.plane == "gateway"
                assert answer.sentence
                written(answer.to_dict(), text.explanation(answer, View()))
                outcomes["answered"] += 1
        for answer in islice(ask_everywhere(snapshot, GatewayQuestion()), 1):
            written(answer.to_dict(), text.explanation(answer, View()))
            outcomes["answered everywhere"] += 1
        for diagnostic in check(snapshot):
            assert diagnostic.code in CATALOGUE
            assert diagnostic.message.strip()
            outcomes["findings"] += 1
        for status in statuses(snapshot):
            written(status_document(status), status_lines(status))
            outcomes["statuses"] += 1

    spoiled()
    assert outcomes["answered"] > outcomes["refused"] > 0
    assert all(outcomes[kind] > 0 for kind in ("answered everywhere", "findings", "statuses")), outcomes


# Values that a question may have: null counts as absent, any map holds facts, and a route may have no parents.
def is_possible(key: str, value: Any) -> bool:
    return value is None or (key == "request" and isinstance(value, dict)) or (key == "parents" and value in ([], ()))


# A refusal names the key, or the object that the key names.
NAMED_AS = {"backendSection": ("`backendSection`", "no port", "no sub-backend", "no sections")}


@pytest.mark.hypothesis
def test_malformed_questions_are_refused_with_a_message() -> None:
    outcomes: Counter[str] = Counter()

    @given(seed=st.integers(0, 2**48))
    @settings(max_examples=examples(200))
    def spoiled(seed: int) -> None:
        rng = Random(seed)
        snapshot = Snapshot.of(load_objects(cluster(rng, 4)))
        sound = question(rng)
        asked = {key: spoil(rng, value, 0.4) for key, value in sound.items()}
        impossible = {key for key in sound if repr(asked[key]) != repr(sound[key]) and not is_possible(key, asked[key])}
        try:
            answer = ask(snapshot, GatewayQuestion.from_dict(asked))
        except InputError as error:
            words = refusal(error)
            assert asked != sound, words
            names = [name for key in impossible for name in NAMED_AS.get(key, (f"`{key}`", f"no {key} "))]
            assert not impossible or any(name in words for name in names), words
            outcomes["refused"] += 1
        else:
            assert not impossible, answer.sentence
            outcomes["answered"] += 1

    spoiled()
    assert min(outcomes["answered"], outcomes["refused"]) > 0, outcomes


WHOLE = {
    "gateway": "a/gw",
    "listener": "web",
    "route": "HTTPRoute/a/r",
    "rule": 0,
    "backend": "Service/a/svc",
    "backendSection": 80,
    "profile": "docs",
    "phase": "PostRouting",
    "request": {"request.path": "/x"},
}


@pytest.mark.parametrize("key", [*WHOLE, "listenerSet"])
def test_every_key_of_a_question_refuses_what_it_cannot_hold(key: str) -> None:
    snapshot = Snapshot.of(load_objects(cluster(Random(1), 4)))
    assert ask(snapshot, GatewayQuestion.from_dict(WHOLE)).sentence
    for junk in JUNK:
        if not is_possible(key, junk):
            with pytest.raises(InputError) as caught:
                ask(snapshot, GatewayQuestion.from_dict(WHOLE | {key: junk}))
            assert any(name in refusal(caught.value) for name in NAMED_AS.get(key, (f"`{key}`", f"no {key} "))), junk
