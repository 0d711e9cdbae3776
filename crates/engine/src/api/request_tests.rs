//! What is a request of the control socket, and what is none.

use super::*;

fn check(line: &str, code: Code, part: &str) {
    let failure = read(line.as_bytes()).expect_err(line);
    assert_eq!(failure.code, code, "{line}: {failure}");
    assert!(failure.message.contains(part), "{line}: {failure}");
    assert!(
        !failure
            .message
            .chars()
            .any(marshal_model::untrusted::is_unsafe)
    );
}

#[test]
fn what_is_no_request_is_told_so() {
    check("", Code::BadJson, "one object per line");
    check("{", Code::BadJson, "one object per line");
    check("[1,\"hello\"]", Code::BadJson, "begin with {");
    check("\"x\u{1b}[2J\"", Code::BadJson, "one object per line");
    check("{}", Code::BadVersion, "speaks version 1");
    check(
        "{\"v\":2,\"op\":\"new\",\"x\":1}",
        Code::BadVersion,
        "speaks version 1",
    );
    check("{\"v\":1}", Code::BadRequest, "op");
    check("{\"v\":1,\"op\":\"fly\\u001b\"}", Code::BadRequest, "no op");
    check(
        "{\"v\":1,\"op\":\"hello\",\"x\":1}",
        Code::BadRequest,
        "unknown field",
    );
    check(
        "{\"v\":1,\"op\":\"hello\",\"run\":\"a\"}",
        Code::BadRequest,
        "\"run\"",
    );
    check(
        "{\"v\":1,\"op\":\"watch\"}",
        Code::BadRequest,
        "\"run\" is missing",
    );
    check(
        "{\"v\":1,\"op\":\"watch\",\"run\":\"../x\"}",
        Code::BadRequest,
        "must match",
    );
    check(
        "{\"v\":1,\"op\":\"logs\",\"slot\":\"demo\"}",
        Code::BadRequest,
        "POOL/NUMBER",
    );
    check(
        "{\"v\":1,\"op\":\"submit\",\"tasks\":[]}",
        Code::BadTasks,
        "no task",
    );
    let task =
        |rest: &str| format!("{{\"v\":1,\"op\":\"submit\",\"tasks\":[{{\"id\":\"a\",{rest}}}]}}");
    check(&task("\"x\":1"), Code::BadRequest, "unknown field");
    check(&task("\"prompt\":\" \""), Code::BadTasks, "is empty");
    check(
        &task("\"prompt\":\"p\",\"pool\":\"A\""),
        Code::BadTasks,
        "pool name",
    );
    check(
        &task("\"prompt\":\"p\",\"attempts\":0"),
        Code::BadTasks,
        "from 1",
    );
    check(
        &task("\"prompt\":\"p\",\"workspace\":\"x\""),
        Code::BadTasks,
        "absolute",
    );
    check(
        &task("\"prompt\":\"p\",\"check\":[]"),
        Code::BadTasks,
        "is empty",
    );
    let twice = "{\"v\":1,\"op\":\"submit\",\"tasks\":[{\"id\":\"a\",\"prompt\":\"p\"},{\"id\":\"a\",\"prompt\":\"p\"}]}";
    check(twice, Code::BadTasks, "twice");
}

#[test]
fn requests_survive_a_round_trip() {
    let run = RunId::new("r-1").expect("id");
    let slot = SlotId::parse("demo/3").expect("slot");
    let task = TaskSpec {
        id: TaskId::new("a").expect("id"),
        prompt: "say \u{1b} hi\n".into(),
        pool: PoolName::new("demo").ok(),
        workspace: Some("/srv".into()),
        attempts: Some(2),
        check: Some(vec!["true".to_owned()]),
        files: vec!["src/a b".to_owned()],
        embedded_files: vec!["README.md".to_owned()],
        policy_layer: Some("night".to_owned()),
        priority: 0,
        depends_on: Vec::new(),
    };
    for request in [
        Request::Hello,
        Request::Submit {
            tasks: vec![task],
            watch: true,
            bounds: marshal_fleet::RunBounds {
                until_us: Some(1_795_391_999_999_999),
                grace_ms: Some(1000),
                max_cost: Some(40_000_000_000),
                max_tokens: Some(5),
                jobs: Some(8),
            },
        },
        Request::Watch { run: run.clone() },
        Request::Cancel { run: run.clone() },
        Request::CancelTask {
            pool: PoolName::new("demo").expect("a name"),
            run: run.clone(),
            task: TaskId::new("t").expect("an id"),
        },
        Request::Logs {
            slot: slot.clone(),
            follow: true,
        },
        Request::Restart { slot },
        Request::Open {
            pool: PoolName::new("demo").expect("name"),
            directory: "/srv".into(),
            session: SessionId::new("s").ok(),
        },
        Request::Conversations {
            pool: PoolName::new("demo").expect("name"),
            after: 3,
        },
    ] {
        let line = write(&request).expect("written");
        assert_eq!(read(line.as_bytes()), Ok(request), "{line}");
    }
}
