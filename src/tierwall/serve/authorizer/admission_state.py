"""Whether admission enforces conditions now, as far as it is proved (docs/authorizer.md#admission-must-be-live)."""

from __future__ import annotations

import msgspec

from tierwall.api.algebra.request import Attributes

_SELF_REVIEWS = ("authentication.k8s.io", "selfsubjectreviews")


class AdmissionState(msgspec.Struct, frozen=True):
    """Whether the API server asks our webhook about every write; `reason` says why not, or how that is known.

    INVARIANT: a state never changes, so each review is decided by exactly one.
    """

    is_live: bool
    reason: str = ""
    # The webhook is not asked about requests of users in these groups (`install --exempt-group`).
    exempt: frozenset[str] = frozenset()
    # The user as whom this process writes its canary, and the namespace of the canary.
    prober: str = ""
    canary_namespace: str = ""

    def enforces(self, attributes: Attributes) -> bool:
        """Whether conditions on a request of this user will be enforced."""
        return self.is_live and self.exempt.isdisjoint(attributes.groups)

    def is_probe(self, attributes: Attributes) -> bool:
        """Whether the request may be our own canary, or our question who we are.

        Conditions on these must not fold to Deny while admission is not proved, or it could never be proved. The answer
        to a SelfSubjectReview tells nothing but the name of whoever asks.
        """
        if attributes.verb == "create" and (attributes.group, attributes.combined_resource) == _SELF_REVIEWS:
            return True
        return (
            bool(self.prober)
            and attributes.user == self.prober
            and attributes.verb == "create"
            and (attributes.group, attributes.combined_resource) == ("", "configmaps")
            and attributes.namespace == self.canary_namespace
        )

    def words(self) -> str:
        """Return the state in words: `live`, or `not live, …`."""
        word = "live" if self.is_live else "not live"
        return f"{word}, {self.reason}" if self.reason else word


ASSUMED = AdmissionState(True, "assumed by --assume-admission")
NOT_ASKED = AdmissionState(False, "no API server is given that could prove it (--api-server-kubeconfig FILE)")
