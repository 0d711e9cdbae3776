//! Who pays for a request: asked before it is passed on, told afterwards what it used.
//!
//! Must not know budgets, sessions or prices: whoever starts a child's relays brings its purse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::UNREAD_BYTES_PER_TOKEN;
use crate::route::{Refusal, Tokens, Wants};

/// What a request is, as far as it costs something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bill {
    /// What it wants, where somebody must know that; foreign.
    pub wants: Wants,
    /// It only reads or counts: it has no body, or asks how many tokens something has.
    pub is_free: bool,
}

/// Who pays for the requests of a child. Called for every request, so it must not block.
pub trait Purse: std::fmt::Debug + Send + Sync {
    /// Whether it must know what a request wants.
    fn looks_into_requests(&self) -> bool;

    /// Whether a request may pass.
    ///
    /// # Errors
    /// Why it may not: what its sender is told.
    fn may_pass(&self, bill: &Bill) -> Result<(), Refusal>;

    /// A request came to its end, however it ended.
    fn used(&self, bill: &Bill, tokens: Tokens);
}

/// Nobody counts.
#[derive(Debug)]
pub struct Bottomless;

impl Purse for Bottomless {
    fn looks_into_requests(&self) -> bool {
        false
    }

    fn may_pass(&self, _: &Bill) -> Result<(), Refusal> {
        Ok(())
    }

    fn used(&self, _: &Bill, _: Tokens) {}
}

/// A request on its way that is paid for.
#[derive(Debug)]
pub(super) struct Charge {
    purse: Arc<dyn Purse>,
    bill: Bill,
    /// Bytes of the request's body.
    asked: u64,
    /// Bytes of the answer's body so far.
    answered: u64,
    head: Head,
    /// The request was handed to a connection.
    is_sent: Arc<AtomicBool>,
    /// It came to its end.
    is_whole: bool,
    /// The upstream ended it, not whoever asked.
    is_cut: bool,
}

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// None came: what the request cost is not seen.
    Missing,
    /// It is not free, whatever can be read of it.
    Success,
    /// It is free.
    Error,
}

impl Charge {
    pub(super) fn new(purse: Arc<dyn Purse>, bill: Bill, asked: usize) -> Self {
        Self {
            purse,
            bill,
            asked: asked as u64,
            answered: 0,
            head: Head::Missing,
            is_sent: Arc::default(),
            is_whole: false,
            is_cut: false,
        }
    }

    /// The head of the answer came.
    pub(super) const fn head(&mut self, status: u16) {
        self.head = match status {
            200..=299 => Head::Success,
            _ => Head::Error,
        };
    }

    /// Set when the request is handed to a connection: before that it costs nothing.
    pub(super) fn sent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_sent)
    }

    /// The upstream ended the connection.
    pub(super) const fn cut(&mut self) {
        self.is_cut = true;
    }

    /// A piece of the answer passes.
    pub(super) const fn piece(&mut self, bytes: usize) {
        self.answered = self.answered.saturating_add(bytes as u64);
    }

    /// The answer is complete.
    pub(super) const fn whole(&mut self) {
        self.is_whole = true;
    }

    /// It is over, and this was read of it.
    pub(super) fn over(&self, read: Tokens) {
        if !self.bill.is_free {
            self.purse.used(&self.bill, self.tokens(read));
        }
    }

    /// What was read, or where that cannot be all of it, what the bytes come to.
    fn tokens(&self, read: Tokens) -> Tokens {
        let of_bytes = |bytes: u64| bytes.div_ceil(UNREAD_BYTES_PER_TOKEN);
        // A model may go on writing when whoever asked has left, and nobody sees how much.
        let unseen = if self.is_cut {
            0
        } else {
            self.bill.wants.unseen
        };
        match self.head {
            Head::Error => return read,
            Head::Missing if !self.is_sent.load(Ordering::Acquire) => return read,
            Head::Missing => {
                return Tokens {
                    input: of_bytes(self.asked),
                    output: unseen,
                    ..read
                };
            }
            Head::Success => {}
        }
        let mut tokens = read;
        if read.input == 0 {
            tokens.input = of_bytes(self.asked);
        }
        let is_unread = read.input == 0 && read.output == 0;
        if is_unread || !self.is_whole {
            // Whoever hung up in the middle of a stream did not see its last count.
            tokens.output = read.output.max(of_bytes(self.answered));
        }
        if !self.is_whole {
            tokens.output = tokens.output.max(unseen);
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(is_success: bool, is_whole: bool) -> Charge {
        let mut charge = Charge::new(Arc::new(Bottomless), Bill::default(), 1001);
        charge.head(if is_success { 200 } else { 400 });
        charge.piece(300);
        if is_whole {
            charge.whole();
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
        let tokens = |charge: &Charge, input, output| {
            let got = charge.tokens(read(input, output));
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
        left.bill.wants.unseen = 4_000;
        assert_eq!(tokens(&left, 0, 0), (501, 4_000));
        left.cut();
        assert_eq!(tokens(&left, 0, 0), (501, 150));
        left.whole();
        assert_eq!(tokens(&left, 20, 7), (20, 7));
        // Providers charge nothing for errors.
        assert_eq!(tokens(&charge(false, true), 0, 0), (0, 0));
    }

    #[test]
    fn whoever_leaves_before_the_answer_begins_pays_for_what_was_sent() {
        let mut charge = Charge::new(Arc::new(Bottomless), Bill::default(), 1001);
        charge.bill.wants.unseen = 4_000;
        let tokens = |charge: &Charge| {
            let got = charge.tokens(Tokens::default());
            (got.input, got.output)
        };
        // There never was a connection.
        assert_eq!(tokens(&charge), (0, 0));
        charge.sent().store(true, Ordering::Release);
        assert_eq!(tokens(&charge), (501, 4_000));
        // The upstream ended it: nobody asked for it to, and nobody waits for it to write.
        charge.cut();
        assert_eq!(tokens(&charge), (501, 0));
        charge.head(500);
        assert_eq!(tokens(&charge), (0, 0));
    }
}
