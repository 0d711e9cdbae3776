//! Optional fields that were added to version 1: a child's limits in its start and end events, and
//! the mark of a fresh session whose agent gets no history.

use super::{decode, encode_into};
use marshal_model::{Event, ExitClass, ExitStatus, SandboxGap, SessionId};

#[test]
fn the_limits_of_a_child_its_peak_and_what_it_is_not_told_come_back() {
    let began = Event::ChildStarted {
        pid: 7,
        launcher: "unshare".into(),
        sandbox_gaps: vec![SandboxGap::SharedUid, SandboxGap::Landlock, SandboxGap::Cpu],
        limits: Some("memory: cgroup v1, kill: cgroup v2".to_owned()),
        sandbox_layers: Vec::new(),
    };
    let ended = Event::ChildExited {
        class: ExitClass::OutOfMemory,
        status: Some(ExitStatus::Signal(9)),
        detail: "killed".to_owned(),
        stderr: Vec::new(),
        memory_peak: Some(67_108_864),
    };
    let fresh = Event::SessionFresh {
        instead_of: SessionId::new("s-1").expect("id"),
        why: "its tool ended".to_owned(),
        history_omitted: true,
    };
    for (event, part) in [
        (
            began.clone(),
            r#""limits":"memory: cgroup v1, kill: cgroup v2""#,
        ),
        (
            began.clone(),
            r#""lacks":["shared_uid","landlock","cgroup.cpu"]"#,
        ),
        (ended, r#""memory_peak":67108864"#),
        (fresh, r#""history_omitted":true"#),
    ] {
        let written = |event: &Event| {
            let mut body = Vec::new();
            encode_into(event, &mut body);
            String::from_utf8(body).expect("UTF-8")
        };
        let body = written(&event);
        assert!(body.contains(part), "{body}");
        let read = decode(event.kind().as_str(), 1, &body).expect("read");
        assert_eq!(written(&read), body);
    }
}
