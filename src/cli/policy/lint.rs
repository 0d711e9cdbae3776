//! `policy lint`: what is suspicious in policies.

use std::path::PathBuf;

use serde_json::json;

use super::Fault;
use super::source::Around;
use crate::cli::streams::Streams;
use crate::model::foreign::show;
use crate::policy::lint::{Level, lint as look};

/// Columns of a foreign text.
const TEXT: usize = 300;

/// `policy lint …`
#[derive(Debug, clap::Args)]
pub struct LintArgs {
    /// Policy files, or with builtin:NAME one that is built in
    #[arg(required = true, value_name = "FILE")]
    pub policies: Vec<PathBuf>,
}

pub(super) fn lint(
    args: &LintArgs,
    around: &Around<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, Fault> {
    let mut warnings = 0;
    for path in &args.policies {
        let name = path.to_str().and_then(|path| path.strip_prefix("builtin:"));
        let chosen = match name {
            Some(name) => around.named(name, streams)?,
            None => around.file(path)?,
        };
        let texts: Vec<&str> = chosen
            .layers
            .iter()
            .map(|(_, text)| text.as_str())
            .collect();
        let found = look(&texts, &chosen.policy);
        warnings += found.iter().filter(|f| f.level == Level::Warning).count();
        let named = show(chosen.policy.name(), TEXT);
        for finding in &found {
            if json {
                let document = json!({
                    "policy": chosen.policy.name(),
                    "level": finding.level.word(),
                    "code": finding.code,
                    "rule": finding.rule,
                    "text": finding.text,
                });
                streams.out.json(&document.to_string());
                continue;
            }
            let rule = finding.rule.as_ref();
            let rule = rule.map_or_else(String::new, |rule| format!(", rule {}", show(rule, TEXT)));
            streams.out.line(&format!(
                "{} [{}] {named}{rule}: {}",
                finding.level.word(),
                finding.code,
                show(&finding.text, TEXT)
            ));
        }
        if !json && found.is_empty() {
            streams.out.line(&format!("{named}: nothing found"));
        }
    }
    Ok(u8::from(warnings > 0))
}
