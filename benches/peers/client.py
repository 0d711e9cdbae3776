"""The Python ACP SDK's client, under a load of `benches/fleet`. It counts the notifications, allows
every request, and prints the cost."""

import asyncio
import json
import os
import sys
import time

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    DeniedOutcome,
    RequestPermissionResponse,
    TextContentBlock,
)


class Heard:
    """The messages of all children together; a client of each of them."""

    def __init__(self):
        self.events = 0
        self.reports = []

    async def session_update(self, session_id, update, **_):
        self.events += 1
        if isinstance(update, AgentMessageChunk):
            content = update.content
            if isinstance(content, TextContentBlock) and content.text.startswith("asks "):
                self.reports.append(content.text)

    async def request_permission(self, session_id, tool_call, options, **_):
        self.events += 1
        for option in options:
            if option.kind == "allow_once":
                outcome = AllowedOutcome(outcome="selected", option_id=option.option_id)
                return RequestPermissionResponse(outcome=outcome)
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


async def drive(order, heard, number, ready, go, ended):
    program, *arguments = order["agent"]
    async with spawn_agent_process(heard, program, *arguments) as (agent, _process):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=os.getcwd(), mcp_servers=[])
        ready.release()
        await go.wait()
        await asyncio.sleep(order["spread_us"] / 1e6 * number / order["children"])
        await agent.prompt(session_id=session.session_id, prompt=[text_block(order["prompt"])])
        # Turns may end in any order; the last end counts.
        ended[:] = [time.perf_counter(), time.process_time()]


async def main():
    order = json.loads(sys.argv[1])
    heard, ended = Heard(), []
    ready, go = asyncio.Semaphore(0), asyncio.Event()
    spawning = time.perf_counter()
    children = [
        asyncio.create_task(drive(order, heard, number, ready, go, ended))
        for number in range(order["children"])
    ]
    for _ in children:
        await ready.acquire()
    spawned = time.perf_counter()
    began = [time.perf_counter(), time.process_time()]
    go.set()
    await asyncio.gather(*children)
    print(
        json.dumps(
            {
                "events": heard.events,
                "wall_s": ended[0] - began[0],
                "cpu_s": ended[1] - began[1],
                "spawn_s": spawned - spawning,
                "reports": heard.reports,
            }
        )
    )


asyncio.run(main())
