//! The other readers of bytes that others wrote: what must hold of each.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use marshal_config::{Config, DialectDefinition, Origin};
use marshal_dialect::mcp::{Effect, Server};
use marshal_journal::codec;
use marshal_model::limits::{EGRESS_HELLO_BYTES, EGRESS_HELLO_EXTENSIONS, TOOL_CALLS};
use marshal_model::{AgentClaims, Decision, EngineTool, SandboxFacts};
use marshal_policy::{EvaluationContext, FsContext, NoLinks, Policy, ReadTarget, Request};
use marshal_proxy::egress::{self, ParseProgress};
use marshal_proxy::route;
use marshal_wire::ndjson::{LineDecoder, LineError};
use marshal_wire::plan::checklist::{append, tick, untick};
use marshal_wire::plan::{Checklist, prompt};
use marshal_wire::skillpilot::marker::{Marker, Scanner};
use marshal_wire::skillpilot::{
    self, CommandName, MarkerMode, MarkerSpec, Strictness, read_cancel, read_command, read_lease,
    read_stop,
};
use marshal_wire::{files, http, json, shim};
use serde_json::Value;

/// Pieces of an input: how long each is follows from the bytes themselves.
fn pieces(input: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    let mut rest = input;
    let mut turn = 7_usize;
    while !rest.is_empty() {
        turn = turn.wrapping_mul(31).wrapping_add(usize::from(rest[0]));
        let (piece, more) = rest.split_at((turn % 23 + 1).min(rest.len()));
        out.push(piece);
        rest = more;
    }
    out
}

/// The first byte chooses how long a line may be.
pub(super) fn framing(input: &[u8]) {
    let (cap, bytes) = match input.split_first() {
        Some((first, rest)) => (usize::from(*first) * 8 + 1, rest),
        None => return,
    };
    // What must come out, by the simplest reading.
    let mut wanted = Vec::new();
    let mut fails = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        if line.len() > cap {
            fails = true;
            break;
        }
        if !line.iter().all(u8::is_ascii_whitespace) {
            wanted.push(line.to_vec());
        }
    }
    for chunks in [vec![bytes], pieces(bytes), bytes.chunks(1).collect()] {
        let mut lines = LineDecoder::new(cap);
        let (mut got, mut failed) = (Vec::new(), false);
        for chunk in chunks {
            lines.push(chunk.to_vec());
            for line in lines.by_ref() {
                assert!(!failed, "something after the end");
                match line {
                    Ok(line) => got.push(line.to_vec()),
                    Err(LineError::TooLong { head, cap: said }) => {
                        assert!(
                            said == cap && head.len() <= marshal_model::limits::BAD_LINE_HEAD_BYTES
                        );
                        failed = true;
                    }
                }
            }
            assert!(
                lines.buffered_bytes() <= cap,
                "{} are held",
                lines.buffered_bytes()
            );
        }
        assert_eq!(lines.has_failed(), failed);
        got.extend(lines.finish().map(|line| line.to_vec()));
        assert_eq!((&got, failed), (&wanted, fails));
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(object) = json::expect_object(line) {
            assert!(object.trim_ascii_start().starts_with('{'));
            let _ = json::read_tag(object);
        }
        if let Ok((name, value)) = http::parse_header(line) {
            assert!(http::is_token(name) && !value.contains(&b'\n'));
        }
    }
    frames(bytes);
}

/// The messages of the helpers: whole or in pieces, the same; what is left over begins with what was
/// not taken.
fn frames(bytes: &[u8]) {
    fn take_messages<T: serde::de::DeserializeOwned + std::fmt::Debug>(
        chunks: &[&[u8]],
    ) -> Vec<String> {
        let (mut occupied, mut out) = (Vec::new(), Vec::new());
        for chunk in chunks {
            occupied.extend_from_slice(chunk);
            loop {
                match shim::take_message::<T>(&mut occupied) {
                    Ok(Some(message)) => out.push(format!("{message:?}")),
                    Ok(None) => break,
                    Err(_) => {
                        out.push("broken".to_owned());
                        return out;
                    }
                }
            }
        }
        out
    }
    assert_eq!(
        take_messages::<shim::HelperReport>(&[bytes]),
        take_messages::<shim::HelperReport>(&pieces(bytes))
    );
    assert_eq!(
        take_messages::<shim::HelperCommand>(&[bytes]),
        take_messages::<shim::HelperCommand>(&pieces(bytes))
    );
    assert_eq!(
        take_messages::<files::FileOperation>(&[bytes]),
        take_messages::<files::FileOperation>(&pieces(bytes))
    );
    let message = shim::encode(&String::from_utf8_lossy(bytes));
    let mut message = message.expect("short enough");
    let back: Option<String> = shim::take_message(&mut message).expect("what was written");
    assert_eq!(back.as_deref(), Some(&*String::from_utf8_lossy(bytes)));
    assert!(message.is_empty());
}

pub(super) fn table(input: &[u8]) {
    match DialectDefinition::parse(input, Path::new("fuzz.toml")) {
        Ok(table) => drop(format!("{table:?}")),
        Err(errors) => placed(&errors),
    }
}

/// Every fault has its place, and can be shown.
fn placed(errors: &marshal_config::ConfigErrors) {
    assert!(!errors.errors.is_empty(), "refused without a reason");
    for error in &errors.errors {
        assert!(error.line > 0, "no place: {error:?}");
    }
    let _ = errors.to_string();
}

pub(super) fn config(input: &[u8]) {
    let origin = Origin {
        file: Some(PathBuf::from("fuzz.toml")),
        dir: PathBuf::from("/fuzz"),
        is_explicit: true,
    };
    match Config::parse_bytes(input, &origin) {
        Ok(config) => {
            // What is shown can be read again.
            let shown = config.effective().to_toml();
            assert!(
                Config::parse(&shown, &origin).is_ok(),
                "shown, but not to be read:\n{shown}"
            );
        }
        Err(errors) => placed(&errors),
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let found = Policy::load(text, "fuzz", &|name| Err(format!("there is no {name}")));
        if let Err(error) = found {
            assert!(!error.to_string().is_empty());
        }
    }
}

pub(super) fn shell(input: &[u8]) {
    static POLICIES: OnceLock<Vec<Policy>> = OnceLock::new();
    let policies = POLICIES.get_or_init(|| {
        let names = ["autonomous", "developer", "reviewer", "ci"];
        let found = names.into_iter().filter_map(Policy::builtin);
        let flow = "schema = 1\nname = \"flow\"\nextends = [\"builtin:developer\"]\n[shell]\ncontrol_flow = true";
        let flow = Policy::load(flow, "flow", &|name| Err(format!("there is no {name}")));
        let found: Vec<_> = found.chain(flow.ok()).collect();
        assert_eq!(found.len(), 5, "a policy is missing");
        found
    });
    let text = String::from_utf8_lossy(&input[..input.len().min(8 << 10)]).into_owned();
    let at = FsContext {
        workspace: "/w",
        home: "/HOME",
        cwd: Some("/w"),
        resolver: &NoLinks,
    };
    let requests = [
        Request::Shell {
            command: text.clone(),
            cwd: None,
        },
        Request::Read {
            targets: vec![ReadTarget::Path(text.clone())],
        },
        Request::Write {
            paths: vec![text.clone()],
        },
        Request::Fetch {
            url: text.clone(),
            method: None,
        },
    ];
    let context = EvaluationContext {
        sandbox: SandboxFacts::CONFINED,
        ..EvaluationContext::default()
    };
    // One of them for each input: each costs as much as the rest of it.
    if let Some(policy) = policies.get(input.len() % policies.len()) {
        for request in &requests {
            let judged = policy.decide_in_context(request, &AgentClaims::default(), &at, &context);
            assert!(
                !judged.rules.iter().any(|rule| rule == "engine_error"),
                "the engine failed"
            );
            assert!(!judged.reason.contains('\n'), "{:?}", judged.reason);
            // What is not plain is never allowed by a rule, but where the sandbox confines all of it.
            let plain = judged.facts.not_plain.is_none();
            let is_confined = policy.name() == "autonomous";
            assert!(
                plain || is_confined || judged.decision != Decision::Allow,
                "{text:?} is allowed"
            );
            let claimed = AgentClaims::default();
            let again = policy.decide_in_context(request, &claimed, &at, &context);
            assert_eq!(judged, again);
        }
        let _ = marshal_policy::resolve_cwd_change(&requests[0], &at);
    }
}

/// Lines; one that begins with `!` answers a call.
pub(super) fn mcp(input: &[u8]) {
    let mut server = Server::new(EngineTool::ALL);
    let mut waiting: Vec<u64> = Vec::new();
    for line in input.split(|byte| *byte == b'\n') {
        let mut out = Vec::new();
        if line.starts_with(b"!") {
            if let Some(number) = waiting.pop() {
                server.answer_call(number, &Ok("x".to_owned().into()), &mut out);
                assert_eq!(out.len(), 1, "one answer a call");
            }
        } else {
            server.handle_line(line, &mut out);
            let most = line.split(|byte| *byte == b'{').count().max(2) - 1;
            assert!(
                out.len() <= most.max(line.len()),
                "more is said than was asked"
            );
        }
        for effect in &out {
            match effect {
                Effect::Call { number, .. } => {
                    assert!(!waiting.contains(number), "a number twice");
                    waiting.push(*number);
                }
                Effect::Cancelled(number) => {
                    assert!(waiting.contains(number), "cancelled, but not called");
                    waiting.retain(|entry| entry != number);
                }
                Effect::Write(bytes) => {
                    let (newline, body) = bytes.split_last().expect("a line");
                    assert!(*newline == b'\n' && !body.contains(&b'\n'));
                    let message: Value = serde_json::from_slice(body).expect("JSON");
                    assert!(message["jsonrpc"] == "2.0" && message.get("id").is_some());
                }
            }
        }
        assert_eq!(server.open(), waiting.len());
        assert!(server.open() <= TOOL_CALLS);
    }
}

pub(super) fn egress(input: &[u8]) {
    match egress::parse_connect(input) {
        Ok(requested) => drop(format!("{requested:?}")),
        Err(denied) => {
            let answer = denied.to_http();
            assert!(answer.starts_with(b"HTTP/1.1 4"), "{denied:?}");
            let head = answer
                .windows(4)
                .position(|end| end == b"\r\n\r\n")
                .expect("a head");
            let lines = answer[..head].split(|byte| *byte == b'\n');
            assert!(lines.clone().all(|line| !line.contains(&0)), "{denied:?}");
        }
    }
    for second in [false, true] {
        grows(input, &|bytes| {
            egress::parse_client_hello(bytes, second, EGRESS_HELLO_BYTES, EGRESS_HELLO_EXTENSIONS)
                .map_err(|fault| format!("{fault:?}"))
        });
    }
    grows(input, &|bytes| {
        egress::parse_server_reply(bytes).map_err(|fault| format!("{fault:?}"))
    });
}

type Reads<'r, T> = &'r dyn Fn(&[u8]) -> Result<ParseProgress<T>, String>;

/// What a reader says of a beginning holds of the whole.
fn grows<T: PartialEq + std::fmt::Debug>(input: &[u8], read: Reads<'_, T>) {
    let whole = read(input);
    let mut end = 0;
    for piece in pieces(&input[..input.len().min(2048)]) {
        end += piece.len();
        let begun = read(&input[..end]);
        match (&begun, &whole) {
            (Ok(ParseProgress::NeedMore(more)), _) => {
                assert!(*more > end, "{more} of {end} are needed");
            }
            (Ok(ParseProgress::Done(some)), Ok(ParseProgress::Done(all))) => assert_eq!(some, all),
            (Err(some), Err(all)) => assert_eq!(some, all),
            (begun, whole) => panic!("{begun:?} of a beginning, {whole:?} of the whole"),
        }
    }
}

pub(super) fn route(input: &[u8]) {
    if let Err(refusal) = route::check_head(input) {
        let _: Value = serde_json::from_str(&refusal.to_json()).expect("JSON");
        assert!(
            refusal
                .to_http(&refusal.to_json())
                .starts_with(b"HTTP/1.1 ")
        );
    }
    let _ = route::inspect_body(Some("application/json"), input);
    let _ = route::inspect_body(None, input);
    let _ = route::announced_wait_in_body(input);
    let _ = route::ModelRequest::parse("/v1/messages", input);
    let _ = route::is_free("POST", "/v1/messages", input);
    for kind in ["text/event-stream", "application/json"] {
        let read = |chunks: &[&[u8]]| {
            let mut reader = route::UsageReader::new(Some(kind), false);
            for chunk in chunks {
                reader.feed(chunk);
            }
            format!("{:?}", reader.finish())
        };
        assert_eq!(
            read(&[input]),
            read(&pieces(input)),
            "cut otherwise, other tokens"
        );
    }
}

/// Lines: the kind of an event, a blank, its body. What can be read is written as what it is.
pub(super) fn journal(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for line in text.lines() {
        let (kind, body) = line.split_once(' ').unwrap_or((line, ""));
        if let Ok(event) = codec::decode(kind, codec::VERSION, body) {
            let mut again = Vec::new();
            codec::encode_into(&event, &mut again);
            let again = String::from_utf8(again).expect("UTF-8");
            let back = codec::decode(kind, codec::VERSION, &again);
            let back = back.unwrap_or_else(|error| panic!("{again}: {error}"));
            assert_eq!(format!("{event:?}"), format!("{back:?}"));
        }
        assert!(codec::decode(kind, codec::VERSION + 1, body).is_err());
        let _ = codec::read_spec("t", &"p".into(), body);
        if let Ok(report) = codec::read_report(body) {
            let again = codec::write_report(&report);
            assert!(codec::read_report(&again).is_ok(), "{again}");
        }
    }
}

/// The first line is a name, the rest the file, and output that may have a marker in it.
pub(super) fn files(input: &[u8]) {
    let at = input
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(input.len());
    let name = String::from_utf8_lossy(&input[..at]);
    let content = input.get(at + 1..).unwrap_or_default();
    if let Some(name) = CommandName::parse(&name) {
        assert!(!name.file_name().contains(['/', '\0']) && name.file_name().len() < 256);
        assert_eq!(CommandName::parse(&name.file_name()), Some(name.clone()));
        if let Ok(command) = read_command(&name, content, "tcl", 300) {
            assert_eq!((&command.cmd_id, command.seq), (&name.id, name.seq));
            assert!(command.timeout_s.is_some_and(|seconds| seconds > 0));
        }
    }
    // What is read strictly is read leniently, and as the same.
    if let Ok(cancel) = read_cancel(content, Strictness::Strict) {
        assert_eq!(read_cancel(content, Strictness::Lenient).ok(), Some(cancel));
    }
    if let Ok(stop) = read_stop(content, Strictness::Strict) {
        assert_eq!(read_stop(content, Strictness::Lenient).ok(), Some(stop));
    }
    let _ = read_lease(content);
    let _ = skillpilot::read_time(&String::from_utf8_lossy(content));
    for mode in [MarkerMode::RunnerInject, MarkerMode::PayloadContains] {
        let spec = MarkerSpec {
            prefix: "P".into(),
            token: "t".into(),
            mode,
        };
        let marker = Marker::new(&spec, "s");
        let text = marker.text().to_owned();
        // A payload has only its own text; in one that is injected, the last character says whether it failed.
        let failed = match mode {
            MarkerMode::RunnerInject => text.strip_suffix('0').map(|start| format!("{start}1")),
            MarkerMode::PayloadContains => None,
        };
        let read = |chunks: &[&[u8]]| {
            let mut scanner = Scanner::new(Marker::new(&spec, "s"));
            let (mut out, mut found) = (Vec::new(), false);
            for chunk in chunks {
                found = scanner.feed(chunk, &mut out);
                if found {
                    break;
                }
            }
            if !found {
                scanner.finish(&mut out);
            }
            (out, found, scanner.has_failed())
        };
        let whole = read(&[input]);
        assert_eq!(whole, read(&pieces(input)));
        assert_eq!(whole, read(&input.chunks(1).collect::<Vec<_>>()));
        let has = |text: &String| {
            input
                .windows(text.len())
                .any(|word| word == text.as_bytes())
        };
        let has_failed = failed.as_ref().is_some_and(has);
        assert!(
            has(&text) || has_failed || !whole.1,
            "a marker out of nothing"
        );
        assert!(has_failed || !whole.2, "a failure out of nothing");
        assert!(whole.1 || whole.0 == input, "output is lost");
    }
}

pub(super) fn plan(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(list) = Checklist::parse(&text) else {
        return;
    };
    for item in list.items().iter().take(20) {
        assert_eq!(
            list.item(item.id).map(|found| &found.text),
            Some(&item.text)
        );
        let ticked = tick(&text, item.id).expect("an item that is there");
        let changed = ticked
            .bytes()
            .zip(text.bytes())
            .filter(|(a, b)| a != b)
            .count();
        assert!(
            ticked.len() == text.len() && changed <= 1,
            "a tick changes one byte"
        );
        let back = untick(&ticked, item.id).expect("an item that is there");
        assert!(item.done || back == text);
        let _ = prompt::item_prompt("p", &text, &list, item, true);
    }
    if let Ok(longer) = append(&text, &["one more"], 0) {
        let more = Checklist::parse(&longer).expect("what was appended can be read");
        assert!(longer.starts_with(&*text) && more.items().len() == list.items().len() + 1);
    }
}
