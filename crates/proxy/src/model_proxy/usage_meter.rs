//! The usage meter: asked before a request is forwarded, notified afterwards of the tokens used.
//!
//! Must not know budgets, sessions or prices: the owner of a child's model proxies supplies its own
//! implementation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::route::{ModelRequest, Refusal, Tokens};
use marshal_model::limits::UNREAD_BYTES_PER_TOKEN;

/// What a request may cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BillingInfo {
    /// What the request wants of the model; untrusted. Filled only if the meter needs it.
    pub model_request: ModelRequest,
    /// It only reads or counts: it has no body, or requests a token count.
    pub is_free: bool,
}

/// Checks and records what the requests of a child cost. Called for every request, so it must not
/// block.
pub trait UsageMeter: std::fmt::Debug + Send + Sync {
    /// Whether it needs to know what a request wants of the model.
    fn needs_request_details(&self) -> bool;

    /// Whether a request may be forwarded.
    ///
    /// # Errors
    /// A [`Refusal`] for the sender of the request.
    fn check_request(&self, bill: &BillingInfo) -> Result<(), Refusal>;

    /// Records a request that ended, however it ended.
    fn record_usage(&self, bill: &BillingInfo, tokens: Tokens);
}

/// A meter that counts nothing and allows everything.
#[derive(Debug)]
pub struct Unmetered;

impl UsageMeter for Unmetered {
    fn needs_request_details(&self) -> bool {
        false
    }

    fn check_request(&self, _: &BillingInfo) -> Result<(), Refusal> {
        Ok(())
    }

    fn record_usage(&self, _: &BillingInfo, _: Tokens) {}
}

/// The charge of a request in progress.
#[derive(Debug)]
pub(super) struct MeteredRequest {
    usage_meter: Arc<dyn UsageMeter>,
    billing: BillingInfo,
    /// Bytes of the request body.
    request_bytes: u64,
    /// Bytes of the response body so far.
    response_bytes: u64,
    head: ResponseHead,
    /// Whether the request was handed to a connection.
    is_sent: Arc<AtomicBool>,
    /// Whether the response is complete.
    is_complete: bool,
    /// Whether the upstream cut the response, not the client.
    is_cut_by_upstream: bool,
}

/// Status of a response, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseHead {
    /// No response arrived: what the request cost is unknown.
    Missing,
    /// It costs something, even if no usage can be read.
    Success,
    /// It is free.
    Error,
}

impl MeteredRequest {
    pub(super) fn new(meter: Arc<dyn UsageMeter>, bill: BillingInfo, body_bytes: usize) -> Self {
        Self {
            usage_meter: meter,
            billing: bill,
            request_bytes: body_bytes as u64,
            response_bytes: 0,
            head: ResponseHead::Missing,
            is_sent: Arc::default(),
            is_complete: false,
            is_cut_by_upstream: false,
        }
    }

    /// Records the head of the response.
    pub(super) const fn record_head(&mut self, status: u16) {
        self.head = match status {
            200..=299 => ResponseHead::Success,
            _ => ResponseHead::Error,
        };
    }

    /// A flag to set when the request is handed to a connection: before that it costs nothing.
    pub(super) fn sent_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_sent)
    }

    /// Records that the upstream cut the response.
    pub(super) const fn mark_cut_by_upstream(&mut self) {
        self.is_cut_by_upstream = true;
    }

    /// Counts a chunk of the response.
    pub(super) const fn record_piece(&mut self, bytes: usize) {
        self.response_bytes = self.response_bytes.saturating_add(bytes as u64);
    }

    /// Records that the response is complete.
    pub(super) const fn mark_complete(&mut self) {
        self.is_complete = true;
    }

    /// Reports the end of the request with the usage that was read.
    pub(super) fn finish(&self, read: Tokens) {
        if !self.billing.is_free {
            self.usage_meter
                .record_usage(&self.billing, self.final_tokens(read));
        }
    }

    /// The usage that was read, or an estimate from the bytes where that cannot be all of it.
    fn final_tokens(&self, read: Tokens) -> Tokens {
        let of_bytes = |bytes: u64| bytes.div_ceil(UNREAD_BYTES_PER_TOKEN);
        // If the client disconnected, the model may continue writing, and nobody sees how much.
        let unseen = if self.is_cut_by_upstream {
            0
        } else {
            self.billing.model_request.max_unseen_output
        };
        match self.head {
            ResponseHead::Error => return read,
            ResponseHead::Missing if !self.is_sent.load(Ordering::Acquire) => return read,
            ResponseHead::Missing => {
                return Tokens {
                    input: of_bytes(self.request_bytes),
                    output: unseen,
                    ..read
                };
            }
            ResponseHead::Success => {}
        }
        let mut tokens = read;
        if read.input == 0 {
            tokens.input = of_bytes(self.request_bytes);
        }
        let is_unread = read.input == 0 && read.output == 0;
        if is_unread || !self.is_complete {
            // A client that disconnected in the middle of a stream did not get the last usage
            // count.
            tokens.output = read.output.max(of_bytes(self.response_bytes));
        }
        if !self.is_complete {
            tokens.output = tokens.output.max(unseen);
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(is_success: bool, is_whole: bool) -> MeteredRequest {
        let mut charge = MeteredRequest::new(Arc::new(Unmetered), BillingInfo::default(), 1001);
        charge.record_head(if is_success { 200 } else { 400 });
        charge.record_piece(300);
        if is_whole {
            charge.mark_complete();
        }
        charge
    }

    fn read(input: u64, output: u64) -> Tokens {
        Tokens {
            input,
            output,
            ..Tokens::default()
        }
    }

    #[test]
    fn what_is_read_counts_and_what_cannot_be_read_counts_by_its_bytes() {
        let tokens = |charge: &MeteredRequest, input, output| {
            let got = charge.final_tokens(read(input, output));
            (got.input, got.output)
        };
        assert_eq!(tokens(&charge(true, true), 20, 7), (20, 7));
        // An answer may well have no output.
        assert_eq!(tokens(&charge(true, true), 20, 0), (20, 0));
        assert_eq!(tokens(&charge(true, true), 0, 0), (501, 150));
        // Cut off before its last count.
        assert_eq!(tokens(&charge(true, false), 20, 1), (20, 150));
        assert_eq!(tokens(&charge(true, false), 20, 400), (20, 400));
        // Without a stream the model may have written all that it was asked for.
        let mut left = charge(true, false);
        left.billing.model_request.max_unseen_output = 4_000;
        assert_eq!(tokens(&left, 0, 0), (501, 4_000));
        left.mark_cut_by_upstream();
        assert_eq!(tokens(&left, 0, 0), (501, 150));
        left.mark_complete();
        assert_eq!(tokens(&left, 20, 7), (20, 7));
        // Providers charge nothing for errors.
        assert_eq!(tokens(&charge(false, true), 0, 0), (0, 0));
    }

    #[test]
    fn whoever_leaves_before_the_answer_begins_pays_for_what_was_sent() {
        let mut charge = MeteredRequest::new(Arc::new(Unmetered), BillingInfo::default(), 1001);
        charge.billing.model_request.max_unseen_output = 4_000;
        let tokens = |charge: &MeteredRequest| {
            let got = charge.final_tokens(Tokens::default());
            (got.input, got.output)
        };
        // There never was a connection.
        assert_eq!(tokens(&charge), (0, 0));
        charge.sent_flag().store(true, Ordering::Release);
        assert_eq!(tokens(&charge), (501, 4_000));
        // The upstream ended it: nobody asked for it to, and nobody waits for it to write.
        charge.mark_cut_by_upstream();
        assert_eq!(tokens(&charge), (501, 0));
        charge.record_head(500);
        assert_eq!(tokens(&charge), (0, 0));
    }
}
