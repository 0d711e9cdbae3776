//! `policy status` and `policy reload`: the policies in force in the running supervisor.
//!
//! Owns their layout. Must not know how a request to the supervisor is sent. The text is safe to
//! show, whatever the supervisor sent.

use std::path::Path;

use crate::cli::event_text::time;
use crate::cli::exit::Exit;
use crate::cli::streams::Streams;
use crate::cli::supervisor_client::Client;
use marshal_engine::api::policies::{PolicyStatusView, PoolPolicyView, ShadowPolicyView};
use marshal_engine::api::time::Time;
use marshal_model::untrusted::escape_for_display;

/// Columns of a name.
const NAME: usize = 80;
/// Columns of a path.
const PATH: usize = 300;
/// Columns of an error.
const WHY: usize = 2000;
/// Characters shown of a digest.
const DIGEST: usize = 12;

/// Prints the policies in force, after a reload if `reload` is set. With `json` as one object in a
/// line.
pub(in crate::cli) async fn run(
    state: &Path,
    reload: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let status = match Client::new(state).policies(reload).await {
        Ok(status) => status,
        Err(error) => return error.report(streams),
    };
    if json {
        let line = serde_json::to_string(&status).unwrap_or_default();
        streams.out.json(&line);
    } else {
        streams.out.text(&render(&status));
    }
    Exit::Done
}

fn render(status: &PolicyStatusView) -> String {
    let mut lines = Vec::new();
    for view in &status.pools {
        pool(view, &mut lines);
    }
    match &status.last_reload {
        None => lines.push("last reload: none since the start".to_owned()),
        Some(last) => {
            let (at, cause) = (time(last.at.0), escape_for_display(&last.cause, NAME));
            let result = match (&last.error, last.pools_changed) {
                (Some(_), _) => "failed".to_owned(),
                (None, Some(1)) => "ok, 1 pool changed".to_owned(),
                (None, count) => format!("ok, {} pools changed", count.unwrap_or(0)),
            };
            lines.push(format!("last reload: {result} ({cause}, {at})"));
        }
    }
    if let Some(Time(since)) = status.stale_since {
        let text = format!(
            "STALE since {}: the files have errors; the policies above stay in force",
            time(since)
        );
        lines.push(text);
        let error = status
            .last_reload
            .as_ref()
            .and_then(|last| last.error.as_ref());
        lines.extend(error.map(|error| format!("  {}", escape_for_display(error, WHY))));
    }
    if !status.watched {
        lines.push(
            "the files are not watched: after a change, send SIGHUP or use `policy reload`"
                .to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

fn pool(view: &PoolPolicyView, lines: &mut Vec<String>) {
    let mut line = format!(
        "{}: {} {}, loaded {}, {} rules",
        escape_for_display(&view.pool, NAME),
        escape_for_display(&view.policy, NAME),
        digest(&view.sha256),
        time(view.loaded_at.0),
        view.rules
    );
    if !view.guard {
        line += ", without the guard";
    }
    if !view.enforced {
        line += ", not enforced (enforce = false)";
    }
    lines.push(line);
    if view.files.is_empty() {
        lines.push("  built in".to_owned());
    }
    for file in &view.files {
        lines.push(format!("  from {}", escape_for_display(file, PATH)));
    }
    if !view.layers.is_empty() {
        let names: Vec<_> = view
            .layers
            .iter()
            .map(|name| escape_for_display(name, NAME))
            .collect();
        lines.push(format!("  layers for tasks: {}", names.join(", ")));
    }
    if let Some(of) = &view.shadow {
        lines.push(shadow(of));
    }
}

fn shadow(of: &ShadowPolicyView) -> String {
    let differences: Vec<_> = of
        .differences
        .iter()
        .map(|of| {
            format!(
                "{} -> {}: {}",
                escape_for_display(&of.from, NAME),
                escape_for_display(&of.to, NAME),
                of.count
            )
        })
        .collect();
    let differences = if differences.is_empty() {
        "no difference".to_owned()
    } else {
        differences.join(", ")
    };
    format!(
        "  shadow {} {}: {} evaluated, {differences}",
        escape_for_display(&of.policy, NAME),
        digest(&of.sha256),
        of.judged
    )
}

fn digest(sha256: &str) -> String {
    escape_for_display(sha256, usize::MAX)
        .chars()
        .take(DIGEST)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_engine::api::policies::{DifferenceView, LastReloadView};

    #[test]
    fn what_is_stale_is_said_with_why_and_nothing_acts_on_the_terminal() {
        let status = PolicyStatusView {
            pools: vec![PoolPolicyView {
                pool: "demo".to_owned(),
                policy: "own\u{1b}[2J".to_owned(),
                sha256: "0123456789abcdef".to_owned(),
                loaded_at: Time(1_700_000_000_000_000),
                files: vec!["/etc/own.toml".to_owned()],
                rules: 7,
                guard: true,
                enforced: false,
                layers: vec!["night".to_owned()],
                shadow: Some(ShadowPolicyView {
                    policy: "ci".to_owned(),
                    sha256: "ffff".to_owned(),
                    judged: 3,
                    differences: vec![DifferenceView {
                        from: "allow".to_owned(),
                        to: "deny".to_owned(),
                        count: 2,
                    }],
                }),
            }],
            last_reload: Some(LastReloadView {
                at: Time(1_700_000_000_000_000),
                cause: "file".to_owned(),
                pools_changed: None,
                error: Some("policy `own`, line 3: unknown field `alow`".to_owned()),
            }),
            stale_since: Some(Time(1_700_000_000_000_000)),
            watched: false,
        };
        let text = render(&status);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        for part in [
            "0123456789ab,",
            "not enforced",
            "from /etc/own.toml",
            "layers for tasks: night",
            "3 evaluated, allow -> deny: 2",
            "STALE since 2023-11-14",
            "unknown field `alow`",
            "not watched",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
