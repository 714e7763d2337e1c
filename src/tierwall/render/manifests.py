"""What other programs read: CustomResourceDefinitions for kubectl, and Envoy's configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tierwall.render.formats import View

if TYPE_CHECKING:
    from tierwall.engines.envoy.config.compile import Resources


def crds_yaml(definitions: Iterable[dict[str, Any]], view: View) -> str:
    """One YAML stream."""
    from tierwall.resources.crd import to_yaml

    return to_yaml(definitions).removesuffix("\n")


def crds_json(definitions: Iterable[dict[str, Any]], view: View) -> dict[str, Any]:
    """A List, as kubectl prints several objects."""
    return {"apiVersion": "v1", "kind": "List", "items": list(definitions)}


def envoy_yaml(resources: Resources, view: View) -> str:
    """The configuration in the words of Envoy's own API, without private keys."""
    from tierwall.engines.envoy.config.text import document, text

    return text(document(resources), "yaml").removesuffix("\n")


def envoy_json(resources: Resources, view: View) -> dict[str, Any]:
    """The same as one document."""
    from tierwall.engines.envoy.config.text import document

    return document(resources)
