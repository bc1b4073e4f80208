"""The Model Context Protocol, on standard input and output or on HTTP.

Answers come from calculating processes. So a call has a time limit, and a call that is cancelled
stops at once. On HTTP the rules of the web service apply to hosts, origins and sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.applications import Starlette

from ... import __version__
from ...runfile.text.errors import nearest
from ..guard import RequestGuard
from ..logs import start_logs
from ..pool import ProcessLane, QueueFullError, TimeLimitError
from ..run import address, check_port, listen
from ..settings import ServiceSettings, environment
from ..worker_messages import FILES, TaskRequest
from .tools import TOOLS, input_schema, purpose

NAME, PATH = "gpu-mem-calculator", "/mcp"
ABOUT = (
    "GPU memory of training and serving language models, by exact accounting. Use check before a"
    " command is started, diagnose after it died. An answer begins with the verdict: fits, does"
    " not fit, or cannot tell."
)
PLAN = "plan"  # the tool that may take longer than the others
TICK_SECONDS = 1.0  # between two notifications of progress
LATE = "{} takes longer than {:g} seconds, the limit of this server; ask for less"
BUSY = "too many calls at the same time; try again in a second"
Context = ServerRequestContext[ProcessLane, Any]


def agent_server(settings: ServiceSettings, *, local: bool) -> Server[ProcessLane]:
    """The server; `local`: its tools may open files that a call names."""
    tools = [_tool(name, local=local) for name in TOOLS]

    async def listed(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    return Server(
        NAME,
        version=__version__,
        instructions=ABOUT,
        lifespan=partial(_lifespan, settings, local),
        on_list_tools=listed,
        on_call_tool=partial(_call, settings),
    )


def _tool(name: str, *, local: bool) -> Tool:
    kind = TOOLS[name]
    return Tool(
        name=name,
        description=purpose(kind),
        input_schema=input_schema(kind, local=local),
        annotations=ToolAnnotations(read_only_hint=True),
    )


@contextlib.asynccontextmanager
async def _lifespan(
    settings: ServiceSettings, local: bool, _: Server[ProcessLane]
) -> AsyncIterator[ProcessLane]:
    """The calculating processes: they start with the server, and stop with it."""
    lane = ProcessLane(
        "agents",
        settings.slow_processes,
        seconds=settings.slow_seconds,
        waiting=settings.waiting,
        words=(FILES,) if local else (),
    )
    started = asyncio.create_task(lane.start())  # a call waits for it, a greeting does not
    try:
        yield lane
    finally:
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)
        await lane.stop()


async def _call(
    settings: ServiceSettings, context: Context, asked: CallToolRequestParams
) -> CallToolResult:
    """The answer of a tool; what is wrong with the call is said in a sentence."""
    if asked.name not in TOOLS:
        return _refused([f"{asked.name!r} is not a tool{nearest(asked.name, TOOLS)}"])
    body = msgspec.json.encode(asked.arguments or {})
    seconds = settings.plan_seconds if asked.name == PLAN else settings.slow_seconds
    ask = TaskRequest("agent", body, {"tool": asked.name})
    ticking = asyncio.create_task(_tell_progress(context, seconds))
    try:
        reply = await context.lifespan_context.run(ask, seconds=seconds)
    except QueueFullError:
        return _refused([BUSY])
    except TimeLimitError:
        return _refused([LATE.format(asked.name, seconds)])
    finally:
        ticking.cancel()
    found = msgspec.json.decode(reply.body)
    if reply.status != 200:
        return _refused(found["problems"])
    return CallToolResult(
        content=[TextContent(text=found["text"])], structured_content=found["data"]
    )


def _refused(problems: list[str]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text="\n".join(problems))], is_error=True)


async def _tell_progress(context: Context, limit: float) -> None:
    """Tell a client that asked for it how many of the seconds have passed."""
    begun = time.monotonic()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        passed = time.monotonic() - begun
        text = f"{passed:.0f} s of at most {limit:g} s"
        await context.session.report_progress(passed, limit, text)


def run_on_stdio(settings: ServiceSettings) -> None:
    """Serve one client on standard input and output, until it leaves."""
    _begin(settings)
    server = agent_server(settings, local=True)

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(serve())


def agent_app(settings: ServiceSettings) -> Starlette:
    """The server as an application; it opens no files."""
    checked = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # by RequestGuard
    app: Starlette = agent_server(settings, local=False).streamable_http_app(
        streamable_http_path=PATH,
        transport_security=checked,
        max_request_body_size=settings.body_bytes,
    )
    app.add_middleware(RequestGuard, settings=settings)
    return app


def run_on_http(settings: ServiceSettings) -> None:
    """Serve on HTTP until interrupted; prints the address."""
    check_port(settings)
    _begin(settings)
    print(f"gpu-mem-calculator for agents on {address(settings)}{PATH}  (Ctrl+C ends it)")
    listen(agent_app(settings), settings)


def _begin(settings: ServiceSettings) -> None:
    """Give the settings to the calculating processes, and start the log on stderr."""
    os.environ.update(environment(settings))
    start_logs(settings.log_level)
