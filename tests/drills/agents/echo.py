"""An echo agent on the Python ACP SDK. It answers the version that it is asked, whichever that is, or the one in ECHO_VERSION, and writes what reaches it to ECHO_LEDGER. A prompt that begins with RUN: is a command, which it runs in a session of its own until it is cancelled."""
import asyncio, os
from acp import Agent, InitializeResponse, NewSessionResponse, PromptResponse, run_agent, start_tool_call, update_agent_message, update_tool_call
class Echo(Agent):
    tool = None
    def note(self, what): open(os.environ["ECHO_LEDGER"], "a").write(what + "\n")
    def on_connect(self, conn): self.conn = conn
    async def initialize(self, protocol_version, **_): return self.note(f"initialize {protocol_version}") or InitializeResponse(protocol_version=int(os.environ.get("ECHO_VERSION", protocol_version)))
    async def new_session(self, **_): return self.note("session/new") or NewSessionResponse(session_id="echo-1")
    async def cancel(self, session_id, **_): self.note("session/cancel") or (self.tool and self.tool.kill())
    async def run(self, command, session_id):
        await self.conn.session_update(session_id, start_tool_call("call-1", command, kind="execute", status="in_progress", raw_input={"command": command}))
        self.tool = await asyncio.create_subprocess_shell("exec " + command, start_new_session=True)
        code = await self.tool.wait()
        await self.conn.session_update(session_id, update_tool_call("call-1", status="completed" if code == 0 else "failed"))
        return PromptResponse(stop_reason="end_turn" if code >= 0 else "cancelled")
    async def prompt(self, prompt, session_id, **_):
        self.note("session/prompt")
        if prompt[0].text.startswith("RUN:"): return await self.run(prompt[0].text[4:].strip(), session_id)
        for block in prompt: await self.conn.session_update(session_id, update_agent_message(block))
        return PromptResponse(stop_reason="end_turn")
asyncio.run(run_agent(Echo()))
