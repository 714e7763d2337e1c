"""Objects of every wrong shape: nothing that people write makes a decision, a check or a status fall over."""

from __future__ import annotations

import copy
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.gateway_clusters import cluster, question
from tierwall.analyze.checks import check
from tierwall.core.diagnostics import InputError
from tierwall.gateway.policy_status import statuses
from tierwall.gateway.question import GatewayQuestion, ask, ask_everywhere
from tierwall.render import answer_text, status_text
from tierwall.render.json.status import status_document
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


@given(seed=st.integers(0, 2**48))
@settings(max_examples=150)
def test_spoiled_objects_are_answered_or_refused_in_words(seed: int) -> None:
    rng = Random(seed)
    objects = [
        one
        | {key: spoil(rng, one[key], 0.03) for key in ("metadata", "spec") if key in one}
        | {"status": spoil(rng, STATUS, 0.1)}
        for one in cluster(rng)
    ]
    snapshot = Snapshot.of(load_objects(objects))
    for _ in range(4):
        asked = question(rng)
        for profile in ("docs", "agentgateway"):
            with suppress(InputError):
                ask(snapshot, GatewayQuestion.from_dict(asked | {"profile": profile})).to_dict()
    for answer in islice(ask_everywhere(snapshot, GatewayQuestion()), 1):
        answer.to_dict()
        list(answer_text.lines(answer, lambda *_: None))
    list(check(snapshot))
    for status in statuses(snapshot):
        status_document(status)
        list(status_text.lines(status))


@given(seed=st.integers(0, 2**48))
@settings(max_examples=200)
def test_spoiled_questions_are_refused_in_words(seed: int) -> None:
    rng = Random(seed)
    snapshot = Snapshot.of(load_objects(cluster(rng, 4)))
    asked = {key: spoil(rng, value, 0.4) for key, value in question(rng).items()}
    with suppress(InputError):
        ask(snapshot, GatewayQuestion.from_dict(asked))
