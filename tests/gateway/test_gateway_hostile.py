"""Objects of every wrong shape: nothing that people write makes a decision, a check or a status fall over."""

from __future__ import annotations

import copy
from contextlib import suppress
from random import Random
from typing import Any

from gateway_clusters import cluster, question
from hypothesis import given, settings
from hypothesis import strategies as st

from tierwall.analyze.checks import check
from tierwall.attach.index import GATEWAY_POLICIES, attachments
from tierwall.attach.status import ancestors, document
from tierwall.core.diagnostics import InputError
from tierwall.gateway.everywhere import ways
from tierwall.gateway.policy_status import standing
from tierwall.gateway.provenance import explain
from tierwall.gateway.question import Question, ask, read
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

JUNK: tuple[Any, ...] = (None, 3, True, "x", "", [], {}, [None], {"a": 1}, [[]], -1, 1.5)


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
        one | {key: spoil(rng, one[key], 0.03) for key in ("metadata", "spec") if key in one} for one in cluster(rng)
    ]
    snapshot = Snapshot.of(load_objects(objects))
    for _ in range(4):
        asked = question(rng)
        for profile in ("docs", "agentgateway"):
            with suppress(InputError):
                ask(snapshot, asked | {"profile": profile}, {})
                explain(snapshot, read(snapshot, asked | {"profile": profile}, {}))
    for place in ways(snapshot):
        explain(snapshot, Question(place, "docs", "PostRouting", None))
        break
    list(check(snapshot))
    for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=False).policies:
        document(policy, ancestors(snapshot, policy, standing(snapshot, policy)))


@given(seed=st.integers(0, 2**48))
@settings(max_examples=200)
def test_spoiled_questions_are_refused_in_words(seed: int) -> None:
    rng = Random(seed)
    snapshot = Snapshot.of(load_objects(cluster(rng, 4)))
    asked = {key: spoil(rng, value, 0.4) for key, value in question(rng).items()}
    with suppress(InputError):
        ask(snapshot, asked, {})
