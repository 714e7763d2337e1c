"""Proves again and again that the API server asks our admission webhook (docs/authorizer.md#admission-must-be-live).

Two things are looked at every few seconds. The ValidatingWebhookConfiguration, where we may read it, must be as
`install` writes it; a watch of it makes the next look come at once. And the API server must refuse our canary
(`canary`) with the words that only our webhook knows. If there has never been a configuration, the webhook may be
installed by static files, which the API does not show: then the canary alone counts. So it does where the right to read
the configuration was never given. Once it was read, it must stay readable: who takes the right away may hide a change.

Without evidence nothing is believed for long: a proof expires, whatever happens to the task that looks. A canary that
is accepted, a changed configuration and a deleted one end the proof at once. An API server that does not answer, or
answers something else, ends it when it expires, so that a restart of the server does not close everything.
Time is that of the machine since its start, suspended or not: no clock that can be set plays a part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.watch import watch
from tierwall.serve.authorizer.admission_state import AdmissionState
from tierwall.serve.authorizer.canary import CanarySealer
from tierwall.serve.authorizer.webhook_check import WebhookCheck, check_webhook, written_webhook

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MAX_WORDS = 300
_MAX_ANSWER = 1 << 20


class AdmissionTiming(msgspec.Struct, frozen=True):
    """Seconds: between two looks, after a failed one, of one request, and until a proof expires."""

    interval: float = 5.0
    retry: float = 1.0
    request: float = 8.0
    # With the time of one look, less than the 30 s within which a change must count.
    proof: float = 20.0
    watch: float = 300.0


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class _SelfStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _UserInfo = _UserInfo()


class _SelfReview(msgspec.Struct, frozen=True):
    status: _SelfStatus = _SelfStatus()


_SELF_REVIEW = msgspec.json.Decoder(_SelfReview)
_CONFIGURATION = msgspec.json.Decoder(dict[str, object])


class AdmissionWatcher:
    """Knows whether admission is live. `report` is called in the event loop whenever the answer changes.

    INVARIANT: everything but `state` happens in one event loop; `state` may be called in any thread.
    """

    def __init__(
        self,
        access: ClusterAccess,
        canaries: CanarySealer,
        namespace: str,
        report: Callable[[AdmissionState], None] = lambda state: None,
        timing: AdmissionTiming | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._access, self._canaries, self._namespace = access, canaries, namespace
        self._report, self._timing = report, timing or AdmissionTiming()
        self._clock = clock or _uptime
        self._name = str(written_webhook()["metadata"]["name"])
        self._look = asyncio.Event()
        self._check = WebhookCheck()
        self._was_there = False
        self._reported = ""
        # The state while a proof holds, with the time when it expires, and the state without one.
        # INVARIANT: replaced together.
        self._states = (0.0, *self._without_proof("the canary has not been refused yet", ""))

    def _without_proof(self, reason: str, prober: str) -> tuple[AdmissionState, AdmissionState]:
        state = AdmissionState(False, reason, prober=prober, canary_namespace=self._namespace)
        return state, state

    def state(self) -> AdmissionState:
        """Return whether admission is live now."""
        expiry, proved, otherwise = self._states
        return proved if self._clock() < expiry else otherwise

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until told to stop."""
        connection = Connection(self._access, self._timing.request)
        tasks = [asyncio.create_task(self._watch(connection)), asyncio.create_task(self._keep_looking(connection))]
        try:
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await connection.close()

    async def _keep_looking(self, connection: Connection) -> None:
        while True:
            self._look.clear()
            await self.look(connection)
            state = self.state()
            if state.words() != self._reported:
                self._reported = state.words()
                self._report(state)
            # A storm of changes must not become a storm of canaries.
            await asyncio.sleep(self._timing.retry)
            if state.is_live:
                try:
                    async with asyncio.timeout(self._timing.interval - self._timing.retry):
                        await self._look.wait()
                except TimeoutError:
                    continue

    async def look(self, connection: Connection) -> None:
        """Look once at the configuration and at what happens to a canary."""
        started = self._clock()
        prober = self.state().prober
        if not self.state().is_live:
            prober = await self._who_we_are(connection) or prober
            _, _, without = self._states
            self._states = (0.0, *self._without_proof(without.reason, prober))
        before = self._check
        self._check, unread = await self._read_configuration(connection)
        check = self._check
        if check.problem:
            reason = f"ValidatingWebhookConfiguration `{self._name}`: {check.problem}"
            self._states = (0.0, *self._without_proof(reason, prober))
            return
        refused, failure, is_contradiction = await self._try_canary(connection)
        if unread and self._was_there:
            # The canary shows the way to the webhook, and not which requests still take it.
            refused, failure = False, unread
        is_changed = bool(before.content) and check.content != before.content
        expiry, proved, _ = self._states
        if refused and not is_changed:
            how = f"proved by the canary alone ({unread})" if unread else ""
            # The same state as before, so that answers may be kept.
            live = AdmissionState(True, how, check.exempt, prober, self._namespace)
            expired = AdmissionState(False, "no recent proof", prober=prober, canary_namespace=self._namespace)
            self._states = (started + self._timing.proof, proved if proved == live else live, expired)
        elif is_contradiction or is_changed:
            self._states = (0.0, *self._without_proof(failure or "the configuration has just changed", prober))
        else:
            without = AdmissionState(False, failure, prober=prober, canary_namespace=self._namespace)
            self._states = (expiry, proved, without)

    async def _who_we_are(self, connection: Connection) -> str:
        """Return the user as whom we ask; empty if the server does not tell."""
        body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
        try:
            reply = await connection.post(_SELF, body, _MAX_ANSWER)
            return reply.decode(_SELF_REVIEW).status.user_info.username
        except Exception:
            # Only conditions that fold to Deny need to know it, and the canary says what is wrong.
            return ""

    async def _read_configuration(self, connection: Connection) -> tuple[WebhookCheck, str]:
        """Return what the configuration says; the second is the reason if it cannot be read."""
        try:
            reply = await connection.get(f"{CONFIGURATIONS}/{self._name}")
            configuration = reply.decode(_CONFIGURATION)
        except ApiServerError as error:
            if error.code == 404 and self._was_there:
                return WebhookCheck("it was deleted"), ""
            what = "does not exist" if error.code == 404 else f"cannot be read: {_words(error)}"
            # What was known of it holds until it can be read again.
            return self._check, f"ValidatingWebhookConfiguration `{self._name}` {what}"
        except Exception as error:
            return self._check, f"ValidatingWebhookConfiguration `{self._name}` cannot be read: {_words(error)}"
        self._was_there = True
        return check_webhook(configuration), ""

    async def _try_canary(self, connection: Connection) -> tuple[bool, str, bool]:
        """Return whether our webhook refused a canary, why not, and whether that shows that it is not asked."""
        canary, proof = self._canaries.canary(self._namespace)
        # INVARIANT: the canary never exists. It is always a dry run.
        path = f"/api/v1/namespaces/{self._namespace}/configmaps?dryRun=All"
        try:
            await connection.post(path, msgspec.json.encode(canary), _MAX_ANSWER)
        except ApiServerError as error:
            if proof in error.message:
                self._canaries.proved()
                return True, "", False
            return False, f"the canary is not refused by the webhook: {_words(error)}", False
        except Exception as error:
            return False, f"the canary cannot be sent: {_words(error)}", False
        return False, "the API server accepts the canary without asking the webhook", True

    async def _watch(self, connection: Connection) -> None:
        """Look at once when the configuration changes. Without the right to watch it, every few seconds must do."""
        timing = self._timing
        query = {"fieldSelector": f"metadata.name={self._name}", "timeoutSeconds": f"{timing.watch:.0f}"}
        while True:
            try:
                async with aclosing(watch(connection, CONFIGURATIONS, query, timing.watch + 15)) as events:
                    async for _ in events:
                        self._look.set()
            except Exception:
                pass
            await asyncio.sleep(timing.interval)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_WORDS] or type(error).__name__


def _uptime() -> float:
    """Return seconds since the start of the machine, suspended time included where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
