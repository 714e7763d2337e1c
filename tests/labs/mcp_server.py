"""An MCP server with the official SDK that has the tools, prompts and resources which the conformance suite asks for.

It has no idea of permissions. `python -m tests.labs.mcp_server` prints its port and serves `/mcp` until it is ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.types import (
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    JSONRPCMessage,
    ListRootsRequest,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
server = MCPServer(
    name="suite",
    version="1",
    request_state_security=RequestStateSecurity(keys=[b"a key of this server that all may know"]),
)


class Events(EventStore):
    """Every event so far, so that clients can resume streams."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        stream = self._events[last - 1][0]
        for number, (stream_id, message) in enumerate(self._events[last:], last + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def text_of(uri: str, text: str, kind: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


@server.tool(description="A tool that the suite asks for.")
def test_simple_text() -> str:
    return "This is a simple text response for testing."


@server.tool(description="A tool that the suite asks for.")
def test_image_content() -> list[ImageContent]:
    return [ImageContent(type="image", data=PIXEL, mime_type="image/png")]


@server.tool(description="A tool that the suite asks for.")
def test_audio_content() -> list[AudioContent]:
    return [AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]


@server.tool(description="A tool that the suite asks for.")
def test_embedded_resource() -> list[EmbeddedResource]:
    return [text_of("test://embedded-resource", "This is an embedded resource content.")]


@server.tool(description="A tool that the suite asks for.")
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    return [
        TextContent(type="text", text="Multiple content types test:"),
        ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        text_of("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


@server.tool(description="A tool that the suite asks for.")
def test_error_handling() -> str:
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool(description="A tool that the suite asks for.")
async def test_tool_with_logging(ctx: Context) -> str:
    for step in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(step)
        await asyncio.sleep(0.02)
    return "Tool with logging executed successfully"


@server.tool(description="A tool that the suite asks for.")
async def test_tool_with_progress(ctx: Context) -> str:
    for step in (0, 50, 100):
        await ctx.report_progress(progress=step, total=100, message=f"Completed step {step} of 100")
        await asyncio.sleep(0.02)
    return "done"


@server.tool(description="A tool that the suite asks for.")
async def test_sampling(prompt: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    result = await ctx.session.create_message(messages=[message], max_tokens=100, related_request_id=ctx.request_id)
    content: Any = result.content
    return f"LLM response: {content.text}"


class UserResponse(BaseModel):
    response: str = Field(description="User's response")


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


async def elicited(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    answer: Any = await ctx.elicit(message=message, schema=schema)
    content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
    return f"action={answer.action}, content={content}"


@server.tool(description="A tool that the suite asks for.")
async def test_elicitation(message: str, ctx: Context) -> str:
    return f"User response: {await elicited(ctx, message, UserResponse)}"


@server.tool(description="A tool that the suite asks for.")
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    return f"Elicitation completed: {await elicited(ctx, 'Please provide user information', Defaults)}"


def name_wanted(message: str = "What is your name?") -> ElicitRequest:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sample_wanted(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=50))


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    answer: Any = (ctx.input_responses or {}).get("user_name")
    if answer is None:
        return InputRequiredResult(input_requests={"user_name": name_wanted()})
    return f"Hello, {answer.content['name']}!"


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    answer: Any = (ctx.input_responses or {}).get("capital_question")
    if answer is None:
        wanted = sample_wanted("What is the capital of France?")
        return InputRequiredResult(input_requests={"capital_question": wanted})
    return f"Model said: {answer.content.text}"


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    wanted: Any = {"user_name": name_wanted(), "greeting": sample_wanted("Greet"), "client_roots": ListRootsRequest()}
    if wanted.keys() <= (ctx.input_responses or {}).keys():
        return "All inputs received."
    return InputRequiredResult(input_requests=wanted, request_state="multiple-inputs")


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    answer: Any = (ctx.input_responses or {}).get("client_roots")
    if answer is None:
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return f"Client exposed {len(answer.roots)} root(s)."


def confirmation() -> ElicitRequest:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    return ElicitRequest(params=ElicitRequestFormParams(message="Please confirm", requested_schema=schema))


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses and ctx.request_state == "nonce":
        return "state-ok: confirmation received"
    return InputRequiredResult(input_requests={"confirm": confirmation()}, request_state="nonce")


@server.tool(description="A tool that the suite asks for.")
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    if ctx.request_state is not None:
        return f"state-ok: {ctx.request_state}"
    return InputRequiredResult(input_requests={"confirm": confirmation()}, request_state="round-1")


@server.tool(description="A tool that the suite asks for.")
def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return f"region={region}"


@server.tool(description="A tool that the suite asks for.")
async def test_reconnection(ctx: Context) -> str:
    await ctx.info("Before disconnect")
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    await ctx.info("After reconnect")
    return "Reconnection test completed"


@server.tool(description="A tool that the suite asks for.")
async def test_trigger_tool_change(ctx: Context) -> str:
    await ctx.notify_tools_changed()
    return "tool list changed"


@server.tool(description="A tool that the suite asks for.")
async def test_trigger_prompt_change(ctx: Context) -> str:
    await ctx.notify_prompts_changed()
    return "prompt list changed"


@server.resource("test://static-text")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary")
def static_binary() -> bytes:
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data")
def template(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource")
def watched() -> str:
    return "Watched resource content"


def said(text: str) -> UserMessage:
    return UserMessage(role="user", content=TextContent(type="text", text=text))


@server.prompt(description="A prompt that the suite asks for.")
def test_simple_prompt() -> list[UserMessage]:
    return [said("This is a simple prompt for testing.")]


@server.prompt(description="A prompt that the suite asks for.")
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    return [said(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]


def with_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803 (the suite gives the argument this name)
    embedded = text_of(resourceUri, "Embedded resource content for testing.")
    return [UserMessage(role="user", content=embedded), said("Please process the embedded resource above.")]


server.add_prompt(
    Prompt.from_function(with_resource, name="test_prompt_with_embedded_resource", description="With a resource.")
)


@server.prompt(description="A prompt that the suite asks for.")
def test_prompt_with_image() -> list[UserMessage]:
    image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
    return [UserMessage(role="user", content=image), said("Please analyze the image above.")]


@server.completion()  # type: ignore[no-untyped-call]
async def complete(ref: object, argument: object, context: object) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def nothing(ctx: object, params: object) -> EmptyResult:
    return EmptyResult()


for method, params in (
    ("logging/setLevel", SetLevelRequestParams),
    ("resources/subscribe", SubscribeRequestParams),
    ("resources/unsubscribe", UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, params, nothing)


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    app = server.streamable_http_app(event_store=Events(), retry_interval=100)
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening]))
