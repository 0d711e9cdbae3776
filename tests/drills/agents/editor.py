"""A client on the Python ACP SDK: carries out the JSON steps of its second argument with the agent of the others, prints what came of each."""
import asyncio, json, os, sys
from acp import Client, PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse
cwd, steps, command = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
class Editor(Client):
    def __init__(self): self.heard, self.asked, self.answer, self.came = [], [], "allow_once", asyncio.Event()
    async def session_update(self, session_id, update, **_):
        self.heard.append(update)
        # A call may be shown before it is asked for, and the last words of the turn before may come late.
        if update.session_update == "agent_message_chunk" and self.answer != "never": self.came.set()
    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked.append(tool_call.title); self.came.set()
        if self.answer == "never": await asyncio.Event().wait()
        chosen = [option for option in options if option.kind == self.answer]
        outcome = AllowedOutcome(outcome="selected", option_id=chosen[0].option_id) if chosen else DeniedOutcome(outcome="cancelled")
        return RequestPermissionResponse(outcome=outcome)
    def take(self):
        heard, self.heard, asked, self.asked = self.heard, [], self.asked, []
        texts = lambda kind: "".join(u.content.text for u in heard if u.session_update == kind)
        kinds = [u.session_update for u in heard]
        return {"said": texts("agent_message_chunk"), "user": texts("user_message_chunk"), "kinds": kinds, "asked": asked}
async def main():
    editor, session = Editor(), None
    async with spawn_agent_process(editor, *command) as (agent, _):
        hello = await agent.initialize(protocol_version=PROTOCOL_VERSION)
        for step in steps:
            verb, *rest = step
            came = {}
            try:
                if verb == "new": session = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
                elif verb == "load": session = rest[0]; await agent.load_session(cwd=cwd, session_id=session, mcp_servers=[])
                elif verb == "list": came["sessions"] = [s.session_id for s in (await agent.list_sessions()).sessions]
                elif verb == "close": await agent.close_session(session)
                elif verb == "answer": editor.answer = rest[0]
                elif verb == "prompt": came["stop"] = (await agent.prompt(session_id=session, prompt=[text_block(rest[0])])).stop_reason
                elif verb == "cancel":
                    editor.came.clear()
                    turn = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[text_block(rest[0])]))
                    await editor.came.wait()
                    await agent.cancel(session)
                    came["stop"] = (await turn).stop_reason
            except RequestError as error: came["error"] = [error.code, str(error)]
            print(json.dumps({"step": verb, "session": session, "version": hello.protocol_version} | came | editor.take()), flush=True)
asyncio.run(asyncio.wait_for(main(), 240))
