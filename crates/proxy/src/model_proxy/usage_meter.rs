//! Who pays for a request: asked before it is passed on, told afterwards what it used.
//!
//! Must not know budgets, sessions or prices: whoever starts a child's relays brings its purse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::route::{ModelRequest, Refusal, Tokens};
use marshal_model::limits::UNREAD_BYTES_PER_TOKEN;

/// What a request is, as far as it costs something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BillingInfo {
    /// What it wants, where somebody must know that; foreign.
    pub model_request: ModelRequest,
    /// It only reads or counts: it has no body, or asks how many tokens something has.
    pub is_free: bool,
}

/// Who pays for the requests of a child. Called for every request, so it must not block.
pub trait UsageMeter: std::fmt::Debug + Send + Sync {
    /// Whether it must know what a request wants.
    fn needs_request_details(&self) -> bool;

    /// Whether a request may pass.
    ///
    /// # Errors
    /// Why it may not: what its sender is told.
    fn check_request(&self, bill: &BillingInfo) -> Result<(), Refusal>;

    /// A request came to its end, however it ended.
    fn record_usage(&self, bill: &BillingInfo, tokens: Tokens);
}

/// Nobody counts.
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

/// A request on its way that is paid for.
#[derive(Debug)]
pub(super) struct MeteredRequest {
    usage_meter: Arc<dyn UsageMeter>,
    billing: BillingInfo,
    /// Bytes of the request's body.
    request_bytes: u64,
    /// Bytes of the answer's body so far.
    response_bytes: u64,
    head: ResponseHead,
    /// The request was handed to a connection.
    is_sent: Arc<AtomicBool>,
    /// It came to its end.
    is_complete: bool,
    /// The upstream ended it, not whoever asked.
    is_cut_by_upstream: bool,
}

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseHead {
    /// None came: what the request cost is not seen.
    Missing,
    /// It is not free, whatever can be read of it.
    Success,
    /// It is free.
    Error,
}

impl MeteredRequest {
    pub(super) fn new(purse: Arc<dyn UsageMeter>, bill: BillingInfo, asked: usize) -> Self {
        Self {
            usage_meter: purse,
            billing: bill,
            request_bytes: asked as u64,
            response_bytes: 0,
            head: ResponseHead::Missing,
            is_sent: Arc::default(),
            is_complete: false,
            is_cut_by_upstream: false,
        }
    }

    /// The head of the answer came.
    pub(super) const fn record_head(&mut self, status: u16) {
        self.head = match status {
            200..=299 => ResponseHead::Success,
            _ => ResponseHead::Error,
        };
    }

    /// Set when the request is handed to a connection: before that it costs nothing.
    pub(super) fn sent_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_sent)
    }

    /// The upstream ended the connection.
    pub(super) const fn mark_cut_by_upstream(&mut self) {
        self.is_cut_by_upstream = true;
    }

    /// A piece of the answer passes.
    pub(super) const fn record_piece(&mut self, bytes: usize) {
        self.response_bytes = self.response_bytes.saturating_add(bytes as u64);
    }

    /// The answer is complete.
    pub(super) const fn mark_complete(&mut self) {
        self.is_complete = true;
    }

    /// It is over, and this was read of it.
    pub(super) fn finish(&self, read: Tokens) {
        if !self.billing.is_free {
            self.usage_meter
                .record_usage(&self.billing, self.final_tokens(read));
        }
    }

    /// What was read, or where that cannot be all of it, what the bytes come to.
    fn final_tokens(&self, read: Tokens) -> Tokens {
        let of_bytes = |bytes: u64| bytes.div_ceil(UNREAD_BYTES_PER_TOKEN);
        // A model may go on writing when whoever asked has left, and nobody sees how much.
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
            // Whoever hung up in the middle of a stream did not see its last count.
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
