"""Asking another authorizer over HTTPS: the webhooks of the chain, reached as their kubeconfig says.

The kubeconfig's current context names the endpoint for SubjectAccessReviews. Conditions go to the context named by
`conditionsEndpointKubeConfigContext` (the KEP) or `conditionsReview.kubeConfigContextName` (the API server's commit
series), or else to the same endpoint. The kubeconfig means what it means for reading a cluster
(docs/clusters.md#kubeconfig), but the server must be https: an answer over plain HTTP can be forged. The timeout is for
a review as a whole, with a credential plugin. Anything that prevents an answer is a WebhookError, which the failure
policy of the webhook turns into a decision.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import msgspec

from tierwall.api.algebra.authorizer import Authorizer
from tierwall.api.authorizers.webhook import WebhookAuthorizer, WebhookError, read_settings
from tierwall.api.model import AuthorizerConfig, unreachable_webhook
from tierwall.cluster.access import context_access
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, UnreachableError
from tierwall.cluster.kubeconfig import Kubeconfig
from tierwall.core.diagnostics import InputError
from tierwall.serve.authorizer.asking import answer_to, may_wait

# A longer answer does not come from an authorizer.
MAX_BYTES = 1 << 20
# The number of reviews that one webhook may keep waiting; further ones fail at once, as its failure policy says.
MAX_IN_FLIGHT = 256


def webhook(member: AuthorizerConfig) -> Authorizer:
    """Return the authorizer of a webhook. Without a kubeconfig, its failure policy answers."""
    # INVARIANT: a chain with settings that cannot be read has been refused (`api.model`).
    settings, _ = read_settings(member.webhook)
    connection = member.webhook.get("connectionInfo")
    file = connection.get("kubeConfigFile") if isinstance(connection, Mapping) else None
    if not isinstance(file, str):
        return unreachable_webhook(member)
    series = member.webhook.get("conditionsReview")
    named = series.get("kubeConfigContextName") if isinstance(series, Mapping) else None
    context = named or member.webhook.get("conditionsEndpointKubeConfigContext") or ""
    return WebhookAuthorizer(
        member.name, HttpReviewClient(file, str(context), settings.timeout), settings, time.monotonic
    )


class HttpReviewClient:
    """Sends reviews as a kubeconfig says. Connections are made on first use and kept open; any thread may ask.

    INVARIANT: connections, and the number of reviews in flight, are touched only in the event loop of all connections.
    """

    def __init__(self, kubeconfig: str, conditions_context: str, timeout: float) -> None:
        self._kubeconfig = kubeconfig
        self._conditions_context = conditions_context
        self._timeout = timeout
        self._connections: dict[str, Connection] = {}
        self._in_flight = 0
        # A chain that nobody needs any more leaves no connection open.
        weakref.finalize(self, _close, self._connections).atexit = False

    def access(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send a SubjectAccessReview."""
        return self._post("", review)

    def conditions(self, review: dict[str, Any]) -> Mapping[str, Any]:
        """Send an AuthorizationConditionsReview."""
        return self._post(self._conditions_context, review)

    def _post(self, context: str, review: dict[str, Any]) -> Mapping[str, Any]:
        question = ReviewQuestion(self, context, msgspec.json.encode(review))
        if not may_wait():
            return answer_to(question)
        reply = question.start().result()
        if isinstance(reply, WebhookError):
            raise reply
        return reply

    async def exchange(self, context: str, review: bytes) -> Mapping[str, Any] | WebhookError:
        """Send a review in the event loop of all connections; never raises."""
        if self._in_flight >= MAX_IN_FLIGHT:
            return WebhookError(f"{MAX_IN_FLIGHT} reviews are waiting for it already")
        self._in_flight += 1
        try:
            # A connection leaves a plugin its own time. Whoever waits for this answer does not have it.
            async with asyncio.timeout(self._timeout):
                content = (await self._connection(context).post("", review, MAX_BYTES)).content
            value = msgspec.json.decode(content)
        except WebhookError as error:
            return error
        except InputError as error:
            problem = str(error).removeprefix("kubeconfig: ")
            return WebhookError(f"kubeconfig `{self._kubeconfig}` cannot be used: {problem}")
        except ApiServerError as error:
            return WebhookError(f"it answered with status {error.code}")
        except UnreachableError as error:
            return WebhookError(f"it {error.verb}: {error.problem}")
        except TimeoutError:
            return WebhookError(f"it does not answer: no answer within {self._timeout:g} s")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return WebhookError("its answer is not JSON")
        finally:
            self._in_flight -= 1
        return value if isinstance(value, Mapping) else WebhookError("its answer is not a review")

    def _connection(self, context: str) -> Connection:
        """Return the connection to the server of one context of the kubeconfig."""
        if context not in self._connections:
            access = context_access(Kubeconfig((Path(self._kubeconfig),)), context or None)
            if not access.server.startswith("https://"):
                raise WebhookError(f"expected an https address as `server` in `{self._kubeconfig}`")
            self._connections[context] = Connection(access, self._timeout)
        return self._connections[context]


class ReviewQuestion(msgspec.Struct, frozen=True):
    """One review for one webhook."""

    client: HttpReviewClient
    context: str
    review: bytes

    def start(self) -> Future[Mapping[str, Any] | WebhookError]:
        """Begin to ask."""
        return asyncio.run_coroutine_threadsafe(self.client.exchange(self.context, self.review), _loop())

    async def ask(self) -> Mapping[str, Any] | WebhookError:
        """Ask, and wait for the answer in the running event loop."""
        return await asyncio.wrap_future(self.start())


_STARTING = Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all connections, in a thread of its own, so that any number of loops may wait for it."""
    with _STARTING:
        return _started_loop()


@cache
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="tierwall-reviews", daemon=True).start()
    return loop


def _close(connections: Mapping[str, Connection]) -> None:
    for connection in connections.values():
        asyncio.run_coroutine_threadsafe(connection.close(), _loop())
