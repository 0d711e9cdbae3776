//! What came of something that a client wants to be set in its conversation.
//!
//! Whoever carries a [`SetReply`] answers it; one that is lost on the way answers itself.

use tokio::sync::mpsc;

/// What came of it, under the client's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetDone {
    /// The client's number.
    pub number: u64,
    /// Set and durable, or why it is not.
    pub result: Result<(), String>,
}

/// The one answer that a client waits for.
#[derive(Debug)]
pub(crate) struct SetReply {
    number: u64,
    tell: Option<mpsc::Sender<SetDone>>,
}

impl SetReply {
    pub(crate) const fn new(number: u64, tell: mpsc::Sender<SetDone>) -> Self {
        Self {
            number,
            tell: Some(tell),
        }
    }

    /// Answers.
    pub(crate) fn done(mut self, result: Result<(), String>) {
        self.answer(result);
    }

    fn answer(&mut self, result: Result<(), String>) {
        let Some(tell) = self.tell.take() else { return };
        let number = self.number;
        // A client that asks for more than the channel holds without reading loses the rest.
        let _ = tell.try_send(SetDone { number, result });
    }
}

impl Drop for SetReply {
    fn drop(&mut self) {
        self.answer(Err("the agent ended before this was set".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_given_once_also_when_it_is_lost() {
        let (tell, mut told) = mpsc::channel(4);
        SetReply::new(1, tell.clone()).done(Ok(()));
        drop(SetReply::new(2, tell));
        let first = told.try_recv().expect("one");
        assert_eq!((first.number, first.result), (1, Ok(())));
        let second = told.try_recv().expect("two");
        assert!(second.result.is_err() && second.number == 2);
        assert!(told.try_recv().is_err());
    }
}
