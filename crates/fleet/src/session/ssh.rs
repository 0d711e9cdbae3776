//! The launch plan of an agent at a far end: the ssh client here, and what it is told.
//!
//! The client is a plain process of this host, on the leash like every other, in the session's
//! empty home. Must not know how a far shell is spoken to: that is `launch::ssh`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::prepare::{PrepareError, PreparedSession, blocking};
use crate::setup::{PoolShared, Shared};
use marshal_config::{Ssh, is_likely_secret};
use marshal_launch::ssh::{self, RemoteCommand};
use marshal_launch::{LaunchPlan, SandboxSpec};
use marshal_model::limits;
use marshal_model::{SessionId, SlotId};
use marshal_sandbox as sandbox;
use marshal_sandbox::workspace::{HomeContents, home};

/// Where the client looks for programs when the supervisor has no PATH.
const CLIENT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A home that is not known: the policy takes what is below it for nobody's.
const UNKNOWN_HOME: &str = "/nonexistent";

/// The workspace and the home as the agent sees them.
fn paths_inside(far: &Ssh) -> (String, String) {
    match far.sandbox {
        Some(_) => (
            ssh::REMOTE_WORKSPACE.to_owned(),
            ssh::REMOTE_HOME.to_owned(),
        ),
        None => (far.workspace.clone(), UNKNOWN_HOME.to_owned()),
    }
}

/// Makes a session ready: no file of its workspace is here.
pub(super) async fn prepare(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    far: &Ssh,
    slot: SlotId,
    session: SessionId,
) -> Result<PreparedSession, PrepareError> {
    let home = {
        let (shared, pool, session) = (Arc::clone(shared), Arc::clone(pool), session.clone());
        let ambient = shared.ambient.clone();
        blocking(&ambient, move || {
            // The agent's own settings stand at the far end.
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
        paths_inside(far),
    ))
}

/// What runs `argv` at the far end.
pub(super) fn plan(
    shared: &Shared,
    pool: &PoolShared,
    far: &Ssh,
    home: &Path,
    argv: &[String],
    is_agent: bool,
) -> Result<LaunchPlan, PrepareError> {
    let (env, secrets) = variables(shared, pool);
    let told: Vec<String> = secrets.iter().map(|(name, _)| name.clone()).collect();
    let script = ssh::remote_script(
        far,
        &RemoteCommand {
            argv,
            path_add: &pool.config.env.path_add,
            env: &env,
            secret_names: &told,
            // A check has no input, and takes its time.
            eof_wait: is_agent.then_some(pool.config.stop.eof),
        },
    );
    Ok(LaunchPlan {
        argv: ssh::client_command(far, &script),
        env: client_environment(shared),
        cwd: home.to_string_lossy().into_owned(),
        limits: sandbox::limits_of(&pool.sandbox),
        sandbox: SandboxSpec::None,
        preamble: preamble(&secrets)?,
    })
}

/// Names and values.
type Variables = Vec<(String, String)>;

/// The far child's variables: those that may stand in a command line, and those that may not.
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
    // Read at the start: a configuration with an unread secret starts no fleet.
    hidden.extend(config.secrets.iter().filter_map(|(name, secret)| {
        let value = secret.expose()?;
        Some((name.clone(), value.to_owned()))
    }));
    (open, hidden)
}

/// One line for each secret.
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
            return Err(bad("the secrets are too large, all together"));
        }
    }
    Ok(lines)
}

/// The client's own environment: nothing of the agent's, and the agent gets nothing of it.
fn client_environment(shared: &Shared) -> Variables {
    let own = ["PATH", "HOME", "SSH_AUTH_SOCK"];
    let mut env: Variables = own
        .iter()
        .filter_map(|&name| Some((name.to_owned(), shared.environment.get(name)?.clone())))
        .collect();
    if !shared.environment.contains_key("PATH") {
        env.push(("PATH".to_owned(), CLIENT_PATH.to_owned()));
    }
    // Its messages are read here.
    env.push(("LC_ALL".to_owned(), "C".to_owned()));
    env
}
