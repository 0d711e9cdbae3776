//! How a request is judged, as a tree: its parts, what is known of each, the rules as written.

use serde_json::{Value, json};

use super::source::Chosen;
use crate::cli::streams::Streams;
use crate::model::Foreign;
use crate::model::foreign::show as safe;
use crate::policy::{Judgement, Led, Part};

/// Columns of a foreign text.
const TEXT: usize = 200;

/// A rule as it is written, with the layer that has it.
struct Written<'c> {
    layer: &'c str,
    table: toml::Table,
}

fn find<'c>(chosen: &'c Chosen, id: &str) -> Option<Written<'c>> {
    chosen.layers.iter().find_map(|(layer, text)| {
        let table: toml::Table = text.parse().ok()?;
        let rules = table.get("rule")?.as_array()?;
        let of_id = |rule: &&toml::Value| rule.get("id").and_then(|v| v.as_str()) == Some(id);
        let rule = rules.iter().find(of_id)?;
        Some(Written {
            layer,
            table: rule.as_table()?.clone(),
        })
    })
}

/// Everything that applied, each once.
fn applied(judgement: &Judgement) -> Vec<&String> {
    let mut ids: Vec<&String> = Vec::new();
    let of_parts = judgement.facts.parts.iter().flat_map(|part| &part.rules);
    for id in judgement.rules.iter().chain(of_parts) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// The rules that applied, as they are written. Settings are no rules.
pub(super) fn rules(chosen: &Chosen, judgement: &Judgement) -> Vec<Value> {
    let ids = applied(judgement).into_iter();
    ids.filter_map(|id| {
        let written = find(chosen, id)?;
        Some(json!({"id": id, "layer": written.layer, "rule": written.table}))
    })
    .collect()
}

/// Why a part is judged as it is.
pub(super) fn why(part: &Part) -> String {
    let rules: Vec<_> = part.rules.iter().map(|id| safe(id, TEXT)).collect();
    if rules.is_empty() {
        "no rule applies: the policy's default".to_owned()
    } else {
        format!("rules that apply: {}", rules.join(", "))
    }
}

/// Shows the tree.
pub(super) fn show(chosen: &Chosen, judgement: &Judgement, led: &[Led], streams: &mut Streams) {
    for line in lines(chosen, judgement, led) {
        streams.out.line(&line);
    }
}

fn lines(chosen: &Chosen, judgement: &Judgement, led: &[Led]) -> Vec<String> {
    let mut lines = vec![
        format!("{}  {}", judgement.decision, judgement.reason),
        format!(
            "policy {} sha256 {}, decided by {}",
            safe(chosen.policy.name(), TEXT),
            chosen.sha256,
            judgement.by
        ),
    ];
    if let Some(why) = &judgement.facts.not_plain {
        lines.push(format!(
            "not plain, so no rule can allow it: {}",
            safe(why, TEXT)
        ));
    }
    for (place, part) in judgement.facts.parts.iter().enumerate() {
        lines.push(format!("part {}: {}", place + 1, part.decision));
        for variable in &part.env {
            lines.push(format!("  | environment: {}", variable.show(TEXT)));
        }
        for word in &part.words {
            lines.push(format!("  | {}", word.show(TEXT)));
        }
        for redirect in &part.redirects {
            lines.push(format!("  | redirect: {}", redirect.show(TEXT)));
        }
        lines.push(format!("  {}", why(part)));
    }
    for led in led {
        let side = if led.inside { "inside" } else { "outside" };
        let (word, to) = (led.word.show(TEXT), led.to.show(TEXT));
        lines.push(format!(
            "path {word} leads to {to}, {side} of the workspace"
        ));
    }
    for id in applied(judgement) {
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
            let value = Foreign::new(value.to_string());
            lines.push(format!("  {} = {}", safe(key, TEXT), value.show(TEXT)));
        }
    }
    lines
}
