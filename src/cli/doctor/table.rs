//! The table of a host's features: one text, or one JSON object for each row.
//!
//! Pure. Messages of the host are untrusted text.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::doctor::Row;

/// Columns of "needed by".
const NEEDED_BY: usize = 36;
/// The least columns of "found".
const FOUND_WIDTH: usize = 24;
/// Columns of a hint.
const HINT: usize = 400;

/// The table, with each hint below its row. `width` is in columns.
pub(super) fn render(rows: &[Row], width: usize) -> String {
    let heads = ["feature", "needed by", "result", "errno", "found"].map(str::to_owned);
    let mut lines = vec![(heads, None)];
    for row in rows {
        let cells = [
            row.query.feature.as_str().to_owned(),
            if row.required_by.is_empty() {
                "-".to_owned()
            } else {
                escape_for_display(&row.required_by.join(", "), NEEDED_BY)
            },
            row.status.as_str().to_owned(),
            row.result.errno.map_or("-".to_owned(), name),
            found_text(row),
        ];
        lines.push((cells, row.result.hint.as_deref()));
    }
    let mut widths = [0; 5];
    for (cells, _) in &lines {
        for (widest, cell) in widths.iter_mut().zip(cells) {
            *widest = (*widest).max(cell.width());
        }
    }
    let fixed: usize = widths[..4].iter().sum::<usize>() + 8;
    widths[4] = widths[4].min(width.saturating_sub(fixed).max(FOUND_WIDTH));
    let mut text = String::new();
    for (cells, hint) in &lines {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let shown = escape_for_display(cell, width);
            let gap = width.saturating_sub(shown.width()) + 2;
            line += &shown;
            line += &" ".repeat(gap);
        }
        text += line.trim_end();
        text.push('\n');
        if let Some(hint) = hint {
            let _ = writeln!(text, "  hint: {}", escape_for_display(hint, HINT));
        }
    }
    text
}

/// One row as an object. Messages of the host are not escaped.
pub(super) fn json(row: &Row) -> serde_json::Value {
    serde_json::json!({
        "feature": row.query.feature.as_str(),
        "at": row.query.at,
        "needed_by": row.required_by,
        "result": row.status.as_str(),
        "errno": row.result.errno.map(name),
        "found": row.result.detail,
        "hint": row.result.hint,
    })
}

fn found_text(row: &Row) -> String {
    match (&row.query.at, row.result.detail.is_empty()) {
        (Some(at), true) => at.clone(),
        (Some(at), false) if !row.result.detail.contains(at) => {
            format!("{}, {at}", row.result.detail)
        }
        _ => row.result.detail.clone(),
    }
}

/// The name of an error number.
fn name(errno: i32) -> String {
    match nix::errno::Errno::from_raw(errno) {
        nix::errno::Errno::UnknownErrno => errno.to_string(),
        known => format!("{known:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_sandbox::doctor::{CheckStatus, Feature, FeatureQuery, ProbeResult};

    fn row(feature: Feature, detail: &str) -> Row {
        Row {
            query: FeatureQuery { feature, at: None },
            required_by: vec!["strict".to_owned(), "standard".to_owned()],
            status: CheckStatus::Missing,
            result: ProbeResult {
                errno: Some(libc::ENOSYS),
                detail: detail.to_owned(),
                hint: Some("do \u{1b}[2J this".to_owned()),
                ..ProbeResult::unknown()
            },
            degraded: None,
        }
    }

    #[test]
    fn every_row_names_feature_needs_result_errno_and_hint() {
        let text = render(&[row(Feature::PivotRoot, "pivot_root")], 100);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("feature     needed by         result   errno   found"));
        assert!(lines[1].starts_with("pivot_root  strict, standard  missing  ENOSYS  pivot_root"));
        assert!(lines[2].starts_with("  hint: do "), "{text}");
        let object = json(&row(Feature::PivotRoot, "pivot_root"));
        assert_eq!(object["errno"], "ENOSYS");
        assert_eq!(object["result"], "missing");
    }

    #[test]
    fn what_the_host_says_cannot_act_on_a_terminal() {
        let text = render(&[row(Feature::IdmapState, "\u{1b}[2J\u{9b}0m\nx")], 40);
        let acts = text
            .chars()
            .find(|c| *c != '\n' && marshal_model::untrusted::is_unsafe(*c));
        assert_eq!(acts, None, "{text:?}");
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert_eq!(name(4000), "4000");
    }
}
