//! Shows the evaluation of a request as a tree: its parts, their facts and the rules as written.

use serde_json::{Value, json};

use super::source::SelectedPolicy;
use crate::cli::streams::Streams;
use marshal_model::UntrustedText;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_policy::{Part, PolicyDecision, ResolvedPath};

/// Columns shown of a text.
const TEXT: usize = 200;

/// A rule as written, with the name of its layer.
struct RuleText<'c> {
    layer: &'c str,
    table: toml::Table,
}

fn find<'c>(chosen: &'c SelectedPolicy, id: &str) -> Option<RuleText<'c>> {
    chosen.layers.iter().find_map(|(layer, text)| {
        let table: toml::Table = text.parse().ok()?;
        let rules = table.get("rule")?.as_array()?;
        let of_id = |rule: &&toml::Value| rule.get("id").and_then(|v| v.as_str()) == Some(id);
        let rule = rules.iter().find(of_id)?;
        Some(RuleText {
            layer,
            table: rule.as_table()?.clone(),
        })
    })
}

/// The ids of all rules that applied, each once.
fn applied_rules(judgement: &PolicyDecision) -> Vec<&String> {
    let mut ids: Vec<&String> = Vec::new();
    let of_parts = judgement.facts.parts.iter().flat_map(|part| &part.rules);
    for id in judgement.rules.iter().chain(of_parts) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// The rules that applied, as written. Settings are left out: they are not rules.
pub(super) fn rules(chosen: &SelectedPolicy, judgement: &PolicyDecision) -> Vec<Value> {
    let ids = applied_rules(judgement).into_iter();
    ids.filter_map(|id| {
        let written = find(chosen, id)?;
        Some(json!({"id": id, "layer": written.layer, "rule": written.table}))
    })
    .collect()
}

/// The reason for the decision on a part.
pub(super) fn why(part: &Part) -> String {
    let rules: Vec<_> = part.rules.iter().map(|id| safe(id, TEXT)).collect();
    if rules.is_empty() {
        "no rule applies, so the policy's default decides".to_owned()
    } else {
        format!("rules that apply: {}", rules.join(", "))
    }
}

/// Shows the tree.
pub(super) fn show(
    chosen: &SelectedPolicy,
    judgement: &PolicyDecision,
    led: &[ResolvedPath],
    streams: &mut Streams,
) {
    for line in lines(chosen, judgement, led) {
        streams.out.line(&line);
    }
}

fn lines(chosen: &SelectedPolicy, judgement: &PolicyDecision, led: &[ResolvedPath]) -> Vec<String> {
    let mut lines = vec![
        format!("{}  {}", judgement.decision, judgement.reason),
        format!(
            "policy {} sha256 {}, decided by {}",
            safe(chosen.policy.name(), TEXT),
            chosen.sha256,
            judgement.decided_by
        ),
    ];
    if let Some(why) = &judgement.facts.not_plain {
        lines.push(format!(
            "the command is not plain, so no rule can allow it: {}",
            safe(why, TEXT)
        ));
    }
    for (place, part) in judgement.facts.parts.iter().enumerate() {
        lines.push(format!("part {}: {}", place + 1, part.decision));
        for variable in &part.env {
            lines.push(format!(
                "  | environment: {}",
                variable.escape_for_display(TEXT)
            ));
        }
        for word in &part.words {
            lines.push(format!("  | {}", word.escape_for_display(TEXT)));
        }
        for redirect in &part.redirects {
            lines.push(format!(
                "  | redirect: {}",
                redirect.escape_for_display(TEXT)
            ));
        }
        lines.push(format!("  {}", why(part)));
    }
    for led in led {
        let side = if led.inside { "inside" } else { "outside" };
        let (word, to) = (
            led.word.escape_for_display(TEXT),
            led.to.escape_for_display(TEXT),
        );
        lines.push(format!(
            "path {word} leads to {to}, {side} of the workspace"
        ));
    }
    for id in applied_rules(judgement) {
        let Some(written) = find(chosen, id) else {
            lines.push(format!(
                "{}: a setting or a limit of the policy",
                safe(id, TEXT)
            ));
            continue;
        };
        lines.push(format!(
            "rule {} of {}",
            safe(id, TEXT),
            safe(written.layer, TEXT)
        ));
        let keys = written.table.iter();
        for (key, value) in
            keys.filter(|(key, _)| !matches!(key.as_str(), "id" | "match" | "not_match"))
        {
            let value = UntrustedText::new(value.to_string());
            lines.push(format!(
                "  {} = {}",
                safe(key, TEXT),
                value.escape_for_display(TEXT)
            ));
        }
    }
    lines
}
