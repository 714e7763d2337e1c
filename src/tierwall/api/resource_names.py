"""Questions as people write them for kubectl, completed to what an API server is asked.

`deploy`, `deployments.apps` and `pods/exec` name a resource; group and version are those that Kubernetes, or a
CustomResourceDefinition of the snapshot, has it in. `explain api` and `can-i` complete their questions here, and so may
programs. Policy tests do not: there every attribute is asked as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from tierwall.api.api_resources import VERBS, ApiResource, api_resources
from tierwall.api.enforcement import OPERATIONS
from tierwall.api.question import ApiQuestion
from tierwall.core.diagnostics import near_miss
from tierwall.resources.snapshot import Snapshot


class Resolved(NamedTuple):
    """A question that can be asked, and what in it nobody has heard of; that may still be meant."""

    question: ApiQuestion
    doubts: tuple[str, ...]


class ResourceName(NamedTuple):
    """A resource as kubectl writes it: `pods`, `pods/exec`, `deployments.apps` or `deployments.v1.apps`."""

    resource: str
    version: str | None = None
    group: str | None = None
    subresource: str | None = None

    @classmethod
    def parse(cls, text: str) -> ResourceName:
        """The parts of a name; those that it lacks are None."""
        whole, _, subresource = text.partition("/")
        name, _, rest = whole.partition(".")
        first, _, more = rest.partition(".")
        is_version = len(first) > 1 and first[0] == "v" and first[1].isdigit()
        version, group = (first, more) if is_version else ("", rest)
        return cls(name, version or None, group or None, subresource or None)


def resolve(snapshot: Snapshot, question: ApiQuestion) -> Resolved:
    """Complete a question: resource, group, version and subresource from the name, and the operation from the verb.

    What the question gives beside the name (`group`, `version`, `subresource`, `operation`) is kept as it is, also if
    it is empty. A name that nobody knows is asked as it stands.
    """
    if question.has_data and question.operation is UNSET and question.verb in OPERATIONS:
        question = replace(question, operation=OPERATIONS[question.verb])
    known = api_resources(snapshot)
    verb_doubts = tuple(_verb_doubts(question.verb))
    if not question.resource:
        return Resolved(question, verb_doubts)
    name = ResourceName.parse(question.resource)
    group = question.group if question.group is not None else name.group
    version = question.version if question.version is not None else name.version
    subresource = question.subresource if question.subresource is not None else name.subresource
    served = _served(name.resource, group, known)
    if served is None:
        plain = replace(question, resource=name.resource, group=group, version=version, subresource=subresource)
        return Resolved(plain, (*verb_doubts, *_resource_doubts(name.resource, group, known)))
    completed = replace(
        question,
        resource=served.plural,
        group=served.group,
        version=version if version is not None else served.version,
        subresource=subresource,
    )
    return Resolved(completed, verb_doubts)


def _served(name: str, group: str | None, known: Iterable[ApiResource]) -> ApiResource | None:
    """The resource of this name, in this group if one is given."""
    return next((each for each in known if each.is_called(name) and group in (None, each.group)), None)


def _verb_doubts(verb: str) -> Iterator[str]:
    if verb not in VERBS:
        hint = near_miss(verb, VERBS)
        yield f"`{verb}` is not a known verb" + (f" ({hint})" if hint else "")


def _resource_doubts(name: str, group: str | None, known: Iterable[ApiResource]) -> Iterator[str]:
    if name != "*":
        whole = f"{name}.{group}" if group else name
        names = (f"{each.plural}.{each.group}" for each in known if each.group)
        hint = near_miss(whole, names if "." in whole else (each.plural for each in known))
        yield f"there is no resource type `{whole}` that Tierwall knows of" + (f" ({hint})" if hint else "")
