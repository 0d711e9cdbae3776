//! Hooks: what people were told, and what they were not. No address and no message is in any of
//! these.

use super::WIDTH;
use crate::labels::HookResult;
use crate::meters::counter;
use crate::names;
use marshal_model::untrusted::escape_for_display;

/// A message was taken, or given up.
#[derive(Debug)]
pub struct HookMessageFinished<'a> {
    /// Which hook.
    pub hook: &'a str,
    /// What became of it.
    pub result: HookResult,
    /// Why it was given up; may hold foreign text.
    pub why: &'a str,
}

impl HookMessageFinished<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::HOOK_MESSAGES, &[self.hook, self.result.word()]).increment(1);
        let (hook, why) = (self.hook, escape_for_display(self.why, WIDTH));
        match self.result {
            HookResult::Delivered => tracing::debug!(hook, "a hook told"),
            result => tracing::warn!(hook, %result, why, "a hook could not tell"),
        }
    }
}

/// Something happened again before the last time was told: only the newest will be shown.
#[derive(Debug)]
pub struct HookMessageSuppressed<'a> {
    /// Which hook.
    pub hook: &'a str,
}

impl HookMessageSuppressed<'_> {
    /// Counts.
    pub fn emit(self) {
        counter(&names::HOOK_HELD_BACK, &[self.hook]).increment(1);
    }
}
