//! What an earlier life in the directory left.

use serde_json::json;

use super::super::dir::{Found, Part, SessionDir};
use super::super::record::{Record, now, now_ms};
use super::super::running::{Why, result};
use crate::skillpilot::{
    CONTROL_BYTES, CommandName, Phase, StateFile, Stats, Status, is_id, read_time,
};

/// Commands that were claimed and whose result is not kept: the exit reason.
const RESTARTED: &str = "tool_died: runner restarted";

/// How long a Runner on another machine is silent that is gone: signs of life are at most a minute apart.
const SILENCE_MS: u64 = 120_000;

/// The id of the session: that of an earlier life in this directory, or a new one.
pub(in crate::cli::runner) fn session_id(dir: &SessionDir) -> String {
    let earlier = match dir.read(Part::State, "state.json", CONTROL_BYTES) {
        Ok(Found::Content(content)) => serde_json::from_slice::<StateFile>(&content).ok(),
        _ => None,
    };
    if let Some(state) = earlier.filter(|state| is_id(&state.session_id)) {
        return state.session_id;
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    let day = jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S");
    format!("session_{day}_{}", random.get(..8).unwrap_or(&random))
}

/// Refuses to work where a Runner on another machine may work, as far as locks do not tell: on a file system of
/// a network that has none between machines. It is known by a sign of life that is young.
pub(super) fn is_alone(dir: &SessionDir) -> Result<(), String> {
    // Another one after each start of the machine, whose processes are gone then.
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = machine.trim();
    let failed = |error: std::io::Error| format!("state/.lock: {error}");
    // What cannot be read as text was written by nobody's Runner.
    let last = dir.last_machine().unwrap_or_default();
    if !last.is_empty() && !machine.is_empty() && last != machine && goes_on(dir) {
        let seconds = SILENCE_MS / 1000;
        return Err(format!(
            "a Runner on another machine gave a sign of life in the session directory within {seconds} s: stop it, or \
             start again when it is silent"
        ));
    }
    dir.held_on(machine).map_err(failed)
}

/// Whether a Runner has not said that it ends, and gave a sign of life lately.
fn goes_on(dir: &SessionDir) -> bool {
    let read = |name| match dir.read(Part::State, name, CONTROL_BYTES) {
        Ok(Found::Content(content)) => Some(content),
        _ => None,
    };
    let state = read("state.json").and_then(|text| serde_json::from_slice::<StateFile>(&text).ok());
    let beat = read("heartbeat.json")
        .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
        .and_then(|beat| read_time(beat.get("timestamp")?.as_str()?));
    let is_young = beat.is_some_and(|at| now_ms().abs_diff(at) < SILENCE_MS);
    is_young && state.is_some_and(|state| state.phase != Phase::Stopping)
}

/// Removes what an earlier life left: temporary files, and what controlled it. `stdio`: the Master is there and
/// brings a lease of its own.
pub(super) fn tidy(dir: &SessionDir, record: &mut Record, stdio: bool) -> std::io::Result<()> {
    for part in [Part::Queue, Part::Result, Part::Log, Part::Ctl, Part::State] {
        dir.sweep(part)?;
    }
    for name in ["cancel.json", "stop.json"] {
        if dir.has(Part::Ctl, name)? {
            gone(dir, Part::Ctl, name)?;
            record.note(dir, "stale_control", json!({ "file": name }));
        }
    }
    if stdio {
        gone(dir, Part::State, "lease.json")?;
    }
    Ok(())
}

/// Has nothing at a name, whatever was there.
fn gone(dir: &SessionDir, part: Part, name: &str) -> std::io::Result<()> {
    dir.remove(part, name).or_else(|error| {
        if dir.reject(part, name) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Ends what a Runner before this one had begun: nothing is run twice.
pub(super) fn recover(dir: &SessionDir, record: &mut Record) -> std::io::Result<()> {
    for file in dir.names(Part::Inflight)? {
        let Some(name) = CommandName::read(&file) else {
            dir.reject(Part::Inflight, &file);
            continue;
        };
        if !dir.has(Part::Result, &file)? {
            let why = Why {
                status: Status::Error,
                reason: RESTARTED.to_owned(),
            };
            let result = result(&name, why, now(), Stats::default());
            dir.put(Part::Result, &file, &serde_json::to_vec(&result)?, true)?;
            record.note(
                dir,
                "recovered",
                json!({ "cmd_id": name.id, "seq": name.seq }),
            );
        }
        gone(dir, Part::Inflight, &file)?;
    }
    Ok(())
}
