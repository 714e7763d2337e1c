"""CPU time of api decisions: the first phase by number of policies, the second phase, and the codecs around both.

Policies are distinct (by user, group and resource), and requests are drawn at random from those that policies are
about. `cold` is a second phase whose condition text was never seen before, as when another replica wrote it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from tierwall.api.algebra.chain import Chain, ChainDecision
from tierwall.api.algebra.request import ConditionData
from tierwall.api.authorizers import expression
from tierwall.api.model import chain_of
from tierwall.api.wire.answer import reply
from tierwall.api.wire.review import DecodedReview, read_access_review
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

VERBS = ("create", "update", "delete", "patch")
RESOURCES = ("pods", "services", "configmaps", "persistentvolumeclaims", "secrets", "deployments")
CONDITIONS = (
    'object.spec.class == "dev"',
    'has(object.metadata.labels) && object.metadata.labels.env != "prod"',
    "object.spec.owner == request.userInfo.username",
)


def policies(count: int) -> list[Resource]:
    """Policies as people write them: most about one user, some about a group, every tenth a Deny."""
    resources = []
    for n in range(count):
        who = f'request.userInfo.username == "user-{n}"' if n % 3 else f'"team-{n}" in request.userInfo.groups'
        verbs = ", ".join(f'"{verb}"' for verb in VERBS[: 1 + n % 4])
        what = RESOURCES[n % len(RESOURCES)]
        condition = CONDITIONS[n % len(CONDITIONS)]
        text = f'request.resource == "{what}" && request.verb in [{verbs}] && {who} && {condition}'
        text = f'request.apiGroup == "" && {text}'
        effect = "Deny" if n % 10 == 9 else "Allow"
        value = {"metadata": {"name": f"p{n}"}, "spec": {"effect": effect, "expression": text}}
        resources.append(Resource("tierwall.io", "v1alpha1", "ClusterAuthorizationPolicy", "", f"p{n}", value))
    return resources


def reviews(count: int, number: int = 1000) -> list[dict[str, Any]]:
    """Reviews, half of them about something that a policy is about."""
    draw = random.Random(7)
    requests = []
    for _ in range(number):
        n = draw.randrange(count)
        attributes = {
            "verb": draw.choice(VERBS),
            "version": "v1",
            "namespace": "dev",
            "resource": RESOURCES[n % len(RESOURCES)],
        }
        if draw.random() < 0.5:
            attributes["resource"] = draw.choice(RESOURCES)
        requests.append(
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": f"user-{n}",
                    "groups": [f"team-{n}", "system:authenticated"],
                    "resourceAttributes": attributes,
                    "conditionalAuthorization": {"mode": "HumanReadable"},
                },
            }
        )
    return requests


def microseconds(work: Callable[[Any], object], items: Iterable[Any], rounds: int = 5) -> float:
    """CPU time for one item, the best of some rounds."""
    listed = list(items)
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for item in listed:
            work(item)
        best = min(best, time.process_time() - start)
    return best / len(listed) * 1e6


def run() -> None:
    """Print one line for each measurement."""
    data = ConditionData(
        operation="CREATE",
        object={"metadata": {"name": "x", "labels": {"env": "dev"}}, "spec": {"class": "dev", "owner": "user-1"}},
    )
    print("api: microseconds of CPU for one request")
    for count in (100, 1_000, 10_000):
        start = time.process_time()
        chain = chain_of(Snapshot.of(policies(count)))
        built = time.process_time() - start
        asked = reviews(count)
        attributes = [read_access_review(msgspec.convert(review, DecodedReview)).attributes for review in asked]
        first = microseconds(chain.authorize, attributes)
        conditional = [decision for decision in map(chain.authorize, attributes) if decision.is_conditional]
        second = microseconds(lambda decision: decision.evaluate(data), conditional)
        cold = microseconds(partial(_cold, data), conditional, rounds=1)
        raw = [json.dumps(question).encode() for question in asked]
        whole = microseconds(partial(_review, chain), raw)
        print(
            f"  {count:>6} policies: first phase {first:7.1f}  second {second:6.1f} (cold {cold:6.1f})  "
            f"review, JSON to JSON {whole:7.1f}  ({len(conditional)} of 1000 conditional; built in {built:.2f} s)"
        )


def _review(chain: Chain, raw: bytes) -> bytes:
    review = read_access_review(msgspec.json.decode(raw, type=DecodedReview))
    return msgspec.json.encode(reply(review, chain.authorize(review.attributes)))


def _cold(data: ConditionData, decision: ChainDecision) -> object:
    expression._program.cache_clear()
    return decision.evaluate(data)
