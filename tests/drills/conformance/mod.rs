//! One row a dialect, one column a behaviour: every cell is worked by the program itself, with a real
//! child in a sandbox, and holds, or the protocol has none, which is seen as well.
//!
//! The table in `docs/conformance.md` is what was seen; `MARSHAL_CONFORMANCE_TABLE=write` writes it anew. Needs root
//! for the sandbox, and tclsh.

mod agent;
mod bench;
mod column;
mod page;
mod row;
mod tool;

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

/// All rows are worked here if not by their own tests, a few at the same time.
#[test]
fn the_committed_table_is_what_was_seen() {
    std::thread::scope(|scope| {
        for row in &ROWS {
            scope.spawn(|| row.cells().len());
        }
    });
    let failed: Vec<_> = ROWS
        .iter()
        .filter(|row| row.cells().iter().any(Result::is_err))
        .map(|row| row.name)
        .collect();
    assert!(
        failed.is_empty(),
        "cells failed, see the tests of {failed:?}"
    );
    page::compare(&page::render(&ROWS));
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

#[test]
fn skillpilot() {
    passes("skillpilot");
}

#[test]
fn claude() {
    passes("claude");
}

#[test]
fn codex() {
    passes("codex");
}
