//! The streams over WebSockets, read by a foreign client: the same events as over server-sent events,
//! the same cursors, and who may have them.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::HandshakeError;
use tungstenite::http::{Request, Response};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use crate::api::api_daemon::{ApiDaemon, LONG, POOL};
use crate::drill::eventually;

/// How many streams there may be at a time: docs/api.md.
const STREAMS: usize = 128;

type Socket = WebSocket<TcpStream>;
type Refused = Box<Response<Option<Vec<u8>>>>;

/// How a stream ended.
#[derive(Debug, PartialEq)]
struct End {
    code: CloseCode,
    reason: String,
}

fn request(api: &ApiDaemon, path: &str, head: &[(&'static str, &str)]) -> Request<()> {
    let url = format!("ws://{}/api/v1{path}", api.address);
    let mut request = url.into_client_request().expect("a request");
    for (name, value) in head {
        let value = value.parse().expect("a value");
        request.headers_mut().insert(*name, value);
    }
    request
}

fn connect(api: &ApiDaemon, path: &str, head: &[(&'static str, &str)]) -> Result<Socket, Refused> {
    let stream = TcpStream::connect(&api.address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    match tungstenite::client(request(api, path, head), stream) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => Err(answer),
        Err(HandshakeError::Failure(error)) if is_interrupted(&error) => connect(api, path, head),
        Err(error) => panic!("{path}: {error}"),
    }
}

fn bearer(api: &ApiDaemon) -> String {
    format!("Bearer {}", api.token)
}

fn open(api: &ApiDaemon, path: &str) -> Socket {
    let opened = connect(api, path, &[("authorization", &bearer(api))]);
    opened.unwrap_or_else(|answer| panic!("{path}: {answer:?}"))
}

/// Whether a read with a time was broken into, as when the child of another thread ends while that one
/// starts the next: it is tried again.
fn is_interrupted(error: &tungstenite::Error) -> bool {
    matches!(error, tungstenite::Error::Io(error) if error.kind() == ErrorKind::Interrupted)
}

/// The next event, or how it ended.
fn next(socket: &mut Socket) -> Result<Value, Option<End>> {
    loop {
        let message = match socket.read() {
            Err(error) if is_interrupted(&error) => continue,
            message => message.expect("in time"),
        };
        match message {
            Message::Text(text) => {
                let event: Value = serde_json::from_str(&text).expect("JSON");
                let keys: Vec<&String> = event.as_object().expect("an object").keys().collect();
                assert_eq!(keys, ["data", "id", "type"], "{event}");
                return Ok(event);
            }
            Message::Close(close) => {
                return Err(close.map(|close| End {
                    code: close.code,
                    reason: close.reason.to_string(),
                }));
            }
            _ => {}
        }
    }
}

/// Everything up to one that is the last.
fn until(socket: &mut Socket, last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let event = next(socket).unwrap_or_else(|end| panic!("{end:?} after {all:#?}"));
        let is_last = last(&event);
        all.push(event);
        if is_last {
            return all;
        }
    }
}

fn chat(api: &ApiDaemon, goal: &str) -> String {
    let begun = api.post(
        "/workspaces/main/chats",
        &json!({ "goal": goal }).to_string(),
    );
    assert_eq!(begun.status, 201, "{begun:?}");
    let id = begun.json()["chat_id"].as_str().expect("an id").to_owned();
    format!("/workspaces/main/chats/{id}")
}

#[test]
fn a_reload_closes_the_sockets_of_a_replaced_token() {
    let mut api = ApiDaemon::of(POOL);
    let mut socket = open(&api, "/events");
    let fresh = "another-token-of-the-owner-0123456789";
    std::fs::write(api.drill.state().join("http.token"), fresh).expect("written");
    fresh.clone_into(&mut api.token);
    let reloaded = api.post("/config/reload", "");
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    let Err(Some(end)) = next(&mut socket) else {
        panic!("it goes on");
    };
    assert_eq!(end.code, CloseCode::Policy, "{end:?}");
    assert!(end.reason.starts_with("replaced"), "{end:?}");
    // With the new token there is one again.
    let mut again = open(&api, "/events");
    again.close(None).expect("closed");
}

fn is_done(event: &Value) -> bool {
    event["type"] == "done"
}

#[test]
fn a_chats_messages_are_its_events_and_go_on_after_any_of_them() {
    let api = ApiDaemon::of(POOL);
    let place = chat(&api, "say one\nsay two\nread README.md");
    let path = format!("{place}/events");
    let all = until(&mut open(&api, &path), is_done);
    let seen_events = api.stream(&path, None, |events| {
        events.iter().any(|event| event.name == "done")
    });
    let as_messages: Vec<Value> = seen_events
        .into_iter()
        .map(|event| json!({"id": event.id, "type": event.name, "data": event.data}))
        .collect();
    assert_eq!(all, as_messages);
    assert!(all.len() > 3, "{all:#?}");
    for (at, event) in all.iter().enumerate().take(all.len() - 1) {
        let id = event["id"].as_str().expect("an id");
        let on = until(&mut open(&api, &format!("{path}?after={id}")), is_done);
        assert_eq!(on, all[at + 1..], "after {id}");
    }
    // What comes later comes by itself.
    let last = all.last().and_then(|event| event["id"].as_str());
    let mut socket = open(&api, &format!("{path}?after={}", last.expect("an id")));
    let response = api.post(&place, r#"{"content": "say three"}"#);
    assert_eq!(response.status, 202, "{response:?}");
    let more = until(&mut socket, is_done);
    assert_eq!(
        more.last().expect("one")["data"]["turn_id"],
        response.json()["turn_id"]
    );
}

#[test]
fn a_sessions_messages_end_with_it_and_the_fleets_with_the_supervisor() {
    let mut api = ApiDaemon::of(POOL);
    let mut fleet = open(&api, "/events?kind=text");
    let ran = api.drill.run(&["run", "say one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let received = next(&mut fleet).expect("an event");
    assert_eq!(received["data"]["body"]["delta"], "one\n", "{received}");
    let session = api.see("/sessions")["items"][0]["session"].clone();
    let path = format!("/sessions/{}/events", session.as_str().expect("one"));
    let mut socket = open(&api, &path);
    let mut ids = Vec::new();
    let end = loop {
        match next(&mut socket) {
            Ok(event) => ids.push(event["id"].as_str().expect("an id").to_owned()),
            Err(end) => break end.expect("a reason"),
        }
    };
    let seen_events = api.stream(&path, None, |_| false);
    let seen_events: Vec<String> = seen_events
        .into_iter()
        .filter_map(|event| event.id)
        .collect();
    assert_eq!(ids, seen_events);
    assert_eq!(end.code, CloseCode::Normal, "{end:?}");
    assert_eq!(end.reason, "complete");
    let place = chat(&api, "say one");
    let mut talk = open(&api, &format!("{place}/events"));
    until(&mut talk, is_done);
    api.daemon.signal("TERM");
    for socket in [&mut fleet, &mut talk] {
        let end = loop {
            if let Err(end) = next(socket) {
                break end.expect("a reason");
            }
        };
        assert_eq!(end.code, CloseCode::Away, "{end:?}");
        assert!(end.reason.starts_with("stopping"), "{end:?}");
    }
    assert_eq!(api.daemon.wait(LONG), Some(0));
}

#[test]
fn who_has_no_token_or_comes_from_elsewhere_gets_none() {
    let api = ApiDaemon::of(POOL);
    let origin = format!("http://{}", api.address);
    let status = |head: &[(&'static str, &str)]| match connect(&api, "/events", head) {
        Ok(_) => 101,
        Err(answer) => answer.status().as_u16(),
    };
    let with = bearer(&api);
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("authorization", "Bearer nobody")]), 401);
    assert_eq!(
        status(&[
            ("authorization", &with),
            ("origin", "http://elsewhere.example")
        ]),
        403
    );
    assert_eq!(
        status(&[("authorization", &with), ("host", "elsewhere.example")]),
        421
    );
    assert_eq!(
        status(&[("authorization", &with), ("sec-websocket-version", "12")]),
        400
    );
    assert_eq!(
        status(&[("authorization", &with), ("origin", &origin)]),
        101
    );
    // Where a browser asks, which sends no such header, the token is offered as a subprotocol.
    let coded = encoded(api.token.as_bytes());
    let offered = format!("marshal.events.v1, base64url.bearer.authorization.marshal.{coded}");
    assert_eq!(status(&[("sec-websocket-protocol", &offered)]), 101);
    assert_eq!(
        status(&[
            ("sec-websocket-protocol", &offered),
            ("origin", "http://elsewhere.example")
        ]),
        403
    );
    let bad = "marshal.events.v1, base64url.bearer.authorization.marshal.bm9ib2R5";
    assert_eq!(status(&[("sec-websocket-protocol", bad)]), 401);
    // It is for streams alone, and for WebSockets.
    let response = api.plain(
        "GET /api/v1/fleet",
        &[&format!("Sec-WebSocket-Protocol: {offered}")],
        "",
    );
    response.assert_problem(401);
}

fn encoded(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let part = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let held = part(0) << 16 | part(1) << 8 | part(2);
        for place in 0..=three.len() {
            let six = held >> (18 - 6 * place) & 63;
            text.push(char::from(LETTERS[six as usize]));
        }
    }
    text
}

#[test]
fn a_client_that_speaks_is_sent_away_and_its_place_comes_back() {
    let api = ApiDaemon::of(POOL);
    let mut socket = open(&api, "/events");
    socket.send(Message::text("hello")).expect("sent");
    let end = loop {
        if let Err(end) = next(&mut socket) {
            break end.expect("a reason");
        }
    };
    assert_eq!(end.code, CloseCode::Policy, "{end:?}");
    drop(socket);
    // As many as there are places for such streams, and one more.
    let mut occupied: Vec<Socket> = Vec::new();
    let until = Instant::now() + LONG;
    let full = loop {
        match connect(&api, "/events", &[("authorization", &bearer(&api))]) {
            Ok(socket) => occupied.push(socket),
            Err(answer) if answer.status().as_u16() == 429 => {
                std::thread::sleep(Duration::from_millis(200));
            }
            // The first one's place comes back when its end was seen.
            Err(_) if occupied.len() < STREAMS && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(answer) => break answer.status().as_u16(),
        }
        assert!(occupied.len() <= STREAMS, "no bound");
    };
    assert_eq!(full, 503);
    assert_eq!(occupied.len(), STREAMS);
    // A goodbye is answered, and a client that is only gone is found out.
    let mut one = occupied.pop().expect("one");
    one.close(None).expect("sent");
    let end = loop {
        match one.read() {
            Ok(_) => {}
            Err(end) if is_interrupted(&end) => {}
            Err(end) => break end,
        }
    };
    let is_closed = matches!(end, tungstenite::Error::ConnectionClosed);
    assert!(is_closed, "{end}");
    drop(occupied);
    eventually(LONG, "the places are free", || {
        connect(&api, "/events", &[("authorization", &bearer(&api))]).is_ok()
    });
}
