//! Delegates: external deciders of a site.

use std::time::Duration;

use crate::meters::{counter, histogram};
use crate::names;
use marshal_model::{DelegateError, PoolName};

/// A pool's delegate was consulted.
#[derive(Debug)]
pub struct DelegateQueried<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The delegate's name.
    pub delegate: &'a str,
    /// How long it took, including the wait in its queue.
    pub took: Duration,
    /// Why it gave no decision, with a detail for the operator. The agent never sees it.
    pub error: Option<(DelegateError, &'a str)>,
}

impl DelegateQueried<'_> {
    /// Observes the duration, and counts and logs an error.
    pub fn emit(self) {
        histogram(&names::DELEGATE_SECONDS, &[self.pool.as_str()]).record(self.took);
        if let Some((error, why)) = self.error {
            counter(
                &names::DELEGATE_ERRORS,
                &[self.pool.as_str(), error.as_str()],
            )
            .increment(1);
            tracing::warn!(pool = %self.pool, delegate = self.delegate, %error, why, took = ?self.took, "a delegate gave no decision, so the request is denied");
        }
    }
}
