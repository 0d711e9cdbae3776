//! How a channel ended: derives one class from what was requested and from the kernel's exit
//! status.
//!
//! Pure. Must not know the restart decision.

use marshal_config::show_size;
use marshal_dialect::PendingDenials;
use marshal_launch::cgroup::GroupOutcome;
use marshal_launch::{ChildExit, SpawnError, WallsFailure};
use marshal_model::{ExitClass, ExitStatus, UntrustedText};

/// Why the supervisor had to end a child.
#[derive(Debug)]
pub(crate) enum Cause {
    /// A stop was requested.
    Requested,
    /// It could not be started.
    Spawn(SpawnError),
    /// It did not become ready in time.
    HandshakeTimeout,
    /// It speaks another protocol version.
    Version {
        /// The agent's version.
        theirs: String,
        /// The supported version.
        ours: std::borrow::Cow<'static, str>,
    },
    /// It broke its protocol.
    Protocol(String),
    /// The agent cannot load the session that it was to resume.
    NotResumed(String),
    /// The agent cannot be used as it is configured.
    NeedsSetup(String),
    /// The agent does not answer a request.
    Unanswered(String),
    /// The session was idle, and the child can be started again.
    Idle,
    /// It closed this pipe and kept running.
    PipeClosed(&'static str),
}

/// The end of a channel, as reported to the session.
#[derive(Debug)]
pub(crate) struct ChannelEnd {
    /// The exit class.
    pub(crate) class: ExitClass,
    /// The exit status from the kernel; `None` if there was no process.
    pub(crate) status: Option<ExitStatus>,
    /// Peak memory of the child and its descendants, in bytes; `None` where that is not measured.
    pub(crate) memory_peak: Option<u64>,
    /// Whether it had completed its handshake.
    pub(crate) was_ready: bool,
    /// The agent reported that it cannot load its session again.
    pub(crate) not_resumed: bool,
    /// Another start would end the same way.
    pub(crate) is_permanent: bool,
    /// The child's last output shows that the provider limits requests.
    pub(crate) shows_rate_limit: bool,
    /// Denials that the agent has not been told of.
    pub(crate) denials: PendingDenials,
    /// The reason, for people. Foreign text in it is already escaped.
    pub(crate) detail: String,
    /// The last lines of its stderr.
    pub(crate) stderr: Vec<UntrustedText>,
}

impl ChannelEnd {
    /// The end of a channel whose own code failed.
    pub(crate) fn internal(why: &str) -> Self {
        Self {
            class: ExitClass::ProtocolFault,
            status: None,
            memory_peak: None,
            was_ready: true,
            not_resumed: false,
            is_permanent: false,
            shows_rate_limit: false,
            denials: PendingDenials::default(),
            detail: format!("internal error: {why}"),
            stderr: Vec::new(),
        }
    }

    /// The end of a channel whose actor failed; its child was killed with it.
    pub(crate) fn failed(why: &str) -> Self {
        Self {
            class: ExitClass::Signalled,
            ..Self::not_planned(&format!("a fault of marshal: {why}"))
        }
    }

    /// The end of a channel that never started, because its sandbox could not be planned.
    pub(crate) fn not_planned(why: &str) -> Self {
        Self {
            class: ExitClass::SpawnFailed,
            status: None,
            memory_peak: None,
            was_ready: false,
            not_resumed: false,
            is_permanent: false,
            shows_rate_limit: false,
            denials: PendingDenials::default(),
            detail: why.to_owned(),
            stderr: Vec::new(),
        }
    }
}

/// Whether the kernel killed the child for memory: it counted such a kill, and nothing else caused
/// the end.
fn out_of_memory(ended: &ChildExit) -> Option<&GroupOutcome> {
    const KILLED: i32 = 9;
    let group = ended.group_outcome.as_deref()?;
    let is_killed = match ended.status {
        // A shell around the agent reports the signal by its own exit code.
        Some(status) => status.shell_code() == 128 + KILLED,
        None => ended.sandbox_failure.is_some(),
    };
    let counted = group.usage.oom_kills.is_some_and(|kills| kills > 0);
    (counted && is_killed && !ended.is_forced).then_some(group)
}

fn by_memory(end: &mut ChannelEnd, group: &GroupOutcome) {
    end.class = ExitClass::OutOfMemory;
    let peak = group.usage.peak.map_or_else(
        || "an unknown amount".to_owned(),
        |peak| format!("{peak} bytes"),
    );
    let limit = group.memory_limit.map_or_else(
        || "this host had no memory left".to_owned(),
        |limit| format!("limits.memory is {}", show_size(limit)),
    );
    end.detail = format!(
        "the kernel killed the agent for memory: together with its child processes it had used {peak}, and {limit}"
    );
}

/// Derives one class from the cause and the exit status.
pub(crate) fn classify_end(
    ended: Option<&ChildExit>,
    cause: Option<Cause>,
    was_ready: bool,
    stderr: Vec<UntrustedText>,
) -> ChannelEnd {
    let mut end = ChannelEnd {
        class: ExitClass::Exited,
        status: ended.and_then(|ended| ended.status),
        memory_peak: None,
        was_ready,
        not_resumed: matches!(cause, Some(Cause::NotResumed(_))),
        is_permanent: false,
        shows_rate_limit: false,
        denials: PendingDenials::default(),
        detail: String::new(),
        stderr,
    };
    end.memory_peak = ended.and_then(|ended| ended.group_outcome.as_ref()?.usage.peak);
    let is_ours = matches!(
        cause,
        Some(Cause::Requested | Cause::Idle | Cause::Spawn(_))
    );
    if let Some(group) = ended.and_then(out_of_memory).filter(|_| !is_ours) {
        by_memory(&mut end, group);
        return end;
    }
    let sandbox_failure = ended.and_then(|ended| ended.sandbox_failure.as_ref());
    match cause {
        Some(Cause::Spawn(error)) => {
            end.class = ExitClass::SpawnFailed;
            end.is_permanent = error.is_about_program();
            end.detail = error.to_string();
        }
        Some(Cause::HandshakeTimeout) => {
            end.class = ExitClass::HandshakeTimeout;
            end.detail = "the agent did not become ready in time (timeouts.handshake); does its command speak the pool's dialect?"
                .to_owned();
        }
        Some(Cause::Version { theirs, ours }) => {
            end.class = ExitClass::VersionRefused;
            end.detail = format!(
                "the agent speaks protocol version {theirs}, this supervisor speaks version {ours}"
            );
        }
        Some(Cause::Protocol(why) | Cause::NotResumed(why)) => {
            end.class = ExitClass::ProtocolFault;
            end.detail = why;
        }
        Some(Cause::NeedsSetup(why)) => {
            end.class = ExitClass::NeedsSetup;
            end.detail = why;
        }
        Some(Cause::Unanswered(why)) => {
            end.class = if was_ready {
                ExitClass::ProtocolFault
            } else {
                ExitClass::HandshakeTimeout
            };
            end.detail = why;
        }
        Some(Cause::Idle) => {
            end.class = ExitClass::IdleUnload;
            end.detail = "unloaded because the session was idle".to_owned();
        }
        Some(Cause::Requested) => {
            end.class = ExitClass::Stopped;
            end.detail = "stopped".to_owned();
        }
        Some(Cause::PipeClosed(pipe)) => by_status(&mut end, Some(pipe), sandbox_failure),
        None => by_status(&mut end, None, sandbox_failure),
    }
    end
}

fn by_status(end: &mut ChannelEnd, mute: Option<&str>, sandbox_failure: Option<&WallsFailure>) {
    if let Some(failure) = sandbox_failure {
        // The warden was lost, and with it everything inside: the agent did not end by itself.
        end.class = ExitClass::Signalled;
        end.detail = format!("the sandbox was lost: {failure}");
    } else if let Some(pipe) = mute {
        end.class = ExitClass::ProtocolFault;
        end.detail = format!("the agent closed its {pipe} and went on running");
    } else {
        end.class = match end.status {
            Some(ExitStatus::Signal(_)) => ExitClass::Signalled,
            _ => ExitClass::Exited,
        };
        let how = end
            .status
            .map_or_else(|| "unknown status".to_owned(), |s| s.to_string());
        end.detail = if end.was_ready {
            format!("the agent ended by itself: {how}")
        } else {
            format!("the agent ended before it was ready: {how}")
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child_exit(status: ExitStatus) -> ChildExit {
        ChildExit {
            status: Some(status),
            sandbox_failure: None,
            is_forced: false,
            survivors_killed: 0,
            survivors_left: 0,
            group_outcome: None,
        }
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_told_by_its_status() {
        let end = classify_end(
            Some(&child_exit(ExitStatus::Signal(9))),
            None,
            true,
            Vec::new(),
        );
        assert_eq!(end.class, ExitClass::Signalled);
        let end = classify_end(
            Some(&child_exit(ExitStatus::Code(0))),
            None,
            false,
            Vec::new(),
        );
        assert_eq!(end.class, ExitClass::Exited);
        assert!(end.detail.contains("before it was ready"), "{}", end.detail);
    }

    #[test]
    fn a_wanted_end_is_wanted_whatever_the_status() {
        for status in [ExitStatus::Code(3), ExitStatus::Signal(15)] {
            let end = classify_end(
                Some(&child_exit(status)),
                Some(Cause::Requested),
                true,
                Vec::new(),
            );
            assert_eq!(end.class, ExitClass::Stopped);
        }
    }
}
