"""An ACP agent that sends its client requests that no good agent sends; the prompt selects them."""

import json, os, select, signal, sys, time


def say(*messages):
    # One write, so that the client reads it at once.
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
    sys.stdout.flush()


def text(said):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}}
    say({"method": "session/update", "params": {"sessionId": "wild", "update": update}})


def wants(id, method, **params):
    return {"id": id, "method": method, "params": {"sessionId": "wild", **params}}


def hear():
    # Byte by byte: select does not see bytes in a buffer.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return json.loads(line)


codes, errors = {}, {}


def take(message):
    """Records an answer to one of our requests; returns any other message."""
    if "method" in message:
        return message
    codes[message["id"]] = message["error"]["code"] if "error" in message else 0
    errors[message["id"]] = message.get("error", {}).get("message", "")
    return None


def wait_for(id):
    while id not in codes:
        take(hear())


def flood(turn):
    # Many files. When the first one is answered, all verdicts exist. Then the turn ends.
    say(*[wants(f"f-{n}", "fs/write_text_file", path=f"/workspace/made-{n}", content="x") for n in range(60)])
    wait_for("f-0")
    say({"id": turn, "result": {"stopReason": "end_turn"}})
    return True


def count(turn):
    while len(codes) < 60:
        take(hear())
    time.sleep(1)
    made = len([name for name in os.listdir("/workspace") if name.startswith("made-")])
    cancelled = len([code for code in codes.values() if code == -32800])
    text(f"made {made} cancelled {cancelled} answered {len(codes)}")


def ghost(turn):
    # Waits for the end of a command that never begins, by the id that it would have.
    waits = []
    say(wants("create", "terminal/create", command="no-such-program"))
    while "create" not in codes:
        if len(waits) - len(codes) < 40:
            waits.append(f"wait-{len(waits)}")
            say(wants(waits[-1], "terminal/wait_for_exit", terminalId="terminal-1"))
        while select.select([sys.stdin.fileno()], [], [], 0.002)[0] and take(hear()) is None:
            pass
    end = time.time() + 20
    while time.time() < end and any(id not in codes for id in waits):
        if select.select([sys.stdin.fileno()], [], [], 0.1)[0]:
            take(hear())
    text(f"unanswered {len([id for id in waits if id not in codes])} of {len(waits)}")


def deaf(turn):
    # Requests long texts and reads none of them.
    say(*[wants(f"d-{n}", "fs/read_text_file", path="/workspace/long") for n in range(20)])
    time.sleep(150)


def stopper():
    # Stops the next process that writes a file, before it has written.
    while True:
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as of:
                    if name.isdigit() and of.read().startswith(b"marshal-files"):
                        os.kill(int(name), signal.SIGSTOP)
                        return int(name)
            except OSError:
                pass


def stopped(turn):
    came, tell = os.pipe()
    if os.fork() == 0:
        os.write(tell, str(stopper()).encode())
        os._exit(0)
    names = []
    held = None
    # Until one is found.
    while held is None:
        names.append(f"made-{len(names)}")
        say(wants(names[-1], "fs/write_text_file", path=f"/workspace/{names[-1]}", content="late"))
        wait_for(names[-1])
        if codes[names[-1]] != 0:
            held = int(os.read(came, 20))
            if names[-1] in os.listdir("/workspace"):
                # It had already written, but not reported it.
                os.kill(held, signal.SIGCONT)
                return text("missed")
        elif select.select([came], [], [], 0)[0]:
            # It had already written.
            os.kill(int(os.read(came, 20)), signal.SIGCONT)
            return text("missed")
    os.kill(held, signal.SIGCONT)
    time.sleep(1)
    left = [name for name in os.listdir("/workspace") if name.startswith(".marshal-")]
    text(f"late {names[-1] in os.listdir('/workspace')} left {len(left)}: {errors[names[-1]]}")


def person(turn):
    env = [{"name": "FOO", "value": "1"}, {"name": "EVIL", "value": "/workspace/x.cnf"}]
    say(wants("run", "terminal/create", command="touch", args=["ran"], cwd="/workspace/src", env=env))
    wait_for("run")
    say(wants("write", "fs/write_text_file", path="/workspace/made", content="twelve bytes"))
    wait_for("write")
    text(f"run {codes['run']} write {codes['write']}")


while True:
    message = take(hear())
    if message is None:
        continue
    method, id = message["method"], message.get("id")
    if method == "initialize":
        say({"id": id, "result": {"protocolVersion": 1}})
    elif method == "session/new":
        say({"id": id, "result": {"sessionId": "wild"}})
    elif method == "session/prompt":
        what = message["params"]["prompt"][0]["text"].split()[0]
        if not globals()[what](id):
            say({"id": id, "result": {"stopReason": "end_turn"}})
    elif id is not None:
        say({"id": id, "error": {"code": -32601, "message": "no"}})
