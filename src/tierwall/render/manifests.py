"""Objects as kubectl reads them, one YAML stream or a List in JSON, and parts of objects as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from tierwall.render.formats import View

# Strings that every YAML reader reads as strings; others are quoted (Go and PyYAML differ on `1e3` and `y`).
_is_plain = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)$)[a-z][a-z0-9]*(?:[-./][a-z0-9]+)*$", re.I
).match


def crds_yaml(definitions: Iterable[dict[str, Any]], view: View) -> str:
    """Write one YAML stream."""
    return to_yaml(definitions).removesuffix("\n")


def crds_json(definitions: Iterable[dict[str, Any]], view: View) -> dict[str, Any]:
    """Return a List, as kubectl prints several objects."""
    return {"apiVersion": "v1", "kind": "List", "items": list(definitions)}


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write out shared fragments: kubectl reads aliases, people do not."""
        return True


def _represent_string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if _is_plain(text) else '"')


_Dumper.add_representer(str, _represent_string)


class _FragmentDumper(_Dumper):
    """Writes for people: text of several lines keeps its lines."""


def _represent_text(dumper: _FragmentDumper, text: str) -> yaml.ScalarNode:
    if "\n" not in text:
        return _represent_string(dumper, text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|")


_FragmentDumper.add_representer(str, _represent_text)


def fragment_yaml(value: dict[str, Any] | list[Any]) -> str:
    """Write a part of an object, to be read by people."""
    return str(yaml.dump_all([value], Dumper=_FragmentDumper, sort_keys=False, allow_unicode=True, width=4096))


def to_yaml(documents: Iterable[dict[str, Any]]) -> str:
    """Write documents as one YAML stream."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=4096))
