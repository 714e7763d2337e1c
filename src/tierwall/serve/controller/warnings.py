"""Warnings at `kubectl apply`, on every replica: what a change brings is told to whoever makes it (docs/warnings.md).

Applies are never in danger. A change is judged in a thread; after a second the answer is that it was not, and the
thread goes on with the change of somebody else. Whatever goes wrong here allows the change. Only a finding whose code
`--refuse` names refuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from prometheus_client import Counter, Histogram

from tierwall.api.wire.review import WireError
from tierwall.core.protocols import EngineReport
from tierwall.core.words import failure_words
from tierwall.serve.authorizer.bridge import AdmissionRequest, UserInfo, admission_reply
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState
from tierwall.serve.controller.turn_runner import TurnRunner
from tierwall.serve.controller.warning_index import WarningIndex, WarningResult
from tierwall.serve.controller.warning_lines import FAILED, NOT_IN_TIME, NOT_YET
from tierwall.serve.controller.webhook import PATH, WebhookServer
from tierwall.serve.controller.webhook_certificates import WebhookCertificates
from tierwall.serve.pages import Readiness

# After so many seconds the answer is that nothing was checked. The API server waits for two.
BUDGET_S = 1.0
# Looks at other policies, which could go on for long, take about so many seconds of CPU.
SEARCH_S = 0.09
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class WarningSettings(Struct, frozen=True, kw_only=True):
    """The options of the webhook; `files` are its certificate and key."""

    webhook: tuple[str, int]
    files: tuple[str, str] | None = None
    refused_codes: frozenset[str] = frozenset()
    reveals_admin_policies: bool = False


class WarningsPart(ControllerPart):
    """Answers the webhook."""

    def __init__(self, context: ControllerContext, settings: WarningSettings) -> None:
        self._context, self._settings = context, settings
        self._index = WarningIndex(settings.refused_codes, settings.reveals_admin_policies)
        self._turns = TurnRunner()
        self._state: ControllerState | None = None
        self._updating: asyncio.Task[None] | None = None
        self._is_update_due = False
        self._failure = ""
        self.server = WebhookServer(self.answer)
        self._certificates = WebhookCertificates(context, settings.files, self.server.use)
        self._keeping: asyncio.Task[None] | None = None
        self._seconds = Histogram(
            "tierwall_warnings_duration_seconds",
            "Time to answer a review of a change.",
            buckets=_BUCKETS,
            registry=context.registry,
        )
        self._unchecked = Counter(
            "tierwall_warnings_unchecked",
            "Reviews that were answered without a check: too late, too early, or because of an error.",
            registry=context.registry,
        )

    async def begin(self) -> None:
        """Listen, and look for a certificate."""
        host, port = self._settings.webhook
        self.server.listen(host, port)
        self._keeping = asyncio.create_task(self._certificates.keep())
        self._context.send_report(EngineReport(f"warnings on https://{host}:{self.server.port}{PATH}"))

    def take(self, state: ControllerState) -> None:
        """Bring the index up to date when it is its turn; several states that wait become one."""
        self._state, self._is_update_due = state, True
        if self._updating is None or self._updating.done():
            self._updating = asyncio.create_task(self._keep_up())

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        assert self._keeping is not None
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((stopping, self._keeping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._keeping.done():
            self._keeping.result()

    async def end(self) -> None:
        """Stop serving."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            await self.server.stop()
        if self._updating is not None:
            self._updating.cancel()
        self._turns.stop()

    def checks(self) -> Mapping[str, Callable[[], Readiness]]:
        """Return whether the webhook has a certificate."""
        return {"webhook": lambda: Readiness(self.server.has_certificate, "")}

    async def answer(self, request: AdmissionRequest) -> dict[str, Any]:
        """Return the review that answers a request; WireError if it has no object to read."""
        start = time.monotonic()
        result = await self._judged(request, start)
        self._seconds.observe(time.monotonic() - start)
        return admission_reply(request.uid, not result.refusal, result.refusal, warnings=result.warnings)

    async def _judged(self, request: AdmissionRequest, start: float) -> WarningResult:
        if not self._index.is_read:
            return self._unjudged(NOT_YET)
        try:
            return await self._turns.run(tenant(request.user_info), partial(self._judge, request), start + BUDGET_S)
        except TimeoutError:
            return self._unjudged(NOT_IN_TIME)
        except WireError:
            raise
        except Exception as error:
            self._report(error)
            return self._unjudged(FAILED)

    def _judge(self, request: AdmissionRequest) -> WarningResult:
        return self._index.judge(request, SEARCH_S)

    def _unjudged(self, warning: str) -> WarningResult:
        self._unchecked.inc()
        return WarningResult((warning,))

    async def _keep_up(self) -> None:
        while self._is_update_due:
            await self._turns.update(self._update)

    def _update(self) -> None:
        """Take over the newest state."""
        self._is_update_due = False
        state = self._state
        assert state is not None
        try:
            self._index.update(state)
        except Exception as error:
            # The next state starts anew: nothing is known about an index that broke halfway.
            self._index = WarningIndex(self._settings.refused_codes, self._settings.reveals_admin_policies)
            self._report(error)

    def _report(self, error: Exception) -> None:
        words = failure_words(error)
        if words != self._failure:
            self._failure = words
            self._context.send_report(EngineReport(f"a change was not checked: {words}"))


def tenant(user: UserInfo) -> str:
    """Return who takes turns with others: a user, or all ServiceAccounts of a namespace together."""
    kind, _, rest = user.username.partition("system:serviceaccount:")
    return f"namespace {rest.partition(':')[0]}" if rest and not kind else f"user {user.username}"
