"""The rights of the user of a request, so that warnings tell nothing else (docs/warnings.md#who-learns-what).

Only RBAC is asked, over the roles and bindings that the controller follows: a user whom another authorizer allows to
read something learns less than possible, never more.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierwall.api.algebra.decision import ALLOW
from tierwall.api.algebra.request import Attributes
from tierwall.api.authorizers.rbac import RbacAuthorizer
from tierwall.core.reference import Reference
from tierwall.network.model.policies import KINDS as NETWORK_KINDS
from tierwall.network.model.policies import NETWORK_POLICY
from tierwall.resources.kinds.registry import versions_of
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.serve.authorizer.bridge import PRIVILEGED, UserInfo

POD: KindKey = ("", "Pod")
SERVICE_ACCOUNT: KindKey = ("", "ServiceAccount")
# Kinds without a definition of ours.
_RESOURCES = {SERVICE_ACCOUNT: "serviceaccounts"}
_ADMIN_KINDS = frozenset(kind for group, kind in NETWORK_KINDS if (group, kind) != NETWORK_POLICY)


class RequesterView:
    """The rights of one user to read objects. `policies` has the objects that findings name."""

    def __init__(
        self, authorizer: RbacAuthorizer, user: UserInfo, policies: Snapshot, reveals_admin_policies: bool = False
    ) -> None:
        self._authorizer, self._user, self._policies = authorizer, user, policies
        self._reveals_admin_policies = reveals_admin_policies
        # Whether the user may get every object of a kind in a namespace, or (empty) everywhere.
        self._may_get_any: dict[tuple[KindKey, str], bool] = {}

    def may_list(self, kind: KindKey, namespace: str = "") -> bool:
        """Whether the user may list a kind in a namespace, or everywhere."""
        return self._may("list", kind, namespace)

    def may_read(self, objects: Iterable[str]) -> bool:
        """Whether the user may get every one of these objects, by their references."""
        return all(map(self._may_get, objects))

    def _may_get(self, text: str) -> bool:
        reference = Reference.parse_or_string(text)
        if isinstance(reference, str):
            return False
        if self._reveals_admin_policies and reference.kind in _ADMIN_KINDS:
            return True
        kinds = [key for key in self._policies.kinds if key[1] == reference.kind]
        place = reference.namespace, reference.name
        existing = [key for key in kinds if self._policies.get(*key, *place) is not None]
        return bool(existing) and all(
            self._may_get_all(key, place[0]) or self._may("get", key, *place) for key in existing
        )

    def _may_get_all(self, kind: KindKey, namespace: str) -> bool:
        """Whether the user may get every object of a kind in a namespace: thousands may be asked about."""
        known = self._may_get_any.get((kind, namespace))
        if known is None:
            known = self._may_get_any[kind, namespace] = self._may("get", kind, namespace)
        return known

    def _may(self, verb: str, kind: KindKey, namespace: str, name: str = "") -> bool:
        groups = tuple(self._user.groups or ())
        if PRIVILEGED in groups:
            return True
        asked = Attributes(
            user=self._user.username,
            groups=groups,
            verb=verb,
            group=kind[0],
            resource=_resource(kind),
            namespace=namespace,
            name=name,
        )
        return self._authorizer.authorize(asked).verdict is ALLOW


def _resource(kind: KindKey) -> str:
    """Return the resource of a kind, as rules name it."""
    if kind in _RESOURCES:
        return _RESOURCES[kind]
    # Nobody is known to be allowed to read a kind whose resource is not known.
    return next((version.plural for version in versions_of(*kind).values()), "")
