//! Explains an end: adds the hint that matches, and interprets the exit of an ssh client.
//!
//! Pure. Refines the class derived from the exit status where more is known. An ssh client exits
//! with 255 for every error of its own, from an unknown host to a lost connection. Must not know
//! how an end was noticed, or what follows from it.

use super::end::ChannelEnd;
use marshal_config::hint::{Evidence, HintClass, Hints};
use marshal_config::{Pool, SessionScope, Ssh};
use marshal_launch::ssh::EXIT_CLIENT_FAILED;
use marshal_model::{ExitClass, ExitStatus};

/// Adds the known causes of an end, and what it leaves behind.
pub(super) fn explain_end(end: &mut ChannelEnd, pool: &Pool, hints: &Hints) {
    let evidence = Evidence {
        agent: &pool.agent,
        launcher: pool.launcher,
        status: end.status,
        messages: &[&end.detail],
        stderr: &end.stderr,
    };
    let of_this_turn = Evidence {
        // Earlier turns of the same slot may have written this stderr.
        stderr: match pool.options.session {
            SessionScope::Task => &end.stderr,
            SessionScope::Slot => &[],
        },
        ..evidence
    };
    let shows_rate_limit = hints.matches_class(&of_this_turn, HintClass::RateLimited);
    // A requested end needs no explanation.
    let hint = hints.find(&evidence).filter(|_| !end.class.is_requested());
    let class = hint.and_then(|hint| hint.class);
    let text = hint.map(|hint| hint.text.clone());
    end.shows_rate_limit = shows_rate_limit;
    end.is_permanent |= class == Some(HintClass::Configuration) && !end.was_ready;
    if let Some(ssh) = &pool.ssh {
        explain_ssh_end(end, ssh, class);
    }
    if let Some(text) = text {
        end.detail = format!("{}; hint: {text}", end.detail);
    }
    if let Some(ssh) = pool.ssh.as_ref().filter(|ssh| may_leave_process(end, ssh)) {
        end.detail = format!(
            "{}; its process may still run on {}: the connection was cut, and without marshal on that host nothing ends an agent that ignores the end of its input",
            end.detail,
            ssh.display_name()
        );
    }
}

/// Interprets the exit of an ssh client.
fn explain_ssh_end(end: &mut ChannelEnd, ssh: &Ssh, class: Option<HintClass>) {
    let is_clients = end.status == Some(ExitStatus::Code(EXIT_CLIENT_FAILED));
    let is_plain = matches!(end.class, ExitClass::Exited | ExitClass::ProtocolFault);
    let never_reached = matches!(
        class,
        Some(HintClass::Configuration | HintClass::Unreachable)
    );
    let shown = ssh.display_name();
    match class {
        _ if end.was_ready => {}
        Some(HintClass::Unreachable) if is_clients => {
            end.class = ExitClass::SpawnFailed;
            end.detail = format!("{shown} was not reached (ssh: exit code 255)");
        }
        Some(HintClass::Configuration) if is_clients => {
            end.class = ExitClass::SpawnFailed;
            end.detail = format!("could not log in to {shown} (ssh: exit code 255)");
        }
        Some(HintClass::Configuration) => {
            end.class = ExitClass::SpawnFailed;
            let how = end.status.map_or_else(String::new, |how| how.to_string());
            end.detail = format!("the agent could not be started on {shown} ({how})");
        }
        _ => {}
    }
    if is_clients && is_plain && (end.was_ready || !never_reached) {
        end.class = ExitClass::ConnectionLost;
        end.detail = format!("the connection to {shown} was lost (ssh: exit code 255)");
    }
}

/// Whether a process may still run on the remote host: it was started, no marshal there ends it,
/// and it did not end by itself.
fn may_leave_process(end: &ChannelEnd, ssh: &Ssh) -> bool {
    let cut = match end.status {
        Some(ExitStatus::Code(code)) => code == EXIT_CLIENT_FAILED,
        Some(ExitStatus::Signal(_)) | None => true,
    };
    ssh.sandbox.is_none() && cut && end.class != ExitClass::SpawnFailed
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::{Config, Origin};
    use marshal_dialect::PendingDenials;
    use marshal_model::UntrustedText;

    fn pool(keys: &str) -> Pool {
        let text = format!("[pool.far]\ncommand = [\"agent\"]\n{keys}\n");
        let config = Config::parse(&text, &Origin::built_in("/srv".into()));
        config.unwrap_or_else(|errors| panic!("{errors}")).pools[0].clone()
    }

    fn far_pool(more: &str) -> Pool {
        pool(&format!(
            "launcher = \"ssh\"\nssh = {{ host = \"h\", user = \"u\", workspace = \"/w\"{more} }}"
        ))
    }

    fn end(class: ExitClass, status: ExitStatus, was_ready: bool, stderr: &str) -> ChannelEnd {
        ChannelEnd {
            class,
            status: Some(status),
            memory_peak: None,
            was_ready,
            not_resumed: false,
            is_permanent: false,
            shows_rate_limit: false,
            denials: PendingDenials::default(),
            detail: format!("the agent ended: {status}"),
            stderr: stderr.lines().map(UntrustedText::from).collect(),
        }
    }

    fn explained(pool: &Pool, mut end: ChannelEnd) -> ChannelEnd {
        explain_end(&mut end, pool, &Hints::default());
        end
    }

    const LOST: ExitStatus = ExitStatus::Code(255);

    #[test]
    fn a_well_known_cause_gets_its_hint() {
        let stderr = "x: error while loading shared libraries: libx.so";
        let end = end(ExitClass::Exited, ExitStatus::Code(127), false, stderr);
        let end = explained(&pool(""), end);
        assert!(
            end.detail.contains("; hint: a shared library"),
            "{}",
            end.detail
        );
        assert!(!end.is_permanent);
    }

    #[test]
    fn last_words_tell_a_limit_if_they_are_of_this_turn() {
        let stderr = "x\nHTTP 429: slow down";
        let of = |keys: &str| {
            let end = end(ExitClass::Exited, ExitStatus::Code(1), true, stderr);
            explained(&pool(keys), end).shows_rate_limit
        };
        assert!(of(""));
        assert!(!of("session = \"slot\""));
    }

    #[test]
    fn a_wanted_end_gets_none() {
        let stderr = "429 Too Many Requests";
        let end = end(ExitClass::Stopped, ExitStatus::Code(0), true, stderr);
        assert_eq!(
            explained(&pool(""), end).detail,
            "the agent ended: exit code 0"
        );
    }

    #[test]
    fn a_host_that_lets_nobody_in_is_hopeless_and_leaves_nothing() {
        for stderr in [
            "Host key verification failed.",
            "u@h: Permission denied (publickey).",
        ] {
            let end = explained(&far_pool(""), end(ExitClass::Exited, LOST, false, stderr));
            assert_eq!(end.class, ExitClass::SpawnFailed);
            assert!(end.is_permanent);
            assert!(
                end.detail.starts_with("could not log in to u@h"),
                "{}",
                end.detail
            );
            assert!(!end.detail.contains("may still run"), "{}", end.detail);
        }
    }

    #[test]
    fn a_host_that_is_not_reached_may_be_tried_again() {
        let stderr = "ssh: connect to host h port 22: Connection refused";
        let end = explained(&far_pool(""), end(ExitClass::Exited, LOST, false, stderr));
        assert_eq!(end.class, ExitClass::SpawnFailed);
        assert!(!end.is_permanent);
        assert!(end.detail.contains("not reached"), "{}", end.detail);
        assert!(!end.detail.contains("may still run"), "{}", end.detail);
    }

    #[test]
    fn a_cut_connection_says_what_may_be_left() {
        let stderr = "Connection to h closed by remote host.";
        for was_ready in [true, false] {
            let end = end(ExitClass::Exited, LOST, was_ready, stderr);
            let end = explained(&far_pool(""), end);
            assert_eq!(end.class, ExitClass::ConnectionLost);
            assert!(
                end.detail.contains("connection to u@h was lost"),
                "{}",
                end.detail
            );
            assert!(
                end.detail.contains("may still run on u@h"),
                "{}",
                end.detail
            );
        }
        let sandboxed = far_pool(", marshal = \"marshal\"");
        let end = end(ExitClass::Exited, LOST, true, stderr);
        let end = explained(&sandboxed, end);
        assert_eq!(end.class, ExitClass::ConnectionLost);
        assert!(!end.detail.contains("may still run"), "{}", end.detail);
    }

    #[test]
    fn a_client_that_had_to_be_killed_says_so_though_it_was_wanted() {
        let killed = end(ExitClass::Stopped, ExitStatus::Signal(9), true, "");
        assert!(
            explained(&far_pool(""), killed)
                .detail
                .contains("may still run")
        );
        let ended = end(ExitClass::Stopped, ExitStatus::Code(0), true, "");
        assert!(
            !explained(&far_pool(""), ended)
                .detail
                .contains("may still run")
        );
    }
}
