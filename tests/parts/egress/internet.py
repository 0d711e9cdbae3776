"""Everything that is outside, in a network namespace of its own: every address answers.

Listens on a few ports of all addresses, answers names from DIR/zone.json, and notes in DIR/log, a
JSON object a line, every connection, every name that was asked for, and what was sent without TLS.
"""

import json
import socket
import ssl
import struct
import subprocess
import sys
import threading

place = sys.argv[1]
log = open(place + "/log", "a", buffering=1)
lock = threading.Lock()
asked = {}

# A HelloRetryRequest: its random says what it is.
RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def note(**what):
    with lock:
        log.write(json.dumps(what) + "\n")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def setup():
    ip("link", "set", "lo", "up")
    ip("link", "set", "vb", "up")
    ip("addr", "add", "5.5.5.2/24", "dev", "vb")
    ip("-6", "addr", "add", "2a00:5::2/64", "dev", "vb", "nodad")
    ip("addr", "add", "9.9.9.9/32", "dev", "lo")
    # Whatever comes is for us.
    ip("route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "main")
    ip("-6", "route", "add", "local", "::/0", "dev", "lo", "table", "main")


def retry(conn):
    """Wants a second ClientHello, and notes whatever comes."""
    conn.recv(65536)
    body = b"\x03\x03" + RANDOM + b"\x00\x13\x01\x00" + b"\x00\x06" + b"\x00\x2b\x00\x02\x03\x04"
    message = b"\x02" + struct.pack(">I", len(body))[1:] + body
    conn.sendall(b"\x16\x03\x03" + struct.pack(">H", len(message)) + message)
    second = conn.recv(65536)
    note(kind="second", data=second.decode("latin1"))


def serve(conn, address, port):
    try:
        conn.settimeout(30)
        first = conn.recv(1, socket.MSG_PEEK)
        if first != b"\x16":
            data = conn.recv(65536) if first else b""
            note(kind="plain", to=address, data=data.decode("latin1"))
            return
        if port == 8443:
            return retry(conn)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place + "/cert.pem", place + "/key.pem")
        named = []
        context.sni_callback = lambda _sock, name, _context: named.append(name)
        with context.wrap_socket(conn, server_side=True) as tls:
            note(kind="tls", to=address, name=named[0])
            line = tls.recv(65536).decode()
            words = line.split()
            if words[0] == "send":
                tls.sendall(b"x" * int(words[1]))
            elif words[0] == "take":
                while tls.recv(65536):
                    pass
            elif words[0] == "wait":
                tls.recv(65536)
            else:
                body = "hello from %s\n" % named[0]
                tls.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
                tls.sendall(body.encode())
    except (OSError, IndexError) as error:
        note(kind="error", what=str(error))
    finally:
        conn.close()


def listen(port):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", port))
    listener.listen(512)

    def accept():
        while True:
            conn, _ = listener.accept()
            address = conn.getsockname()[0].removeprefix("::ffff:")
            note(kind="tcp", to=address, port=port)
            threading.Thread(target=serve, args=(conn, address, port), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def answer(query):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    name = ".".join(labels)
    kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
    question = query[12 : at + 5]
    zone = json.load(open(place + "/zone.json"))
    # Each question takes the next of the name's answers; the last one stays.
    turn = asked.get((name, kind), 0)
    asked[(name, kind)] = turn + 1
    note(kind="dns", name=name, type=kind)
    if name not in zone:
        return query[:2] + b"\x81\x83" + struct.pack(">HHHH", 1, 0, 0, 0) + question
    turns = zone[name]
    records = b""
    count = 0
    for address in turns[min(turn, len(turns) - 1)]:
        is_six = ":" in address
        if kind == (28 if is_six else 1):
            data = socket.inet_pton(socket.AF_INET6 if is_six else socket.AF_INET, address)
            records += b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(data)) + data
            count += 1
    return query[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, count, 0, 0) + question + records


sys.stdin.readline()
setup()
for port in (80, 443, 8443):
    listen(port)
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("9.9.9.9", 53))
note(kind="ready")
while True:
    query, who = names.recvfrom(4096)
    names.sendto(answer(query), who)
