//! What came of something that a client wants to be set in its conversation.
//!
//! Whoever carries a [`SettingReply`] answers it; one that is lost on the way answers itself.

use tokio::sync::mpsc;

/// What came of it, under the client's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingResult {
    /// The client's number.
    pub number: u64,
    /// Set and durable, or why it is not.
    pub result: Result<(), String>,
}

/// The one answer that a client waits for.
#[derive(Debug)]
pub(crate) struct SettingReply {
    number: u64,
    sender: Option<mpsc::Sender<SettingResult>>,
}

impl SettingReply {
    pub(crate) const fn new(number: u64, tell: mpsc::Sender<SettingResult>) -> Self {
        Self {
            number,
            sender: Some(tell),
        }
    }

    /// Answers.
    pub(crate) fn send(mut self, result: Result<(), String>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<(), String>) {
        let Some(tell) = self.sender.take() else {
            return;
        };
        let number = self.number;
        // A client that asks for more than the channel holds without reading loses the rest.
        let _ = tell.try_send(SettingResult { number, result });
    }
}

impl Drop for SettingReply {
    fn drop(&mut self) {
        self.send_once(Err("the agent ended before this was set".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_given_once_also_when_it_is_lost() {
        let (tell, mut told) = mpsc::channel(4);
        SettingReply::new(1, tell.clone()).send(Ok(()));
        drop(SettingReply::new(2, tell));
        let first = told.try_recv().expect("one");
        assert_eq!((first.number, first.result), (1, Ok(())));
        let second = told.try_recv().expect("two");
        assert!(second.result.is_err() && second.number == 2);
        assert!(told.try_recv().is_err());
    }
}
