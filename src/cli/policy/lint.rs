//! `policy lint`: reports suspicious rules of policies.

use std::path::PathBuf;

use serde_json::json;

use super::PolicyCommandError;
use super::source::PolicySources;
use crate::cli::streams::Streams;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::lint::{Level, lint as look};

/// Columns shown of a text.
const TEXT: usize = 300;

/// `policy lint …`
#[derive(Debug, clap::Args)]
pub struct LintArgs {
    /// Policy files, or builtin:NAME for a built-in policy
    #[arg(required = true, value_name = "FILE")]
    pub policies: Vec<PathBuf>,
}

pub(super) fn lint(
    args: &LintArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let mut warnings = 0;
    for path in &args.policies {
        let name = path.to_str().and_then(|path| path.strip_prefix("builtin:"));
        let chosen = match name {
            Some(name) => around.by_name(name, streams)?,
            None => around.by_path(path)?,
        };
        let texts: Vec<&str> = chosen
            .layers
            .iter()
            .map(|(_, text)| text.as_str())
            .collect();
        let found = look(&texts, &chosen.policy);
        warnings += found.iter().filter(|f| f.level == Level::Warning).count();
        let named = escape_for_display(chosen.policy.name(), TEXT);
        for finding in &found {
            if json {
                let document = json!({
                    "policy": chosen.policy.name(),
                    "level": finding.level.as_str(),
                    "code": finding.code,
                    "rule": finding.rule,
                    "text": finding.text,
                });
                streams.out.json(&document.to_string());
                continue;
            }
            let rule = finding.rule.as_ref();
            let rule = rule.map_or_else(String::new, |rule| {
                format!(", rule {}", escape_for_display(rule, TEXT))
            });
            streams.out.line(&format!(
                "{} [{}] {named}{rule}: {}",
                finding.level.as_str(),
                finding.code,
                escape_for_display(&finding.text, TEXT)
            ));
        }
        if !json && found.is_empty() {
            streams.out.line(&format!("{named}: nothing found"));
        }
    }
    Ok(u8::from(warnings > 0))
}
