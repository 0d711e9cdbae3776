//! Hooks: messages that were delivered, failed or were replaced. No event contains an address or a
//! message.

use super::WIDTH;
use crate::labels::HookResult;
use crate::meters::counter;
use crate::names;
use marshal_model::untrusted::escape_for_display;

/// A message was delivered, or given up.
#[derive(Debug)]
pub struct HookMessageFinished<'a> {
    /// The hook's name.
    pub hook: &'a str,
    /// The result.
    pub result: HookResult,
    /// Why it was given up; may contain foreign text.
    pub why: &'a str,
}

impl HookMessageFinished<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::HOOK_MESSAGES, &[self.hook, self.result.as_str()]).increment(1);
        let (hook, why) = (self.hook, escape_for_display(self.why, WIDTH));
        match self.result {
            HookResult::Delivered => tracing::debug!(hook, "hook message delivered"),
            result => tracing::warn!(hook, %result, why, "hook message not delivered"),
        }
    }
}

/// An event replaced an older one of the same kind that was not sent yet.
#[derive(Debug)]
pub struct HookMessageSuppressed<'a> {
    /// The hook's name.
    pub hook: &'a str,
}

impl HookMessageSuppressed<'_> {
    /// Counts.
    pub fn emit(self) {
        counter(&names::HOOK_HELD_BACK, &[self.hook]).increment(1);
    }
}
