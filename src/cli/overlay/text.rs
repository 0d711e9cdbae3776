//! Shows changes: one line each, with a diff, or as JSON.
//!
//! Text of an agent is escaped. Must not know how a change is applied.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use similar::TextDiff;

use crate::cli::streams::Streams;
use marshal_engine::api::v1::OverlayChange;
use marshal_model::SessionId;
use marshal_model::untrusted::{escape_for_display, escape_json_for_terminal};
use marshal_sandbox::workspace::overlay::apply_plan::{
    ApplyPlan, PlannedChange, PlannedChangeKind,
};

/// Columns of a path, and of a line in a file.
const PATH: usize = 400;
const LINE: usize = 2000;
/// Context lines around a change.
const CONTEXT: usize = 3;

/// Shows every change at or below one of `paths` (all if empty), with its diff.
pub(super) fn diff(plan: &ApplyPlan, paths: &[String], json: bool, streams: &mut Streams) {
    if !json {
        list_outside(plan, streams);
    }
    for item in plan
        .changes
        .iter()
        .filter(|item| is_at(item.path.raw(), paths))
    {
        if json {
            let mut object = object(item);
            if let Some(text) = lines(item) {
                object.insert("diff".to_owned(), json!(text));
            }
            // The output may go to a file that a person views in a terminal later.
            streams.out.line(&escape_json_for_terminal(
                &Value::Object(object).to_string(),
            ));
            continue;
        }
        print_item(item, streams);
        for line in lines(item).unwrap_or_default().lines() {
            streams.out.line(&escape_for_display(line, LINE));
        }
    }
    cut(plan, streams);
}

/// Lists first what would take effect outside of the sandbox.
fn list_outside(plan: &ApplyPlan, streams: &mut Streams) {
    let outside = plan.changes.iter().filter_map(|item| {
        let what = item.outside?;
        Some((item.path.raw(), what))
    });
    crate::cli::outside::list(outside, &mut streams.out);
}

/// Shows every change on one line.
pub(super) fn list(plan: &ApplyPlan, json: bool, streams: &mut Streams) {
    if !json {
        list_outside(plan, streams);
    }
    for item in &plan.changes {
        if json {
            let object = Value::Object(object(item)).to_string();
            streams.out.line(&escape_json_for_terminal(&object));
        } else {
            print_item(item, streams);
        }
    }
    cut(plan, streams);
}

/// Reports what was done.
pub(super) fn print_result(
    what: &str,
    session: &SessionId,
    changes: usize,
    json: bool,
    streams: &mut Streams,
) {
    if json {
        let done = json!({ "session": session.as_str(), "done": what, "changes": changes });
        streams.out.json(&done.to_string());
    } else if what == "discarded" {
        streams
            .out
            .line(&format!("discarded the changes of {session}"));
    } else if changes == 0 {
        streams
            .out
            .line(&format!("{session} has no changes to apply"));
    } else {
        streams
            .out
            .line(&format!("applied {changes} changes of {session}"));
    }
}

fn cut(plan: &ApplyPlan, streams: &mut Streams) {
    if let Some(why) = &plan.incomplete {
        streams
            .err
            .line(&format!("note: {}", escape_for_display(why, PATH)));
    }
}

/// Whether a path is at or below one of `paths`, or these are none.
pub(in crate::cli) fn is_at(path: &str, paths: &[String]) -> bool {
    let is_at = |at: &String| {
        let at = at.trim_start_matches("./").trim_end_matches('/');
        let rest = path.strip_prefix(at);
        rest.is_some_and(|rest| at.is_empty() || rest.is_empty() || rest.starts_with('/'))
    };
    paths.is_empty() || paths.iter().any(is_at)
}

fn print_item(item: &PlannedChange, streams: &mut Streams) {
    let mut line = format!(
        "{:<8} {}",
        item.kind.as_str(),
        item.path.escape_for_display(PATH)
    );
    if let Some((before, after)) = item.modes {
        let _ = write!(line, "  ({before:03o} -> {after:03o})");
    }
    streams.out.line(&line);
    for (word, why) in [
        ("outside", &item.outside.map(str::to_owned)),
        ("refused", &item.refused),
        ("conflict", &item.conflict),
        ("asked", &item.approval_reason),
    ] {
        if let Some(why) = why {
            streams
                .out
                .line(&format!("    {word}: {}", escape_for_display(why, PATH)));
        }
    }
}

fn object(item: &PlannedChange) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    put("path", json!(item.path.raw()));
    put("change", json!(item.kind.as_str()));
    for (key, why) in [
        ("outside", &item.outside.map(str::to_owned)),
        ("refused", &item.refused),
        ("conflict", &item.conflict),
        ("asked", &item.approval_reason),
    ] {
        if let Some(why) = why {
            put(key, json!(why));
        }
    }
    if let Some((before, after)) = item.modes {
        put("mode_before", json!(format!("{before:03o}")));
        put("mode_after", json!(format!("{after:03o}")));
    }
    object
}

/// A change as JSON. The diff is included if it fits into `room`, which is reduced by its bytes.
pub(super) fn whole(item: &PlannedChange, lines_left: &mut usize) -> Option<OverlayChange> {
    let mut object = object(item);
    if let Some(text) = lines(item)
        && let Some(left) = lines_left.checked_sub(text.len())
    {
        *lines_left = left;
        object.insert("diff".to_owned(), json!(text));
    }
    serde_json::from_value(Value::Object(object)).ok()
}

/// The unified diff; `None` if the file is not text, or is too long.
fn lines(item: &PlannedChange) -> Option<String> {
    let (before, after) = item.texts.as_ref()?;
    let is_added = item.kind == PlannedChangeKind::Added;
    unified((before, after), item.path.raw(), is_added)
}

/// The unified diff of two texts of a file; `None` if they are not text, or equal.
pub(in crate::cli) fn unified(
    (before, after): (&[u8], &[u8]),
    path: &str,
    is_added: bool,
) -> Option<String> {
    let before = std::str::from_utf8(before).ok()?;
    let after = std::str::from_utf8(after).ok()?;
    if before.contains('\0') || after.contains('\0') {
        return None;
    }
    let name = |side: &str| format!("{side}/{path}");
    let nothing = "/dev/null".to_owned();
    let old = if is_added { nothing } else { name("a") };
    let diff = TextDiff::configure()
        .timeout(std::time::Duration::from_secs(2))
        .diff_lines(before, after);
    let text = diff
        .unified_diff()
        .context_radius(CONTEXT)
        .header(&old, &name("b"))
        .to_string();
    (!text.is_empty()).then_some(text)
}
