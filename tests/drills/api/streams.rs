//! Events as they are streamed: each once, and on from where a reader was.

use crate::api::api_daemon::{ApiDaemon, POOL};

#[test]
fn a_sessions_events_come_once_and_on_from_any_of_them() {
    let api = ApiDaemon::of(POOL);
    let ran = api.drill.run(&["run", "say one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let session = api.see("/sessions")["items"][0]["session"].clone();
    let path = format!("/sessions/{}/events", session.as_str().expect("one"));
    let all = api.stream(&path, None, |_| false);
    let (end, events) = all.split_last().expect("events");
    assert_eq!(
        (end.name.as_str(), &end.data["why"]),
        ("end", &"complete".into())
    );
    assert!(
        events.iter().any(|event| event.name == "text"),
        "{events:?}"
    );
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event.data["id"].as_str(), event.id.as_deref());
        let seq = event.id.as_deref().and_then(|id| id.split_once('-'));
        assert_eq!(seq.expect("an id").1, (at + 1).to_string());
    }
    for (at, event) in events.iter().enumerate() {
        let on = api.stream(&path, event.id.as_deref(), |_| false);
        assert_eq!(on, all[at + 1..], "after {:?}", event.id);
    }
    let last = events.last().and_then(|event| event.id.as_deref());
    let on = api.stream(
        &format!("{path}?after={}", last.expect("one")),
        None,
        |_| false,
    );
    assert_eq!(on.len(), 1, "{on:?}");
    // Cursors that are not of this journal are answered at once, and the events that it has follow.
    let common = |cursor: &str| {
        let on = api.stream(&path, Some(cursor), |_| false);
        assert_eq!(
            (on[0].name.as_str(), &on[0].id),
            ("rewound", &None),
            "{on:?}"
        );
        (
            on[0].data["to"].as_str().expect("an id").to_owned(),
            on.len(),
        )
    };
    let last = last.expect("one").to_owned();
    assert_eq!(common("1-999999"), (last, 2));
    assert_eq!(common("0-3"), ("0-0".to_owned(), all.len() + 1));
}

#[test]
fn the_fleets_events_are_filtered_and_go_on_from_a_cursor() {
    let api = ApiDaemon::of(POOL);
    let words = |prompt: &str| {
        let ran = api.drill.run(&["run", prompt]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
    };
    words("say one");
    // Everything since the beginning, then what follows.
    let seen =
        |events: &[crate::api::api_daemon::Event]| events.iter().any(|event| event.name == "text");
    let texts = api.stream("/events?after=0&kind=text&pool=demo", None, seen);
    assert_eq!(texts.len(), 1, "{texts:?}");
    let ended = std::thread::scope(|scope| {
        let ended = scope.spawn(|| api.stream("/events?kind=ended", None, |_| true));
        // Told as it happens: whoever listens late hears the next one.
        while !ended.is_finished() {
            words("say two");
        }
        ended.join().expect("read")
    });
    assert_eq!(ended[0].data["report"]["outcome"], "done", "{ended:?}");
    assert_eq!(ended[0].id, None, "it moves no cursor");
}
