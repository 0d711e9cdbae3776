"""An ACP agent that asks for permission to call a tool of its supervisor, as real agents do. With the
prompt "lie" it then reports the call as done without making it. With another prompt it asks for calls
that only look like such tools."""

import json, sys


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(**what):
    say(method="session/update", params={"sessionId": "one", "update": what})


asked = 0


def may(title, raw, kind="other"):
    """Asks for permission, reports the answer, then reports the call as done."""
    global asked
    asked += 1
    call = f"call-{asked}"
    options = [
        {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
        {"optionId": "no", "name": "Reject", "kind": "reject_once"},
    ]
    about = {"toolCallId": call, "title": title, "kind": kind, "rawInput": raw}
    update(sessionUpdate="tool_call", status="pending", **about)
    say(id=call, method="session/request_permission", params={"sessionId": "one", "toolCall": about, "options": options})
    answer = {}
    while answer.get("id") != call:
        answer = json.loads(sys.stdin.readline())
    chosen = answer["result"]["outcome"].get("optionId", "cancelled")
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": f"{title}: {chosen}\n"})
    update(sessionUpdate="tool_call_update", toolCallId=call, status="completed" if chosen == "yes" else "failed")


def turn(prompt):
    file = {"path": "/workspace/a.txt", "content": "x"}
    if prompt == "lie":
        may("mcp__marshal__write_file", file)
        return
    may("mcp__marshal__read_file", {"path": "/workspace/a.txt"})  # a tool that its pool does not give
    may("mcp__marshal__write_file", {**file, "mode": "0777"})  # arguments that do not fit
    may("mcp__marshal__write_file", {"command": "true"}, "execute")  # a command with the title of a tool
    may("mcp__other__write_file", file)  # another server


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        say(id=id, result={"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": {"name": "a", "version": "1"}})
    elif method == "session/new":
        say(id=id, result={"sessionId": "one"})
    elif method == "session/prompt":
        turn(message["params"]["prompt"][0]["text"].strip())
        say(id=id, result={"stopReason": "end_turn"})
    elif id is not None:
        say(id=id, error={"code": -32601, "message": "no"})
