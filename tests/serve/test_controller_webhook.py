"""The webhook bears whatever anybody in the cluster sends: long reviews come one at a time, malformed ones get 400."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from msgspec import json as msgjson

from tests.labs.waiting import PATIENCE_S
from tierwall.api.wire.review import WireError
from tierwall.serve.authorizer.bridge import AdmissionRequest, admission_reply
from tierwall.serve.controller.webhook import LONG_BODY, PATH, WebhookServer


def review(length: int) -> bytes:
    request: dict[str, Any] = {"uid": str(length), "operation": "CREATE", "resource": {}, "userInfo": {"username": "u"}}
    request["object"] = {"x": "y" * length}
    return msgjson.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def client(server: WebhookServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(server._config.app), base_url="http://webhook")  # type: ignore[arg-type]


def test_one_long_review_is_here_at_a_time_and_short_ones_do_not_wait() -> None:
    async def main() -> None:
        here, most, go_on = 0, 0, asyncio.Event()

        async def answer(request: AdmissionRequest) -> dict[str, Any]:
            nonlocal here, most
            if request.uid != "1":
                here += 1
                most = max(most, here)
                await go_on.wait()
                here -= 1
            return admission_reply(request.uid, True)

        async with asyncio.timeout(PATIENCE_S), client(WebhookServer(answer)) as asked:
            long = [asyncio.create_task(asked.post(PATH, content=review(2 * LONG_BODY))) for _ in range(5)]
            while not here:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert (await asked.post(PATH, content=review(1))).status_code == 200
            go_on.set()
            assert [(await each).status_code for each in long] == [200] * 5
        assert most == 1

    asyncio.run(main())


def test_a_review_without_an_object_to_read_is_malformed() -> None:
    async def answer(request: AdmissionRequest) -> dict[str, Any]:
        raise WireError("expected an object")

    async def main() -> None:
        async with client(WebhookServer(answer)) as asked:
            refused = await asked.post(PATH, content=review(1))
        assert (refused.status_code, refused.json()) == (400, {"error": "expected an object"})

    asyncio.run(main())
