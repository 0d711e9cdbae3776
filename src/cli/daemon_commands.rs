//! Commands for the daemon's pools and sessions: `drain`, `pause`, `resume`, `resize`, `stop`,
//! `command` and `reload`.
//!
//! Owns the requests and the messages. Must not know how the daemon carries them out.

use std::io;
use std::path::Path;

use axum::http::Method;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;

use super::exit::Exit;
use super::http_client::{ClientError, request_json};
use super::streams::Streams;
use marshal_engine::api::http::SOCKET;
use marshal_engine::api::unix_socket::connect;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, PoolPhase, SessionId};

/// Columns shown of the result of a reload.
const DETAIL: usize = 600;

/// The requested flow of a pool's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Drain,
    Pause,
    Resume,
}

impl Flow {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }
}

/// `drain POOL`, `pause POOL`, `resume POOL`.
pub(super) async fn flow(
    state: &Path,
    pool: &PoolName,
    flow: Flow,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let path = format!("/api/v1/pools/{pool}/{}", flow.as_str());
    let answer = request_json(state, Method::POST, &path, None).await;
    print_answer(answer, json, streams, of_pool)
}

/// `resize POOL SIZE`.
pub(super) async fn resize(
    state: &Path,
    pool: &PoolName,
    size: u16,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let path = format!("/api/v1/pools/{pool}/resize");
    let body = json!({"size": size});
    let answer = request_json(state, Method::POST, &path, Some(&body)).await;
    print_answer(answer, json, streams, of_pool)
}

/// `stop`: the supervisor. Returns when its process has ended.
pub(super) async fn stop_supervisor(
    state: &Path,
    now: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    // What the service manager listens on for a supervisor starts it now. Until it answers, that
    // manager is the peer.
    if let Err(error) = request_json(state, Method::GET, "/api/v1/supervisor", None).await {
        return error.report(streams);
    }
    // Before the request: its pid may be another's afterwards.
    let process = connect(state, SOCKET).await.and_then(|stream| {
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe; an owned descriptor stays the same until it is dropped"
        )]
        AsyncFd::new(pidfd_open(pid, PidfdFlags::empty())?)
    });
    let path = format!("/api/v1/stop?now={now}");
    let answer = match request_json(state, Method::POST, &path, None).await {
        Ok(answer) => answer,
        Err(error) => return error.report(streams),
    };
    if !json {
        streams.err.line("stopping");
    }
    let ended = match &process {
        Ok(process) => process.readable().await.map(drop),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    if let Err(error) = ended {
        let text = format!("error: cannot wait for the supervisor's end: {error}");
        streams.err.line(&text);
        return Exit::Failures;
    }
    if json {
        streams.out.json(&answer.to_string());
    } else {
        streams.err.line("stopped");
    }
    Exit::Done
}

/// `stop SESSION`: the session, or only its turn.
pub(super) async fn stop(
    state: &Path,
    session: &SessionId,
    turn: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let what = if turn { "interrupt" } else { "stop" };
    let path = format!("/api/v1/sessions/{session}/{what}");
    let answer = request_json(state, Method::POST, &path, None).await;
    let words = if turn {
        "cancelling its turn"
    } else {
        "stopping"
    };
    print_answer(answer, json, streams, |_| format!("{session}: {words}"))
}

/// `command SESSION NAME [ARGS…]`: fails if the agent answers that the command failed.
pub(super) async fn command(
    state: &Path,
    session: &SessionId,
    name: &str,
    args: &[String],
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let path = format!("/api/v1/sessions/{session}/commands");
    let body = json!({"command": name, "args": args.join(" ")});
    let answer = match request_json(state, Method::POST, &path, Some(&body)).await {
        Ok(answer) => answer,
        Err(error) => return error.report(streams),
    };
    if json {
        streams.out.json(&answer.to_string());
    } else {
        let text = answer["text"].as_str().unwrap_or_default();
        for line in text.lines() {
            streams
                .out
                .line(&escape_for_display(line, limits::COMMAND_TEXT_BYTES));
        }
        if answer["cut"] == true {
            let events =
                format!("the answer was cut; all of it: marshal events --session {session}");
            streams.err.line(&events);
        }
    }
    if answer["ok"] == true {
        Exit::Done
    } else {
        Exit::Failures
    }
}

/// `reload`.
pub(super) async fn reload(state: &Path, json: bool, streams: &mut Streams) -> Exit {
    let answer = request_json(state, Method::POST, "/api/v1/config/reload", None).await;
    print_answer(answer, json, streams, |answer| {
        let mut lines = vec![escape_for_display(
            answer["detail"].as_str().unwrap_or("?"),
            DETAIL,
        )];
        for (key, word) in [("taken", "applied"), ("restart", "needs a restart")] {
            let keys = answer[key]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            lines.extend(keys.map(|key| format!("{word}: {}", escape_for_display(key, DETAIL))));
        }
        lines.join("\n")
    })
}

fn of_pool(answer: &Value) -> String {
    let text = |key: &str| escape_for_display(answer[key].as_str().unwrap_or("?"), 60);
    let (size, slots) = (&answer["size"], &answer["slots"]);
    let (pool, flow) = (text("pool"), text("flow"));
    if flow == PoolPhase::Running.as_str() {
        format!("{pool}: {flow}, {size} of {slots} slots receive tasks")
    } else {
        format!(
            "{pool}: {flow}, {size} of {slots} slots; no task starts until `marshal resume {pool}`"
        )
    }
}

fn print_answer(
    answer: Result<Value, ClientError>,
    json: bool,
    streams: &mut Streams,
    words: impl FnOnce(&Value) -> String,
) -> Exit {
    match answer {
        Ok(answer) if json => streams.out.json(&answer.to_string()),
        Ok(answer) => streams.err.line(&words(&answer)),
        Err(error) => return error.report(streams),
    }
    Exit::Done
}
