"""Admission cases kept as data: for every rule of a kind one spec that is admitted and one that is refused.

A case file maps `Kind` or `apiVersion Kind` to a list of `{refusal, good, bad}`; `refusal` is a part of what the API
server says about the bad one.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tierwall.resources.admission.admit import admit
from tierwall.resources.schema import Schema

Cases = dict[str, list[dict[str, Any]]]


def read_cases(name: str) -> Cases:
    cases: Cases = yaml.safe_load(Path(__file__).with_name(name).read_text())
    return cases


def an_object(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "x"} if kind == "GatewayClass" else {"name": "x", "namespace": "default"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": deepcopy(spec)}


def parameters(cases: Cases, default_api_version: str, defaults: dict[str, dict[str, Any]]) -> list[Any]:
    """Return every case as (good object, bad object, refusal). `defaults` holds fields that specs need not repeat."""
    out = []
    for key, entries in cases.items():
        api_version, _, kind = key.rpartition(" ")
        for number, case in enumerate(entries):
            good, bad = (
                an_object(api_version or default_api_version, kind, completed(case[word], defaults.get(key, {})))
                for word in ("good", "bad")
            )
            out.append(pytest.param(good, bad, case["refusal"], id=f"{key} {number} {case['refusal'][:60]}"))
    return out


def completed(spec: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with defaults for missing fields. A null removes the default."""
    whole = {**default, **spec}
    return {name: value for name, value in whole.items() if value is not None}


def messages(document: dict[str, Any]) -> list[str]:
    """Return the messages that refuse the object."""
    return [problem.message for problem in admit(document) if problem.refuses]


def check_pair(good: dict[str, Any], bad: dict[str, Any], refusal: str) -> None:
    assert messages(good) == []
    refusals = messages(bad)
    assert any(refusal in message for message in refusals), refusals


def rules_without_a_case(schema: Schema, cases: Cases) -> set[str]:
    """Messages of refusing rules that no case expects."""
    refusals = {case["refusal"] for entries in cases.values() for case in entries}
    return {message for message in rule_messages(schema) if not any(refusal in message for refusal in refusals)}


def rule_messages(schema: Schema) -> Iterator[str]:
    yield from (rule.message for rule in schema.rules if not rule.warning)
    for part in schema.properties:
        yield from rule_messages(part.schema)
    for inner in (schema.items, schema.additional):
        if inner is not None:
            yield from rule_messages(inner)
