//! The launch plan of an agent on a remote host: the ssh client here, and its script.
//!
//! The client is a plain process of this host, on the leash like every other, in the session's
//! empty home. Must not know how a remote shell is addressed: that is `launch::ssh`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::prepare::{PrepareError, PreparedSession, blocking};
use crate::setup::{PoolShared, Shared};
use marshal_config::{Ssh, is_likely_secret};
use marshal_launch::ssh::{self, RemoteCommand};
use marshal_launch::{LaunchPlan, SandboxSpec};
use marshal_model::{SessionId, SlotId, limits};
use marshal_sandbox as sandbox;
use marshal_sandbox::workspace::{HomeContents, home};

/// The client's PATH when the supervisor has none.
const CLIENT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An unknown home: the policy treats paths below it as nobody's.
const UNKNOWN_HOME: &str = "/nonexistent";

/// The workspace and the home as the agent sees them.
fn paths_inside(target: &Ssh) -> (String, String) {
    match target.sandbox {
        Some(_) => (
            ssh::REMOTE_WORKSPACE.to_owned(),
            ssh::REMOTE_HOME.to_owned(),
        ),
        None => (target.workspace.clone(), UNKNOWN_HOME.to_owned()),
    }
}

/// Prepares a session: no file of its workspace is on this host.
pub(crate) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    target: &Ssh,
    slot: SlotId,
    session: SessionId,
) -> Result<PreparedSession, PrepareError> {
    let home = {
        let (shared, pool, session) = (Arc::clone(shared), Arc::clone(pool), session.clone());
        let ambient = shared.ambient.clone();
        blocking(&ambient, move || {
            // The agent's own settings are on the remote host.
            let filling = HomeContents {
                files: &pool.config.home_files,
                texts: &BTreeMap::new(),
            };
            home::prepare(&shared.state, &session, None, filling)
        })
        .await??
    };
    Ok(PreparedSession::for_ssh(
        session,
        slot,
        home.path,
        paths_inside(target),
    ))
}

/// The plan that runs `argv` on the remote host.
pub(crate) fn plan(
    shared: &Shared,
    pool: &PoolShared,
    target: &Ssh,
    home: &Path,
    argv: &[String],
    is_agent: bool,
) -> Result<LaunchPlan, PrepareError> {
    let (env, secrets) = variables(shared, pool);
    let secret_names: Vec<String> = secrets.iter().map(|(name, _)| name.clone()).collect();
    let script = ssh::remote_script(
        target,
        &RemoteCommand {
            argv,
            path_add: &pool.config.env.path_add,
            env: &env,
            secret_names: &secret_names,
            // A check has no input, and may take its time.
            eof_wait: is_agent.then_some(pool.config.stop.eof),
        },
    );
    Ok(LaunchPlan {
        argv: ssh::client_command(target, &script),
        env: client_environment(shared),
        cwd: home.to_string_lossy().into_owned(),
        limits: sandbox::limits_of(&pool.sandbox),
        sandbox: SandboxSpec::None,
        preamble: preamble(&secrets)?,
    })
}

/// Variables, as names and values.
type Variables = Vec<(String, String)>;

/// The remote child's variables: those that may appear in a command line, and those that may not.
fn variables(shared: &Shared, pool: &PoolShared) -> (Variables, Variables) {
    let config = &pool.config.env;
    let passed = config.pass.iter().filter_map(|name| {
        let value = shared.environment.get(name)?;
        Some((name.clone(), value.clone()))
    });
    let set = config.set.iter().map(|(n, v)| (n.clone(), v.clone()));
    let (mut hidden, open): (Variables, Variables) = passed
        .chain(set)
        .partition(|(name, _)| is_likely_secret(name));
    // Secrets were read at startup: a fleet with an unreadable secret does not start.
    hidden.extend(config.secrets.iter().filter_map(|(name, secret)| {
        let value = secret.expose()?;
        Some((name.clone(), value.as_ref().to_owned()))
    }));
    (open, hidden)
}

/// The secrets for the client's stdin, one per line.
fn preamble(secrets: &Variables) -> Result<Vec<u8>, PrepareError> {
    let mut lines = Vec::new();
    for (name, value) in secrets {
        let bad = |why| PrepareError::Unsendable(name.clone(), why);
        if value.contains('\n') {
            return Err(bad("its value has more than one line"));
        }
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
        if lines.len() > limits::SSH_SECRETS_BYTES {
            return Err(bad("all secrets together are too large"));
        }
    }
    Ok(lines)
}

/// The client's own environment: it has nothing of the agent's, and the agent gets nothing of it.
fn client_environment(shared: &Shared) -> Variables {
    let own = ["PATH", "HOME", "SSH_AUTH_SOCK"];
    let mut env: Variables = own
        .iter()
        .filter_map(|&name| Some((name.to_owned(), shared.environment.get(name)?.clone())))
        .collect();
    if !shared.environment.contains_key("PATH") {
        env.push(("PATH".to_owned(), CLIENT_PATH.to_owned()));
    }
    // The supervisor parses its messages.
    env.push(("LC_ALL".to_owned(), "C".to_owned()));
    env
}
