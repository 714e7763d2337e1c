"""Policies and providers set fields of requests to language models (docs/gateway.md#providers-of-language-models)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.engines.test_envoy_model_backends import behind, model, references
from tests.labs.settings_lab import Answer, SettingsLab, settings_lab
from tests.randomness import seeds
from tests.worlds.gateway_settings import Object, policy

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
HERE = {"host": "models.example", "port": 80}
ALIASES = {
    "fast": "small-1",
    "org/fast": "small-2",
    "gpt-*": "large",
    "gpt-*-mini": "small",
    "*": 'other "model"\\',
    "gpt-5": "newest",
}
FIELDS: Object = {
    "overrides": [{"field": "max_tokens", "value": 100}, {"field": "stop", "value": {"a": ["b", None, "é"]}}],
    "defaults": [{"field": "temperature", "value": 0.5}, {"field": "max_tokens", "value": 7}],
}
BACKENDS = [
    model("plain", {"openai": {}, **HERE}),
    model("own", {"openai": {"model": "ours"}, **HERE}),
    model("aliases", {"openai": {}, **HERE}, ai={"modelAliases": ALIASES}),
    model("fields", {"openai": {"model": "gpt-1"}, **HERE}, ai={**FIELDS, "modelAliases": {"gpt-*": "large"}}),
    model("passing", {"openai": {"model": "ours"}, **HERE}, ai={"routes": {"/raw": "Passthrough", "*": "Completions"}}),
    model("strange", {"openai": {}, **HERE}, ai={"overrides": [{"field": 'a"b', "value": 1}]}),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SettingsLab]:
    # A policy on a route has its share, too.
    late = policy("late", "HTTPRoute/plain", backend={"ai": {"defaults": [{"field": "user", "value": "nobody"}]}})
    with settings_lab([*behind(BACKENDS), late], references(BACKENDS)) as running:
        yield running


def send(
    lab: SettingsLab, backend: str, body: bytes | Object, path: str = "/v1/chat/completions", **more: str
) -> Answer:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lab.send(path, "POST", text, host=f"{backend}.test", content_type="application/json", **more)


def got(lab: SettingsLab, backend: str, body: bytes | Object, **more: str) -> Any:
    answer = send(lab, backend, body, **more)
    assert answer.status == 200, answer.body
    assert int(answer.seen["content-length"]) == len(lab.backend.bodies[-1])
    return json.loads(lab.backend.bodies[-1])


def test_a_provider_has_its_own_model(lab: SettingsLab) -> None:
    assert got(lab, "own", {"messages": [], "model": "theirs"}) == {"messages": [], "model": "ours"}
    assert got(lab, "own", {}) == {"model": "ours"}


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("fast", "small-1"),
        ("org/fast", "small-2"),
        ("gpt-5", "newest"),
        ("gpt-5-mini", "small"),
        ("gpt-", "large"),
        ("gpt-mini", "large"),
        ("Fast", 'other "model"\\'),
        ("", 'other "model"\\'),
    ],
)
def test_names_stand_for_models(lab: SettingsLab, name: str, resolved: str) -> None:
    assert got(lab, "aliases", {"model": name, "n": 1e3}) == {"model": resolved, "n": 1000.0}
    # As some clients write slashes.
    assert got(lab, "aliases", b' {"model"\n:\t"%s"} ' % name.replace("/", "\\/").encode()) == {"model": resolved}


def test_fields_are_set(lab: SettingsLab) -> None:
    stop = {"a": ["b", None, "é"]}
    set_ = {"model": "large", "max_tokens": 100, "stop": stop, "temperature": 0.5}
    assert got(lab, "fields", {"model": "x"}) == set_
    assert got(lab, "fields", {"max_tokens": 9999, "temperature": 2, "x": [1, {"max_tokens": 3}]}) == {
        **set_,
        "temperature": 2,
        "x": [1, {"max_tokens": 3}],
    }
    assert got(lab, "plain", {"model": "x"}) == {"model": "x", "user": "nobody"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"x"',
        b'{"model":"x"',
        b'{"model":"x"}}',
        b'{"model":"x"}{}',
        b"{'model':'x'}",
        b'{"model":"x",}',
        b'{"model":"x"/**/}',
        b'{"model":"x","a":NaN}',
        b'{"model":"x","a":01}',
        b'{"model":"x","a":"\x01"}',
        b'{"model":"x","a":"\\x"}',
        b'{"model":"x","a":"\\u12g4"}',
        b'{"model":"x","model":"y"}',
        b'{"model":"x","mode\\u006c":"y"}',
        b'{"model":"x","max_tokens":1,"Max_Tokens":9}',
        '{"model":"x","max_to\u212aen\u017f":9}'.encode(),
        b'{"model":"x","a":' + b"[" * 200 + b"]" * 200 + b"}",
        b"\xef\xbb\xbf{}",
        b'{"model":"x","max_\xc1\xb4okens":9}',
    ],
)
def test_what_a_provider_might_read_otherwise_is_refused(lab: SettingsLab, body: bytes) -> None:
    before = len(lab.backend.paths)
    answer = send(lab, "fields", body)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"].startswith("refused: ")
    assert len(lab.backend.paths) == before


def test_what_is_encoded_or_names_no_model_is_refused(lab: SettingsLab) -> None:
    assert send(lab, "fields", b"{}", content_encoding="gzip").status == 400
    assert send(lab, "aliases", b"{}").status == 400
    assert send(lab, "aliases", b'{"model":7}').status == 400
    assert send(lab, "aliases", b'{"model":"\\u0061"}').status == 400


def test_requests_that_pass_unread_stay_as_they_are(lab: SettingsLab) -> None:
    assert send(lab, "passing", b"not json", "/raw").status == 200
    assert lab.backend.bodies[-1] == b"not json"
    assert got(lab, "passing", {}) == {"model": "ours"}


def test_a_field_that_envoy_cannot_set_closes(lab: SettingsLab) -> None:
    assert send(lab, "strange", {"model": "x"}).status == 500
    assert any("printable ASCII" in str(problem.message) for problem in lab.diagnostics if problem.code == "TW663")


def expected(body: Object) -> Object:
    """Return the object that reaches the provider `fields`, as agentgateway's words have it."""
    out = {**body, "model": "gpt-1"}
    out |= {entry["field"]: entry["value"] for entry in FIELDS["overrides"]}
    out = {**{entry["field"]: entry["value"] for entry in FIELDS["defaults"]}, **out}
    return {**out, "model": "large"}


def any_value(random: Random, depth: int = 0) -> Any:
    texts = ["", "a", 'q"\\/', "\n\t\x00", "é😀\u2028", "\ud7ff", "{}", "]"]
    kind = random.randrange(7 if depth < 4 else 5)
    if kind == 5:
        return [any_value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 6:
        return {random.choice(texts): any_value(random, depth + 1) for _ in range(random.randrange(4))}
    return [
        None,
        random.random() < 0.5,
        random.choice([0, -1, 1e300, 0.25, -7.5e-9, 12345678901234567890]),
        *2 * [random.choice(texts)],
    ][kind]


@pytest.mark.parametrize("seed", seeds(3))
def test_random_bodies_are_changed_as_the_words_say(lab: SettingsLab, seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        names = ["model", "max_tokens", "temperature", "stop", "messages", "x y", "é", "0"]
        chosen = random.sample(names, random.randrange(len(names)))
        body = {name: any_value(random) for name in chosen}
        text = json.dumps(body, ensure_ascii="é" not in body and random.random() < 0.5, indent=random.choice([None, 2]))
        assert got(lab, "fields", text.encode()) == expected(body), text
