"""Reviews that are too long to be read: their head decides wherever no condition is about the request."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.authorizer_server import CLAIMS, POLICIES, Served, admission, claim
from tierwall.serve.authorizer.app import MAX_DRAINED_BYTES
from tierwall.serve.authorizer.review_head import MAX_HEAD_BYTES, review_head

LIMIT = 8 << 20
# In the order in which API servers write them.
ORDER = ("uid", "kind", "resource", "requestKind", "requestResource", "name", "namespace", "operation", "userInfo")


def as_written(review: dict[str, Any]) -> dict[str, Any]:
    """Return a review with its fields in the order of API servers: objects, then options, at the end."""
    request = review["request"]
    last = ("object", "oldObject", "dryRun", "options")
    keys = [key for key in request if key not in last] + [key for key in last if key in request]
    fields = {key: request[key] for key in sorted(keys, key=lambda key: (key in last, (*ORDER, *last).index(key)))}
    return {"kind": review["kind"], "apiVersion": review["apiVersion"], "request": fields}


def long(user: str = "alice", operation: str = "CREATE", size: int = LIMIT, **more: Any) -> bytes:
    value = {**claim(), "data": "x" * size}
    return json.dumps(as_written(admission(user, operation, **{"object": value, **more}))).encode()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, bridged=True)


@pytest.mark.parametrize(
    ("user", "is_admitted"), [("bob", True), ("nobody", True), ("eve", False), ("alice", False), ("carol", False)]
)
@pytest.mark.parametrize("pieces", [1, 200])
def test_a_long_object_is_judged_by_its_head(served: Served, user: str, is_admitted: bool, pieces: int) -> None:
    body = long(user)
    step = -(-len(body) // pieces)
    answer = served.call("POST", "/admit", [body[start : start + step] for start in range(0, len(body), step)])
    response = answer.json["response"]
    assert (answer.status, response["uid"], response["allowed"]) == (200, "u1", is_admitted)
    if user in ("alice", "carol"):
        assert response["status"]["code"] == 413
        assert "8,388,608 bytes" in response["status"]["message"]


def test_superusers_may_always_write_long_objects(served: Served) -> None:
    root = {"username": "alice", "groups": ["system:masters"]}
    assert served.call("POST", "/admit", [long(userInfo=root)]).json["response"]["allowed"] is True


@pytest.mark.parametrize("verb", ["update", "patch"])
def test_a_create_that_may_have_been_an_update_needs_the_object_where_that_is_conditional(
    tmp_path: Path, verb: str
) -> None:
    """The options, which would tell, come after the objects."""
    condition = f'{CLAIMS} && request.verb == "{verb}" && request.name == "c" && object.ok'
    served = Served(tmp_path, [("x", "Allow", condition)], bridged=True)
    assert served.call("POST", "/admit", [long()]).json["response"]["allowed"] is False
    assert served.call("POST", "/admit", [long(name="d")]).json["response"]["allowed"] is True


def test_conditions_of_superseded_policies_need_the_object_too(served: Served) -> None:
    served.write(POLICIES[1:])
    assert served.reload()
    assert served.call("POST", "/admit", [long()]).json["response"]["allowed"] is False
    assert served.call("POST", "/admit", [long("bob")]).json["response"]["allowed"] is True
    served.clock.now += 331
    assert served.call("POST", "/admit", [long()]).json["response"]["allowed"] is True


def deep(user: str, levels: int, **more: Any) -> bytes:
    value = claim() | {"data": "here"}
    review = json.dumps(as_written(admission(user, **{"object": value, **more})))
    return review.replace('"here"', '{"a":' * levels + "1" + "}" * levels).encode()


@pytest.mark.parametrize("levels", [1_000, 10_000])
def test_an_object_that_is_nested_too_deeply_is_judged_by_its_head(served: Served, levels: int) -> None:
    root = {"username": "alice", "groups": ["system:masters"]}
    for body, is_admitted in (
        (deep("bob", levels), True),
        (deep("nobody", levels), True),
        (deep("alice", levels, userInfo=root), True),
        (deep("eve", levels), False),
        (deep("carol", levels), False),
        (deep("alice", levels), False),
    ):
        answer = served.call("POST", "/admit", [body])
        assert (answer.status, answer.json["response"]["allowed"]) == (200, is_admitted)
    assert "nested too deeply" in answer.json["response"]["status"]["message"]


def test_a_head_without_a_user_is_not_judged(served: Served) -> None:
    """Nobody knows whose conditions count if the object comes before the user."""
    review = as_written(admission("alice", object=claim() | {"data": "x" * LIMIT}))
    review["request"]["userInfo"] = review["request"].pop("userInfo")
    answer = served.call("POST", "/admit", [json.dumps(review).encode()])
    assert (answer.status, answer.json["response"]["allowed"]) == (413, False)


def test_without_the_bridge_no_head_is_judged(tmp_path: Path) -> None:
    assert Served(tmp_path).call("POST", "/admit", [long("bob")]).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"x" * (LIMIT + 1),
        b"{" * (LIMIT + 1),
        b'{"request":{"object":{}' + b" " * LIMIT,
        b'{"request":{"uid":"u","object":' + b" " * LIMIT,
        b'{"request":{"uid":"' + b"u" * LIMIT + b'","object":{}}}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","object":' + b" " * LIMIT,
    ],
)
def test_a_long_body_without_a_head_is_refused(served: Served, body: bytes) -> None:
    answer = served.call("POST", "/admit", [body])
    assert answer.status in (400, 413)
    assert answer.json["response"]["allowed"] is False


def test_a_body_that_does_not_end_is_cut_off(served: Served) -> None:
    pieces = [long("bob"), *[b" " * (1 << 20)] * (MAX_DRAINED_BYTES >> 20)]
    answer = served.call("POST", "/admit", pieces)
    assert (answer.status, answer.json["response"]["allowed"]) == (413, False)


def test_a_long_body_takes_no_more_memory_than_the_longest_that_is_read(served: Served) -> None:
    body = long("bob", size=6 * LIMIT)
    pieces = [body[start : start + 65536] for start in range(0, len(body), 65536)]
    tracemalloc.start()
    try:
        assert served.call("POST", "/admit", pieces).json["response"]["allowed"] is True
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * LIMIT


TEXT = st.text(st.sampled_from('"\\{}[]:, objectldO'), max_size=12)
HEADS = st.fixed_dictionaries(
    {"uid": TEXT, "userInfo": st.fixed_dictionaries({"username": TEXT, "extra": st.dictionaries(TEXT, st.lists(TEXT))})}
)


@given(
    head=HEADS, value=st.dictionaries(TEXT | st.just("object"), TEXT), first=st.sampled_from(("object", "oldObject"))
)
def test_the_head_is_everything_before_the_objects(head: dict[str, Any], value: dict[str, str], first: str) -> None:
    request = {**head, first: value, "options": {"object": 1}}
    for separators in ((",", ":"), (", ", " : ")):
        body = json.dumps({"kind": "AdmissionReview", "request": request}, separators=separators).encode()
        cut = review_head(body[: body.index(b"options")])
        assert cut is not None
        assert json.loads(cut) == {"kind": "AdmissionReview", "request": head}


@given(start=st.binary(max_size=64))
def test_any_bytes_have_a_head_or_none(start: bytes) -> None:
    head = review_head(start)
    assert head is None or len(head) <= len(start) + 2


def test_only_the_beginning_is_searched() -> None:
    body = b'{"request":{"uid":"u",' + b" " * MAX_HEAD_BYTES + b'"object":{}}}'
    assert review_head(body) is None


def test_a_string_that_is_cut_off_is_read_once() -> None:
    # Tried from every quote, this would take hours.
    assert review_head(b'{"request":{"uid":"' + b'\\"' * MAX_HEAD_BYTES) is None
