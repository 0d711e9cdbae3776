//! Custom dialects, case by case: what a table can say beyond what ScaiFlux's table says, which the
//! cases of ScaiFlux itself show.

mod pi;
mod tables;
mod turns;

use std::path::Path;
use std::sync::Arc;

use marshal_config::{DialectDefinition, DialectName};
use marshal_dialect::OpenParams;

use crate::dialect::script::{Conversation, played};

/// The table of this text.
#[track_caller]
fn table(text: &str) -> Arc<DialectDefinition> {
    Arc::new(DialectDefinition::parse(text.as_bytes(), Path::new("test.toml")).unwrap())
}

fn opening(text: &str) -> OpenParams {
    OpenParams {
        workspace: "/workspace".to_owned(),
        dialect_definition: Some(table(text)),
        ..OpenParams::default()
    }
}

fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Plays the script by the table and compares what came of it, effect by effect.
#[track_caller]
fn check(text: &str, script: &str, expect: &str) {
    check_opened(&opening(text), script, expect);
}

#[track_caller]
fn check_opened(opening: &OpenParams, script: &str, expect: &str) {
    let talk = Conversation::opened(DialectName::Custom, opening);
    assert_eq!(lines(&played(talk, script)), lines(expect), "{script}");
}
