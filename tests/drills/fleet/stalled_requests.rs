//! A journal that does nothing: every request is answered within a bound, what was taken is there
//! exactly once, and what was not is nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chat_client::{self, Answer, Daemon};
use crate::drill::{count, eventually};
use crate::fleet::full_disk;

/// Within this time every request has its answer.
const BOUND: Duration = Duration::from_secs(5);

const LONG: Duration = Duration::from_secs(60);

/// An answer, and how long it took.
fn timed(send: impl FnOnce() -> Answer) -> Answer {
    let began = Instant::now();
    let answer = send();
    let took = began.elapsed();
    assert!(took < BOUND, "after {took:?}: {answer:?}");
    answer
}

/// Whether a request was refused with the time of another try.
fn is_later(answer: &Answer) -> bool {
    let head = answer.head.to_lowercase();
    answer.status == 503 && head.contains("retry-after: ") && answer.body["detail"].is_string()
}

#[test]
fn a_locked_journal_holds_up_no_request() {
    let drill = chat_client::drill("scaiflux", 4);
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say first");
    daemon.follow(&chat, None).any_turn();
    let lock = drill.database();
    eventually(LONG, "the lock", || {
        lock.execute_batch("BEGIN IMMEDIATE").is_ok()
    });
    let locked = Instant::now();
    let hold = Duration::from_secs(if count(1) > 1 { 60 } else { 10 });
    let refused = Mutex::new(BTreeSet::new());
    let refuse = |text: String, answer: &Answer| {
        assert!(is_later(answer), "{text}: {answer:?}");
        refused.lock().expect("no panic").insert(text);
    };
    thread::scope(|scope| {
        for client in 0..6 {
            let (daemon, refuse, chat) = (&daemon, &refuse, &chat);
            scope.spawn(move || {
                let mut number = 0;
                while locked.elapsed() < hold {
                    number += 1;
                    let text = format!("say {client}-{number}");
                    let task = json!({"pool": "demo", "prompt": &text});
                    let answer = match client % 3 {
                        0 => timed(|| daemon.post("/api/v1/tasks", &task)),
                        1 => timed(|| daemon.post(chat, &json!({"content": &text}))),
                        _ => timed(|| {
                            daemon.post(
                                "/api/v1/workspaces/main/chats",
                                &json!({"role": "dev", "goal": &text}),
                            )
                        }),
                    };
                    refuse(text, &answer);
                }
            });
        }
        // What only reads is answered as ever.
        scope.spawn(|| {
            while locked.elapsed() < hold {
                for path in [
                    "/api/v1/fleet",
                    "/api/v1/tasks",
                    "/api/v1/workspaces/main/chats",
                ] {
                    assert_eq!(timed(|| daemon.get(path)).status, 200, "{path}");
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        eventually(LONG, "it is not ready", || drill.get("/readyz").0 == 503);
        // What has no such bound of its own is answered too.
        let stop = timed(|| daemon.post(&format!("{chat}/stop"), &json!({})));
        assert!(stop.status < 300 || is_later(&stop), "{stop:?}");
        let close = timed(|| daemon.request("DELETE", &chat, "", ""));
        assert!(close.status < 300 || is_later(&close), "{close:?}");
    });
    lock.execute_batch("ROLLBACK").expect("unlocked");
    eventually(LONG, "it is ready", || drill.get("/readyz").0 == 200);
    let refused = refused.into_inner().expect("no panic");
    assert!(refused.len() >= 6, "{refused:?}");
    let task = daemon.post(
        "/api/v1/tasks",
        &json!({"pool": "demo", "prompt": "say taken"}),
    );
    assert_eq!(task.status, 202, "{task:?}");
    let database = drill.database();
    for (table, column) in [("tasks", "prompt"), ("chats", "goal"), ("turns", "content")] {
        let sql = format!("SELECT {column} FROM {table}");
        let mut rows = database.prepare(&sql).expect(&sql);
        let found = rows
            .query_map([], |row| row.get::<_, String>(0))
            .expect("rows");
        for text in found {
            let text = text.expect("a text");
            assert!(!refused.contains(&text), "{table}: {text} was refused");
        }
    }
}

#[test]
fn a_disk_that_fills_among_many_requests_loses_none_and_doubles_none() {
    for round in 0..count(5) {
        let drill = crate::drill::Drill::with_supervisor(
            full_disk::POOLS,
            "journal = { min_free = \"64K\" }",
        );
        let running = full_disk::up(&drill);
        let state = full_disk::inside(&drill, &running);
        let token = fs::read_to_string(state.join("http.token")).expect("a token");
        let daemon = Daemon {
            running,
            address: drill.address(),
            token: token.trim().to_owned(),
        };
        let taken = Mutex::new(BTreeSet::new());
        let refused = Mutex::new(BTreeSet::new());
        // The rows of these tasks are what fills the disk.
        let long = "x".repeat(30_000);
        thread::scope(|scope| {
            for number in 0..200 {
                let (daemon, taken, refused, long) = (&daemon, &taken, &refused, &long);
                scope.spawn(move || {
                    let name = format!("say {number}");
                    let text = format!("{name}\n# {long}");
                    let task = json!({"pool": "demo", "prompt": &text});
                    let answer = timed(|| daemon.post("/api/v1/tasks", &task));
                    if answer.status == 202 {
                        taken.lock().expect("no panic").insert(name);
                    } else {
                        assert!(is_later(&answer), "{answer:?}");
                        refused.lock().expect("no panic").insert(name);
                    }
                });
            }
            thread::sleep(Duration::from_millis(20 + 37 * round as u64 % 200));
            let ballast = state.join("more");
            let mut file = fs::File::create(&ballast).expect("ballast");
            let piece = vec![0; 1 << 16];
            while std::io::Write::write_all(&mut file, &piece).is_ok() {}
        });
        fs::remove_file(state.join("more")).expect("removed");
        eventually(LONG, "it is ready again", || drill.get("/readyz").0 == 200);
        let (taken, refused) = (
            taken.into_inner().expect("no panic"),
            refused.into_inner().expect("no panic"),
        );
        eprintln!("{} taken, {} refused", taken.len(), refused.len());
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        let mut page = "/api/v1/tasks?limit=100".to_owned();
        loop {
            let tasks = daemon.get(&page).body;
            for task in tasks["items"].as_array().expect("a page") {
                let prompt = task["prompt"].as_str().expect("a prompt");
                *found
                    .entry(prompt.lines().next().unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
            let Some(after) = tasks["next"].as_str() else {
                break;
            };
            page = format!("/api/v1/tasks?limit=100&cursor={after}");
        }
        assert!(found.values().all(|number| *number == 1), "none twice");
        for name in &taken {
            assert!(found.contains_key(name), "taken and not there: {name}");
        }
        for name in &refused {
            assert!(!found.contains_key(name), "refused and there: {name}");
        }
        assert_eq!(found.len(), taken.len());
    }
}
