//! Deciders of the site's own.

use std::time::Duration;

use crate::meters::{counter, histogram};
use crate::names;
use marshal_model::{DelegateError, PoolName};

/// A pool's delegate was asked.
#[derive(Debug)]
pub struct DelegateQueried<'a> {
    /// Whose.
    pub pool: &'a PoolName,
    /// Its name.
    pub delegate: &'a str,
    /// How long it took, the wait for its turn included.
    pub took: Duration,
    /// Why it gave no decision, and what an operator should know of that; nothing of this goes to
    /// the agent.
    pub error: Option<(DelegateError, &'a str)>,
}

impl DelegateQueried<'_> {
    /// Counts, and logs an error.
    pub fn emit(self) {
        histogram(&names::DELEGATE_SECONDS, &[self.pool.as_str()]).record(self.took);
        if let Some((error, why)) = self.error {
            counter(&names::DELEGATE_ERRORS, &[self.pool.as_str(), error.word()]).increment(1);
            tracing::warn!(pool = %self.pool, delegate = self.delegate, %error, why, took = ?self.took, "a delegate gave no decision: denied");
        }
    }
}
