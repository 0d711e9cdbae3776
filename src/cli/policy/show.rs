//! `policy show`: prints the text of a policy.
//!
//! Must not know what a text means.

use serde_json::json;

use super::PolicyCommandError;
use super::source::PolicySources;
use crate::cli::policies;
use crate::cli::streams::Streams;
use marshal_model::untrusted::escape_for_display as safe;
use marshal_policy::builtin_text;

/// Columns shown of a name.
const NAME: usize = 120;

/// `policy show …`
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// A [policy.NAME] of the configuration, or a built-in policy: autonomous, developer, ci, reviewer, guard or secrets
    pub name: String,
}

pub(super) fn show(
    args: &ShowArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let builtin = args.name.strip_prefix("builtin:");
    let config = around.load(streams)?;
    let text = match builtin {
        None if config.policies.contains_key(&args.name) => {
            let source =
                policies::source(&config, &args.name).map_err(PolicyCommandError::Usage)?;
            source.text
        }
        _ => builtin_text(builtin.unwrap_or(&args.name))
            .ok_or_else(|| {
                let name = safe(&args.name, NAME);
                PolicyCommandError::Usage(format!(
                    "there is no policy {name:?}: it is not built in (autonomous, developer, ci, reviewer, guard, secrets), \
                    and the configuration has no [policy.{name}]"
                ))
            })?
            .to_owned(),
    };
    if json {
        let document = json!({"name": args.name, "text": text});
        streams.out.json(&document.to_string());
    } else {
        for line in text.lines() {
            streams.out.line(line);
        }
    }
    Ok(0)
}
