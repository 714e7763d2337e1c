"""Every tier of Kubernetes policy, one verdict (docs/python-api.md).

What `__all__` names is public and follows semantic versioning; everything else may move. Names are imported when they
are first used, so that `import tierwall` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tierwall.version import __version__ as __version__

if TYPE_CHECKING:
    from tierwall import cel as cel
    from tierwall.analyze.difference import Difference as Difference
    from tierwall.api.detail import ApiDetail as ApiDetail
    from tierwall.api.permissions import Permission as Permission
    from tierwall.api.question import ApiQuestion as ApiQuestion
    from tierwall.cluster.cluster import Cluster as Cluster
    from tierwall.comparing import diff as diff
    from tierwall.comparing import prove as prove
    from tierwall.core.answer import Answer as Answer
    from tierwall.core.answer import Decider as Decider
    from tierwall.core.answer import Omission as Omission
    from tierwall.core.answer import Step as Step
    from tierwall.core.diagnostics import Diagnostic as Diagnostic
    from tierwall.core.diagnostics import Finding as Finding
    from tierwall.core.diagnostics import InputError as InputError
    from tierwall.core.diagnostics import UnknownName as UnknownName
    from tierwall.core.reference import Reference as Reference
    from tierwall.core.source import Position as Position
    from tierwall.core.verdict import StepVerdict as StepVerdict
    from tierwall.core.verdict import Verdict as Verdict
    from tierwall.errors import TierwallError as TierwallError
    from tierwall.gateway.detail import GatewayDetail as GatewayDetail
    from tierwall.gateway.question import GatewayQuestion as GatewayQuestion
    from tierwall.loading import load as load
    from tierwall.loading import loads as loads
    from tierwall.network.detail import NetworkDetail as NetworkDetail
    from tierwall.network.question import NetworkQuestion as NetworkQuestion
    from tierwall.network.reach.connections import Connections as Connections
    from tierwall.path.detail import PathDetail as PathDetail
    from tierwall.path.question import PathQuestion as PathQuestion
    from tierwall.policytest.run import TestReport as TestReport
    from tierwall.proofs.proof import Proof as Proof
    from tierwall.proofs.result import ProofResult as ProofResult
    from tierwall.resources.admission.question import AdmitQuestion as AdmitQuestion
    from tierwall.resources.resource import Resource as Resource
    from tierwall.testing import run_tests as run_tests
    from tierwall.tool.detail import ToolDetail as ToolDetail
    from tierwall.tool.grants import ToolRow as ToolRow
    from tierwall.tool.question import ToolQuestion as ToolQuestion
    from tierwall.world import World as World

# The module that defines each public name.
_HOMES = {
    "Answer": "core.answer",
    "Decider": "core.answer",
    "Omission": "core.answer",
    "Step": "core.answer",
    "Verdict": "core.verdict",
    "StepVerdict": "core.verdict",
    "Reference": "core.reference",
    "Position": "core.source",
    "Diagnostic": "core.diagnostics",
    "Finding": "core.diagnostics",
    "InputError": "core.diagnostics",
    "UnknownName": "core.diagnostics",
    "TierwallError": "errors",
    "Cluster": "cluster.cluster",
    "World": "world",
    "load": "loading",
    "loads": "loading",
    "diff": "comparing",
    "run_tests": "testing",
    "prove": "comparing",
    "Proof": "proofs.proof",
    "ProofResult": "proofs.result",
    "NetworkQuestion": "network.question",
    "ToolQuestion": "tool.question",
    "GatewayQuestion": "gateway.question",
    "ApiQuestion": "api.question",
    "AdmitQuestion": "resources.admission.question",
    "PathQuestion": "path.question",
    "NetworkDetail": "network.detail",
    "ToolDetail": "tool.detail",
    "GatewayDetail": "gateway.detail",
    "ApiDetail": "api.detail",
    "PathDetail": "path.detail",
    "Connections": "network.reach.connections",
    "ToolRow": "tool.grants",
    "Permission": "api.permissions",
    "Resource": "resources.resource",
    "Difference": "analyze.difference",
    "TestReport": "policytest.run",
}

__all__ = ["__version__", "cel", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "cel":
        return importlib.import_module("tierwall.cel")
    if name not in _HOMES:
        raise AttributeError(f"module `tierwall` has no attribute `{name}`")
    value = getattr(importlib.import_module(f"tierwall.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
