//! The store of file versions.

use std::time::Duration;

use crate::labels::{StoreOperation, StoreResult};
use crate::meters::{counter, histogram};
use crate::names;

/// An operation on the store ended. Not logged: its caller gets the error.
#[derive(Debug)]
pub struct StoreOperationEnded {
    /// The operation.
    pub operation: StoreOperation,
    /// Its result.
    pub result: StoreResult,
    /// How long it took.
    pub took: Duration,
}

impl StoreOperationEnded {
    /// Counts and observes.
    pub fn emit(self) {
        let operation = self.operation.as_str();
        counter(&names::STORE_OPERATIONS, &[operation, self.result.as_str()]).increment(1);
        histogram(&names::STORE_SECONDS, &[operation]).record(self.took);
    }
}
