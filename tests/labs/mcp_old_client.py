"""A client of the official Python SDK of the old era: it asks the server at a URL, is asked, and prints what it saw.

It runs in a process of its own, with the packages that `make mcp-suite` installs and no others: `python -S`. The newer
SDK, which type checkers see, has other names.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CreateMessageResult, ElicitResult, TextContent


async def elicited(context, params):
    return ElicitResult(action="accept", content={"response": "yes", "name": "Ada"})


async def sampled(context, params):
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="m")


async def ask(url: str) -> dict[str, object]:
    async with (
        streamablehttp_client(url) as (reading, writing, _),
        ClientSession(reading, writing, elicitation_callback=elicited, sampling_callback=sampled) as session,
    ):
        opened = await session.initialize()
        return {
            "version": opened.protocolVersion,
            "tools": len((await session.list_tools()).tools),
            "resources": len((await session.list_resources()).resources),
            "text": (await session.call_tool("test_simple_text", {})).content[0].text,
            "elicited": (await session.call_tool("test_elicitation", {"message": "?"})).content[0].text,
            "sampled": (await session.call_tool("test_sampling", {"prompt": "?"})).content[0].text,
            "read": (await session.read_resource("test://static-text")).contents[0].text,
            "prompt": len((await session.get_prompt("test_simple_prompt")).messages),
        }


print(json.dumps(asyncio.run(ask(sys.argv[1]))))
