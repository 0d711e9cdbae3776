//! Settings of a policy that another policy, which it extends, makes ineffective.
//!
//! The strictest value of all layers applies, so a wider one beside it does nothing. Must not know
//! how values are merged: it compares what is written with what applies.

use super::Policy;
use super::document::Document;
use super::load::ReadRule;
use marshal_model::Decision;

/// A sentence for each setting of a policy's own text that has no effect.
pub(super) fn find(own: &Document, policy: &Policy) -> Vec<String> {
    let (shell, redirect) = (&own.shell, &own.shell.redirect);
    let applied = &policy.shell.redirect;
    let decisions = [
        ("shell.dynamic", &shell.dynamic, policy.shell.dynamic),
        (
            "shell.redirect.dev_null",
            &redirect.dev_null,
            Some(applied.dev_null),
        ),
        (
            "shell.redirect.fd_dup",
            &redirect.fd_dup,
            Some(applied.fd_dup),
        ),
        (
            "shell.redirect.write_inside",
            &redirect.write_inside,
            Some(applied.write_inside),
        ),
        (
            "shell.redirect.write_outside",
            &redirect.write_outside,
            Some(applied.write_outside),
        ),
        (
            "shell.redirect.write_protected",
            &redirect.write_protected,
            Some(applied.write_protected),
        ),
    ]
    .into_iter()
    .filter_map(|(key, written, applies)| {
        let (written, applies) = (written.as_deref()?, applies?);
        let differs = Decision::parse(written) != Some(applies);
        differs.then(|| describe(key, &format!("\"{written}\""), &format!("\"{applies}\"")))
    });
    let read = redirect
        .read
        .as_deref()
        .filter(|read| ReadRule::parse(read) != Some(applied.read));
    let read = read.map(|read| {
        let applies = format!("\"{}\"", applied.read.as_str());
        describe("shell.redirect.read", &format!("\"{read}\""), &applies)
    });
    let limits = [
        (
            "limits.max_bytes",
            own.limits.max_bytes,
            Some(policy.max_bytes),
        ),
        (
            "limits.max_commands",
            own.limits.max_commands,
            Some(policy.max_commands),
        ),
        ("limits.eval_ms", own.limits.eval_ms, policy.eval_ms),
    ]
    .into_iter()
    .filter_map(|(key, written, applies)| {
        let (written, applies) = (written?, applies?);
        (written != applies).then(|| describe(key, &written.to_string(), &applies.to_string()))
    });
    decisions.chain(read).chain(limits).collect()
}

fn describe(key: &str, written: &str, applies: &str) -> String {
    format!(
        "`{key} = {written}` has no effect: a policy that it extends has {applies}, and the strictest \
         value applies"
    )
}
