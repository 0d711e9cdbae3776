//! The result of a client's change of a setting in its conversation.
//!
//! The owner of a [`SettingReply`] answers it; one that is dropped unanswered sends an error
//! itself.

use tokio::sync::mpsc;

/// The result, under the client's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingResult {
    /// The client's number.
    pub number: u64,
    /// `Ok` if the setting is changed and durable, otherwise the reason.
    pub result: Result<(), String>,
}

/// The single reply to a client's setting change.
#[derive(Debug)]
pub(crate) struct SettingReply {
    number: u64,
    sender: Option<mpsc::Sender<SettingResult>>,
}

impl SettingReply {
    pub(crate) const fn new(number: u64, sender: mpsc::Sender<SettingResult>) -> Self {
        Self {
            number,
            sender: Some(sender),
        }
    }

    /// Sends the result to the client.
    pub(crate) fn send(mut self, result: Result<(), String>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<(), String>) {
        let Some(sender) = self.sender.take() else {
            return;
        };
        let number = self.number;
        // A client that sends many changes without reading the results loses those that do not fit.
        let _ = sender.try_send(SettingResult { number, result });
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
        let (sender, mut results) = mpsc::channel(4);
        SettingReply::new(1, sender.clone()).send(Ok(()));
        drop(SettingReply::new(2, sender));
        let first = results.try_recv().expect("one");
        assert_eq!((first.number, first.result), (1, Ok(())));
        let second = results.try_recv().expect("two");
        assert!(second.result.is_err() && second.number == 2);
        assert!(results.try_recv().is_err());
    }
}
