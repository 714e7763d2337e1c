"""Judges one admission request in the followed cluster: the warnings that its user gets (docs/warnings.md).

Everything here runs in one thread, which also keeps the index up to date, so that a request finds it ready.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tierwall.analyze.change_findings import ChangeFindings, ChangeIndex, PolicyChange
from tierwall.analyze.ignores import ignores
from tierwall.api.authorizers.rbac import RbacAuthorizer
from tierwall.api.wire.review import WireError
from tierwall.cluster.decoding import ItemReader
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.reading import as_resource
from tierwall.cluster.shapes import SpecObject
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.bridge import AdmissionRequest
from tierwall.serve.controller.kinds import ROLES
from tierwall.serve.controller.requester_view import RequesterView
from tierwall.serve.controller.state import ControllerState
from tierwall.serve.controller.warning_lines import WarningBuilder, WarningLine, refusal, shown

_READER = ItemReader(SpecObject)


class WarningResult(Struct, frozen=True):
    """The warnings to send, and why the change is refused, if it is."""

    warnings: tuple[str, ...] = ()
    refusal: str = ""


class WarningIndex:
    """The cluster as judged, kept up to date. One thread at a time may use it."""

    def __init__(self, refused_codes: frozenset[str] = frozenset(), reveals_admin_policies: bool = False) -> None:
        self._refused_codes, self._reveals_admin_policies = refused_codes, reveals_admin_policies
        self._changes = ChangeIndex()
        self._state: ControllerState | None = None
        # Roles and bindings alone: an index of them is kept until one of them changes.
        self._roles = Snapshot({})
        self._authorizer = RbacAuthorizer(self._roles)

    @property
    def is_read(self) -> bool:
        """Whether the cluster was read."""
        return self._state is not None

    def update(self, state: ControllerState) -> None:
        """Take over what has changed."""
        if state is self._state:
            return
        self._changes.update(state.judged)
        roles = [role for kind in ROLES for role in state.snapshot.of_kind(*kind)]
        if set(roles) != set(self._roles):
            self._roles = Snapshot.of(roles)
            self._authorizer = RbacAuthorizer(self._roles)
        self._state = state

    def judge(self, request: AdmissionRequest, seconds: float) -> WarningResult:
        """Return what a user is told about a change, and whether it is refused.

        Looks at other policies take about so many seconds of CPU. WireError if the review has no object to read.
        """
        assert self._state is not None
        new, old = _resource(request, request.object), _resource(request, request.old_object)
        if new is None:
            return WarningResult()
        brought = ChangeFindings(()) if _is_same(old, new) else self._changes.findings(PolicyChange(old, new), seconds)
        snapshot = self._state.judged
        view = RequesterView(self._authorizer, request.user_info, snapshot, self._reveals_admin_policies)
        builder = WarningBuilder(new, view)
        reason = refusal(builder.lines(brought), self._refused_codes)
        return WarningResult(tuple(shown(self._told(builder, brought, new))), reason)

    def _told(self, builder: WarningBuilder, brought: ChangeFindings, policy: Resource) -> list[WarningLine]:
        """Return the lines without those that the policy itself accepts by an annotation."""
        accepted = ignores(Snapshot.of([policy]), (), {})
        findings = tuple(finding for finding in brought.findings if accepted.accepting(finding) is None)
        return builder.lines(ChangeFindings(findings, brought.counted, brought.is_complete))


def _resource(request: AdmissionRequest, value: Any) -> Resource | None:
    """Return an object of a review as one of the cluster; None without an object."""
    if value is None:
        return None
    metadata = value.get("metadata") if isinstance(value, dict) else None
    version, kind = (value.get("apiVersion"), value.get("kind")) if isinstance(value, dict) else (None, None)
    if not isinstance(metadata, dict) or not isinstance(version, str) or not isinstance(kind, str):
        raise WireError("expected an object with `apiVersion`, `kind` and `metadata`")
    named = {"name": request.name, "namespace": request.namespace, **metadata}
    group, _, number = version.rpartition("/")
    served = ServedKind(group, number, kind, request.resource.resource, bool(request.namespace), frozenset())
    return as_resource(_READER.object({**value, "metadata": named}), served, "", {})


def _is_same(old: Resource | None, new: Resource) -> bool:
    """Whether a change leaves everything that is judged as it was."""
    if old is None or old.version != new.version:
        return False
    return all(old.metadata.get(key) == new.metadata.get(key) for key in ("labels", "annotations")) and (
        old.spec == new.spec
    )
