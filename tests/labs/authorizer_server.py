"""The authorizer without a network: its application, called as an ASGI server would, with policies in a folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, MutableMapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from tests.worlds.api_fakes import policies_text
from tierwall.api.wire.review import WireShape
from tierwall.resources.load import Loader
from tierwall.serve.authorizer.app import App
from tierwall.serve.authorizer.issuer import Issuer
from tierwall.serve.authorizer.metrics import AuthorizerMetrics
from tierwall.serve.authorizer.policies import PolicyFollower
from tierwall.serve.authorizer.reviews import Reviews
from tierwall.serve.decisionlog import DecisionLog
from tierwall.serve.files import FileSource
from tierwall.serve.follower import LoadOutcome

KEY = b"0123456789abcdef0123456789abcdef"
CLAIMS = 'request.apiGroup == "" && request.resource == "persistentvolumeclaims"'
POLICIES = (
    (
        "alice-claims",
        "Allow",
        f'{CLAIMS} && request.userInfo.username == "alice" && request.verb == "create" && '
        'object.spec.storageClassName == "dev"',
    ),
    ("bob-claims", "Allow", f'{CLAIMS} && request.userInfo.username == "bob"'),
    (
        "no-prod",
        "Deny",
        f'{CLAIMS} && request.userInfo.username == "carol" && object.spec.storageClassName == "prod"',
    ),
    ("no-eve", "Deny", 'request.userInfo.username == "eve"'),
)


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes
    headers: dict[bytes, bytes]

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Clock:
    """A clock that only moves when it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Served:
    """An authorizer with a folder of policies."""

    def __init__(
        self,
        folder: Path,
        policies: Iterable[tuple[str, str, str]] = POLICIES,
        *,
        bridged: bool = False,
        shape: WireShape = WireShape.CONDITIONS_CHAIN,
        key: bytes = KEY,
        settle: float = 0.0,
        read_seconds: float = 10.0,
        log: BytesIO | None = None,
    ) -> None:
        self.folder = folder
        self.clock = Clock()
        self.write(policies)
        self.files = FileSource(Loader([str(folder)]))
        self.follower = PolicyFollower(clock=self.clock)
        self.follower.begin(self.files)
        self.issuer = Issuer(key)
        self.reviews = Reviews(self.follower, self.issuer, bridged=bridged, shape=shape, settle=settle)
        self.metrics = AuthorizerMetrics(self.follower)
        self.log = BytesIO() if log is None else log
        # What the process would tell its operator.
        self.said: list[str] = []
        self.app = App(
            self.reviews,
            self.follower,
            self.metrics,
            DecisionLog(self.log),
            read_seconds=read_seconds,
            log_event=lambda event, **fields: self.said.append(f"{event}: {fields}"),
        )

    def write(self, policies: Iterable[tuple[str, str, str]], *others: dict[str, Any]) -> None:
        """Replace the policies in the folder by these (name, effect, expression); without any, remove the file."""
        file = self.folder / "policies.yaml"
        if text := policies_text(policies, *others):
            file.write_text(text)
        else:
            # A file that is suddenly empty would keep its policies for a while.
            file.unlink(missing_ok=True)

    def reload(self) -> bool:
        """Reload as the process does after a change; whether the policies came into force."""
        load = self.follower.next_load(self.files)
        return load is not None and self.follower.accept(load) is LoadOutcome.TAKEN

    def post(self, path: str, value: Any) -> Answer:
        """Send a body: bytes as they are, anything else as JSON."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.call("POST", path, [body])

    def get(self, path: str) -> Answer:
        """Ask for a page."""
        return self.call("GET", path, [b""])

    def call(self, method: str, path: str, parts: list[bytes], *, stalls: bool = False) -> Answer:
        """Make one request, its body in parts; a client that `stalls` never sends the last part."""
        return asyncio.run(self._call(method, path, parts, stalls))

    async def _call(self, method: str, path: str, parts: list[bytes], stalls: bool) -> Answer:
        left = list(parts)
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            if not left:
                await asyncio.Event().wait()
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left) or stalls}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
        body = b"".join(message["body"] for message in sent if message["type"] == "http.response.body")
        return Answer(sent[0]["status"], body, dict(sent[0]["headers"]))

    def records(self) -> list[dict[str, Any]]:
        """Return the decision log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def access(user: str = "alice", verb: str = "create", **more: Any) -> dict[str, Any]:
    """Return a SubjectAccessReview about claims. `more` is added to the spec, `attributes` to its attributes."""
    attributes = {
        "verb": verb,
        "version": "v1",
        "resource": "persistentvolumeclaims",
        "namespace": "dev",
        **more.pop("attributes", {}),
    }
    spec = {"user": user, "resourceAttributes": attributes, **more}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def readable() -> dict[str, Any]:
    """Return the additions to the spec by a caller of the KEP's shape."""
    return {"conditionalAuthorization": {"mode": "HumanReadable"}}


def series() -> dict[str, Any]:
    """Return the additions to the spec by a caller of the API server's own series."""
    types = ["Allow", "Deny", "NoOpinion", "ConditionsMap", "Union"]
    return {"authorizationOptions": {"handledDecisionTypes": types}}


def conditions(**request: Any) -> dict[str, Any]:
    """Return an AuthorizationConditionsReview."""
    return {
        "apiVersion": "authorization.k8s.io/v1alpha1",
        "kind": "AuthorizationConditionsReview",
        "request": request,
    }


def claim(storage_class: str = "dev", name: str = "c") -> dict[str, Any]:
    """Return a PersistentVolumeClaim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "dev"},
        "spec": {"storageClassName": storage_class},
    }


def admission(user: str = "alice", operation: str = "CREATE", **more: Any) -> dict[str, Any]:
    """Return an AdmissionReview about a claim."""
    resource = {"group": "", "version": "v1", "resource": "persistentvolumeclaims"}
    request = {
        "uid": "u1",
        "kind": {"group": "", "version": "v1", "kind": "PersistentVolumeClaim"},
        "resource": resource,
        "requestResource": resource,
        "name": "c",
        "namespace": "dev",
        "operation": operation,
        "userInfo": {"username": user},
        "object": claim() if operation in ("CREATE", "UPDATE") else None,
        "oldObject": claim() if operation in ("UPDATE", "DELETE") else None,
        "options": {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
