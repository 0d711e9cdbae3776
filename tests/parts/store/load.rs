//! A writer that is killed in the middle of its load: what it was answered is there, and nothing is
//! half there. The writer is this test binary again, which tells each version that it was answered.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use marshal_store::{Base, FileSelector, Server, Store};

use crate::store::suite::{append, at, put, text, ws};

/// Kills the writer after so many answers; gives the lines that it was answered.
pub(crate) fn killed(place: &str) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "store::load::writes_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("MARSHAL_TEST_STORE", place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a writer");
    let mut answered = Vec::new();
    let output = child.stdout.take().expect("its output");
    for line in BufReader::new(output).lines() {
        let line = line.expect("a line");
        if let Some(at) = line.find("answered ") {
            answered.push(line[at + 9..].to_owned());
        }
        if answered.len() == 40 {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("ended");
    assert!(answered.len() >= 40, "the writer ended by itself");
    answered
}

pub(crate) async fn check(store: &Store, answered: &[String]) {
    // Of one version: what the writer had under way may still come, from a server that outlives it.
    let file = store.file(at("log")).await.expect("a file").current;
    let log = text(store, "log", Some(file.v)).await;
    let lines: Vec<&str> = log.lines().collect();
    for line in answered {
        assert!(
            lines.contains(&line.as_str()),
            "{line} was answered and is lost"
        );
    }
    // Four writers had at most one each under way.
    assert!(
        lines.len() <= answered.len() + 4,
        "{} {}",
        lines.len(),
        answered.len()
    );
    assert_eq!(file.v, lines.len() as u64 + 1);
    for v in 1..=file.v {
        let got = store
            .get(FileSelector::Id(file.file), Some(v))
            .await
            .expect("every version");
        let content = got.content.expect("its content");
        let text = String::from_utf8_lossy(&content);
        assert_eq!(text.lines().count() as u64 + 1, v);
    }
    append(store, "afterwards").await;
}

#[tokio::test]
async fn a_killed_writer_of_sqlite_leaves_what_it_was_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let store = Store::open(&state).expect("a store");
    store.register(&ws()).await.expect("registered");
    put(&store, "log", Base::New, "").await.expect("v1");
    store.close().await;
    let answered = killed(&state.display().to_string());
    check(&Store::open(&state).expect("a store"), &answered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the tests beside it, which kill it"]
async fn writes_until_it_is_killed() {
    let place = std::env::var("MARSHAL_TEST_STORE").expect("a store");
    let store = if place.starts_with('/') {
        Store::open(place.as_ref()).expect("a store")
    } else {
        let server = Server::new(&place, None).expect("a server");
        Store::connect(&server).await.expect("a store")
    };
    let store = std::sync::Arc::new(store);
    let writers = (0..4).map(|writer| {
        let store = std::sync::Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..10_000 {
                let line = format!("{writer}.{n}");
                append(&store, &line).await;
                println!("answered {line}");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer");
    }
}
