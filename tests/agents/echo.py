"""An echo agent on the Python ACP SDK. It answers the version that it is asked, whichever that is, or the one in ECHO_VERSION, and writes what reaches it to ECHO_LEDGER."""
import asyncio, os
from acp import Agent, InitializeResponse, NewSessionResponse, PromptResponse, run_agent, update_agent_message
class Echo(Agent):
    def note(self, what): open(os.environ["ECHO_LEDGER"], "a").write(what + "\n")
    def on_connect(self, conn): self.conn = conn
    async def initialize(self, protocol_version, **_): return self.note(f"initialize {protocol_version}") or InitializeResponse(protocol_version=int(os.environ.get("ECHO_VERSION", protocol_version)))
    async def new_session(self, **_): return self.note("session/new") or NewSessionResponse(session_id="echo-1")
    async def prompt(self, prompt, session_id, **_):
        for block in prompt: await self.conn.session_update(session_id, update_agent_message(block))
        return self.note("session/prompt") or PromptResponse(stop_reason="end_turn")
asyncio.run(run_agent(Echo()))
