//! The OpenAPI document and the table of routes in the docs are what the program serves.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::api::api_daemon::{ApiDaemon, POOL};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn api_output(what: &str) -> String {
    let marshal = env!("CARGO_BIN_EXE_marshal");
    let ran = Command::new(marshal).args(["api", what]).output();
    let ran = ran.expect("marshal starts");
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn the_committed_document_is_fresh_and_the_served_one_is_the_same() {
    let committed =
        fs::read_to_string(root().join("docs/openapi.json")).expect("docs/openapi.json");
    assert_eq!(
        committed,
        api_output("schema"),
        "refresh it: marshal api schema > docs/openapi.json"
    );
    let served = ApiDaemon::of(POOL).see("/openapi.json");
    let committed: serde_json::Value = serde_json::from_str(&committed).expect("JSON");
    assert_eq!(served, committed);
}

#[test]
fn the_docs_have_every_route() {
    let page = fs::read_to_string(root().join("docs/rest.md")).expect("docs/rest.md");
    let table = api_output("routes");
    assert!(
        page.contains(&table),
        "put this into docs/rest.md (marshal api routes):\n{table}"
    );
}
