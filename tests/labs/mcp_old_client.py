"""A client of the official Python SDK of the old era: it asks the server at a URL, is asked, and prints what it saw.

It runs in a process of its own, with the packages that `make mcp-suite` installs and no others: `python -S`. The newer
SDK, which type checkers see, has other names. With TARGET, the server is one of several that are joined there, and none
of them asks the client anything.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import os
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CreateMessageResult, ElicitResult, TextContent


async def elicited(context, params):
    return ElicitResult(action="accept", content={"response": "yes", "name": "Ada"})


async def sampled(context, params):
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="m")


async def ask(url: str, target: str) -> dict[str, object]:
    name, uri = (f"{target}{end}" if target else "" for end in "_+")
    async with (
        streamablehttp_client(url) as (reading, writing, _),
        ClientSession(reading, writing, elicitation_callback=elicited, sampling_callback=sampled) as session,
    ):
        opened = await session.initialize()
        said = {
            "version": opened.protocolVersion,
            "tools": len((await session.list_tools()).tools),
            "resources": len((await session.list_resources()).resources),
            "text": (await session.call_tool(f"{name}test_simple_text", {})).content[0].text,
            "read": (await session.read_resource(f"{uri}test://static-text")).contents[0].text,
            "prompt": len((await session.get_prompt(f"{name}test_simple_prompt")).messages),
        }
        if not target:
            said["elicited"] = (await session.call_tool("test_elicitation", {"message": "?"})).content[0].text
            said["sampled"] = (await session.call_tool("test_sampling", {"prompt": "?"})).content[0].text
        return said


print(json.dumps(asyncio.run(ask(sys.argv[1], os.environ.get("TARGET", "")))))
