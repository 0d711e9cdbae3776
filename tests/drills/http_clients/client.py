"""Works through a chat with the client that openapi-python-client made in ./marshal_client.

Streams are no part of such a client: its HTTP client reads them, as the document describes them.
"""

import json
import sys

from marshal_client import AuthenticatedClient
from marshal_client.api.chats import close_chat, create_chat, get_chat, list_chats, list_turns, send_message, stop_chat
from marshal_client.api.files import delete_file, get_file, list_versions, put_file
from marshal_client.api.fleet import get_fleet
from marshal_client.api.tasks import get_task, list_tasks, submit_task
from marshal_client.api.workspaces import get_workspace
from marshal_client.models import Message, NewChat, NewFile, NewTask, Problem

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token, raise_on_unexpected_status=True)


def good(value):
    assert value is not None and not isinstance(value, Problem), value
    return value


def events(path, last=None):
    """The events after one; whoever stops reading has lost the connection."""
    head = {"Last-Event-ID": last} if last else {}
    with client.get_httpx_client().stream("GET", path, headers=head, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        event = {}
        for line in answer.iter_lines():
            if line:
                key, _, value = line.partition(": ")
                event[key] = value
            elif "data" in event:
                yield event.get("id"), event["event"], json.loads(event["data"])
                event = {}
            else:
                event = {}


def until_turn_ends(path, last, turn):
    """Reads to the end of a turn, over one connection for each event."""
    read = []
    while True:
        identity, name, data = next(events(path, last))
        read.append((identity, name, data))
        last = identity or last
        if data.get("turn_id") == turn and name in ("stopped", "done", "error", "turn_ended", "end"):
            return read


assert good(get_fleet.sync(client=client)).ready
assert good(get_workspace.sync("main", client=client)).name == "main"

begun = good(create_chat.sync("main", client=client, body=NewChat(goal="say one\nsay two")))
first = until_turn_ends(begun.events, None, begun.turn_id)
sent = good(send_message.sync("main", begun.chat_id, client=client, body=Message(content="say three")))
assert sent.sequence == 2, sent
second = until_turn_ends(begun.events, first[-1][0], sent.turn_id)

# Pieces of a stream are the stream, each event once and in order.
pieces = first + second
whole = []
for event in events(begun.events):
    whole.append(event)
    if event[0] == pieces[-1][0]:
        break
assert pieces == whole, (pieces, whole)
identities = [identity for identity, _, _ in whole]
assert len(set(identities)) == len(identities), identities

# Pages of one item are the list.
turns, cursor = [], None
while True:
    page = good(list_turns.sync("main", begun.chat_id, client=client, limit=1, **({"cursor": cursor} if cursor else {})))
    turns += page.items
    cursor = page.next_
    if cursor is None:
        break
assert [turn.content for turn in turns] == ["say one\nsay two", "say three"], turns
assert all(turn.begun_at <= turn.ended_at for turn in turns), turns
assert begun.chat_id in [chat.chat_id for chat in good(list_chats.sync("main", client=client)).items]

# A turn that does not end is stopped, and the chat goes on and is closed.
hanging = good(send_message.sync("main", begun.chat_id, client=client, body=Message(content="say four\nhang")))
good(stop_chat.sync("main", begun.chat_id, client=client))
until_turn_ends(begun.events, pieces[-1][0], hanging.turn_id)
good(close_chat.sync("main", begun.chat_id, client=client))
assert good(get_chat.sync("main", begun.chat_id, client=client)).state.value in ("closed", "running", "closing")

# Tasks and files.
taken = good(submit_task.sync(client=client, body=NewTask(prompt="say five", pool="demo")))
assert good(get_task.sync(taken.id, client=client)).id == taken.id
assert taken.id in [task.id for task in good(list_tasks.sync(client=client)).items]
made = good(put_file.sync("main", "notes/a.txt", client=client, body=NewFile(content="text")))
assert good(get_file.sync("main", "notes/a.txt", client=client)).content == "text"
good(delete_file.sync("main", "notes/a.txt", client=client))
assert len(good(list_versions.sync("main", "notes/a.txt", client=client)).items) >= 2
missing = get_task.sync("no:task", client=client)
assert isinstance(missing, Problem) and missing.status == 404, missing
print("done")
