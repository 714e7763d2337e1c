"""Whether the ValidatingWebhookConfiguration in the cluster is the one that `install` writes.

Everything that decides about which requests the webhook is asked, and what happens without its answer, must be as
written. Where the webhook is (`clientConfig`) is proved by the canary: a change of it makes older proofs void.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

# What the API server fills in.
_DEFAULTS = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "", "timeoutSeconds": 10}
_SELECTORS = ("namespaceSelector", "objectSelector")
# The match condition that `install --exempt-group` writes.
EXEMPTION = "!('{group}' in request.userInfo.groups)"
_EXEMPTION = re.compile(re.escape(EXEMPTION).replace(r"\{group\}", r"([^'\\]+)"))
_MAX_SHOWN = 100


class WebhookCheck(msgspec.Struct, frozen=True):
    """What is wrong with a configuration (empty if nothing is), which groups it leaves out, and a digest of it."""

    problem: str = ""
    exempt: frozenset[str] = frozenset()
    content: bytes = b""


@cache
def written_webhook() -> Mapping[str, Any]:
    """Return the configuration that `install` writes, with its placeholders."""
    import yaml

    files = yaml.safe_load(Path(__file__).with_name("installation.yaml").read_bytes())
    document: Mapping[str, Any] = files["webhook.yaml"]["document"]
    return document


def check_webhook(configuration: Mapping[str, Any]) -> WebhookCheck:
    """Compare a configuration with the one that `install` writes."""
    wanted = written_webhook()["webhooks"][0]
    hooks = configuration.get("webhooks")
    hook = next(
        (hook for hook in hooks or () if isinstance(hook, Mapping) and hook.get("name") == wanted["name"]), None
    )
    if hook is None:
        return WebhookCheck(f"it has no webhook `{wanted['name']}`")
    content = msgspec.json.encode(hook, order="deterministic")
    groups, problem = _exempt_groups(hook.get("matchConditions") or ())
    return WebhookCheck(problem or _changed(hook, wanted), groups, content)


def _changed(hook: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    for field, default in _DEFAULTS.items():
        if (actual := hook.get(field, default)) != wanted[field]:
            return f"`{field}` is `{_shown(actual)}`, and `install` writes `{wanted[field]}`"
    for field in _SELECTORS:
        selector = hook.get(field)
        if selector and (not isinstance(selector, Mapping) or any(selector.values())):
            return f"`{field}` leaves out objects: `{_shown(selector)}`"
    if not any(_covers(rule, wanted["rules"][0]) for rule in hook.get("rules") or ()):
        return f"`rules` do not cover every write: `{_shown(hook.get('rules'))}`"
    return ""


def _covers(rule: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether a rule covers everything that the written one does."""
    if not isinstance(rule, Mapping) or rule.get("scope", "*") != "*":
        return False
    operations = rule.get("operations") or ()
    return ("*" in operations or set(wanted["operations"]) <= set(operations)) and all(
        set(wanted[key]) <= set(rule.get(key) or ()) for key in ("apiGroups", "apiVersions", "resources")
    )


def _exempt_groups(conditions: Sequence[Any]) -> tuple[frozenset[str], str]:
    """Return the groups that match conditions leave out; the problem is a condition that does anything else."""
    groups = set()
    for condition in conditions:
        expression = condition.get("expression") if isinstance(condition, Mapping) else None
        known = _EXEMPTION.fullmatch(expression) if isinstance(expression, str) else None
        if known is None:
            return frozenset(), f"`matchConditions` leaves out requests: `{_shown(expression)}`"
        groups.add(known[1])
    return frozenset(groups), ""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
