//! One row a dialect, one column a behaviour: every cell is worked by the program itself, with a real
//! child in walls, and holds, or the protocol has none, which is seen as well.
//!
//! The table in `docs/conformance.md` is what was seen; `MARSHAL_CONFORMANCE_TABLE=write` writes it anew. Needs root
//! for the walls, and tclsh.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

mod agent;
mod bench;
#[allow(dead_code, reason = "the tests of chats use more of it")]
#[path = "../fleet/chat_client.rs"]
mod chat_client;
mod column;
#[allow(dead_code, reason = "shared with the tests of the fleet")]
#[path = "../fleet/drill.rs"]
mod drill;
mod row;

use column::Column;
use row::ROWS;

/// Has a row worked, and fails with everything that is known of each cell that failed.
fn passes(name: &str) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row");
    let failed: Vec<_> = row
        .cells()
        .iter()
        .zip(Column::ALL)
        .filter_map(|(cell, column)| Some((column.head(), cell.as_ref().err()?)))
        .collect();
    let names: Vec<_> = failed.iter().map(|(head, _)| *head).collect();
    let whole: Vec<_> = failed
        .iter()
        .map(|(head, why)| format!("===== {name}: {head}\n{why}"))
        .collect();
    assert!(failed.is_empty(), "{name}: {names:?}\n{}", whole.join("\n"));
}

#[test]
fn scaiflux() {
    passes("scaiflux");
}

#[test]
fn acp() {
    passes("acp");
}

#[test]
fn loaf() {
    passes("loaf");
}

#[test]
fn custom() {
    passes("custom");
}
