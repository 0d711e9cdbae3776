//! `[approval]` of a policy: its approval settings, merged over all of its layers.
//!
//! Each layer can only make them stricter. Must not know who the approvers are, nor how they are
//! reached.

use std::time::Duration;

use super::error::LoadError;
use super::layers::Layer;
use super::load::invalid_value;
use marshal_model::limits::APPROVALS_PER_POOL;
use marshal_model::{OnTimeout, RememberScope};

/// A policy's approval settings; `None` where no layer sets one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalSettings {
    /// The maximum time that an approval waits.
    pub timeout: Option<Duration>,
    /// The decision when nobody answers in time.
    pub on_timeout: Option<OnTimeout>,
    /// How many approvals of a pool may be pending at the same time, at least 1.
    pub max_pending: Option<usize>,
    /// The approvers: `owner`, or names of tokens. An empty list: nobody.
    pub approvers: Option<Vec<String>>,
    /// The longest time for which an answer may be remembered.
    pub remember: Option<RememberScope>,
}

/// The strictest value of each setting over all layers.
pub(super) fn merge_layers(layers: &[Layer]) -> Result<ApprovalSettings, LoadError> {
    let mut all = ApprovalSettings::default();
    for layer in layers {
        let (name, own) = (&layer.name, &layer.document.approval);
        if let Some(seconds) = own.timeout_s {
            if seconds == 0 {
                let expected = "a number of seconds from 1";
                return Err(invalid_value(name, "approval.timeout_s", "0", expected));
            }
            least(&mut all.timeout, Duration::from_secs(seconds));
        }
        if let Some(word) = &own.on_timeout {
            let read = OnTimeout::parse(word).ok_or_else(|| {
                invalid_value(name, "approval.on_timeout", word, "`deny` or `deny_turn`")
            })?;
            all.on_timeout = all.on_timeout.max(Some(read));
        }
        if let Some(most) = own.max_pending {
            if !(1..=APPROVALS_PER_POOL).contains(&most) {
                let expected = format!("a number from 1 to {APPROVALS_PER_POOL}");
                let most = most.to_string();
                return Err(invalid_value(
                    name,
                    "approval.max_pending",
                    &most,
                    &expected,
                ));
            }
            least(&mut all.max_pending, most);
        }
        if let Some(word) = &own.remember {
            let read = RememberScope::parse(word).ok_or_else(|| {
                invalid_value(
                    name,
                    "approval.remember",
                    word,
                    "`never`, `turn` or `session`",
                )
            })?;
            least(&mut all.remember, read);
        }
        if let Some(approvers) = &own.approvers {
            if let Some(bad) = approvers.iter().find(|word| !is_approver(word)) {
                let expected = if bad.starts_with("group:") {
                    "`owner` or the name of a token; system groups cannot answer, so give their members a token"
                } else {
                    "`owner` or the name of a token, of small letters, digits and `-`"
                };
                return Err(invalid_value(name, "approval.approvers", bad, expected));
            }
            all.approvers = Some(match all.approvers.take() {
                None => approvers.clone(),
                Some(mut both) => {
                    both.retain(|word| approvers.contains(word));
                    both
                }
            });
        }
    }
    Ok(all)
}

fn least<T: Ord>(so_far: &mut Option<T>, own: T) {
    *so_far = Some(match so_far.take() {
        Some(other) => other.min(own),
        None => own,
    });
}

fn is_approver(word: &str) -> bool {
    (1..=32).contains(&word.len())
        && !word.starts_with('-')
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
