"""Profiles of the tool plane: whose words denials and statuses use. A profile never changes a verdict.

The conformance suite of kube-agentic-networking compares the text of denials and the conditions of policies
(docs/enforce-tools.md#upstreams-profile).
"""

from __future__ import annotations

from enum import StrEnum

# What kube-agentic-networking tells every client that it denies.
UPSTREAM_DENIAL = "Access to this tool is forbidden."


class ToolProfile(StrEnum):
    """The project whose words denials and statuses use."""

    TIERWALL = "tierwall"
    KUBE_AGENTIC_NETWORKING = "kube-agentic-networking"
