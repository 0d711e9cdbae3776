//! The state that an earlier start left in the directory.

use serde_json::json;

use super::super::dir::{ReadOutcome, SessionDir, Subdirectory};
use super::super::error::SessionError;
use super::super::record::{SessionLog, now_ms, timestamp};
use super::super::running::{EndReason, build_result};
use marshal_wire::skillpilot::{
    CONTROL_BYTES, CommandName, CommandStats, CommandStatus, RunnerPhase, StateFile, is_id,
    read_time,
};

/// The exit reason of commands that were claimed and have no stored result.
const RESTART_REASON: &str = "tool_died: runner restarted";

/// After this silence, a Runner on another machine counts as ended. Heartbeats are at most one
/// minute apart.
pub(crate) const SILENCE_MS: u64 = 120_000;

/// The session's id: that of an earlier start in this directory, or a new one.
pub(crate) fn session_id(dir: &SessionDir) -> String {
    let earlier = match dir.read(Subdirectory::State, "state.json", CONTROL_BYTES) {
        Ok(ReadOutcome::Regular(content)) => serde_json::from_slice::<StateFile>(&content).ok(),
        _ => None,
    };
    if let Some(state) = earlier.filter(|state| is_id(&state.session_id)) {
        return state.session_id;
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    let day = jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S");
    format!("session_{day}_{}", random.get(..8).unwrap_or(&random))
}

/// Refuses to work where a Runner on another machine may work. This matters where locks do not
/// help: on a network file system that has no locks between machines. A recent heartbeat reveals
/// such a Runner.
pub(super) fn check_exclusive(dir: &SessionDir) -> Result<(), SessionError> {
    // The boot id changes with each start of the machine, whose processes have ended by then.
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = machine.trim();
    // Text that cannot be read was not written by a Runner.
    let last = dir.last_machine().unwrap_or_default();
    if !last.is_empty() && !machine.is_empty() && last != machine && has_live_runner(dir) {
        return Err(SessionError::OtherMachine);
    }
    dir.record_machine(machine).map_err(SessionError::Record)
}

/// Whether a Runner wrote a recent heartbeat and has not announced its end.
fn has_live_runner(dir: &SessionDir) -> bool {
    let read = |name| match dir.read(Subdirectory::State, name, CONTROL_BYTES) {
        Ok(ReadOutcome::Regular(content)) => Some(content),
        _ => None,
    };
    let state = read("state.json").and_then(|text| serde_json::from_slice::<StateFile>(&text).ok());
    let beat = read("heartbeat.json")
        .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
        .and_then(|beat| read_time(beat.get("timestamp")?.as_str()?));
    let is_young = beat.is_some_and(|at| now_ms().abs_diff(at) < SILENCE_MS);
    is_young && state.is_some_and(|state| state.phase != RunnerPhase::Stopping)
}

/// Removes what an earlier start left: temporary files and control files. `stdio`: the Master is
/// connected and sends a lease of its own.
pub(super) fn remove_leftovers(
    dir: &SessionDir,
    record: &mut SessionLog,
    stdio: bool,
) -> std::io::Result<()> {
    for part in [
        Subdirectory::Queue,
        Subdirectory::Result,
        Subdirectory::Log,
        Subdirectory::Ctl,
        Subdirectory::State,
    ] {
        dir.remove_stale_temporaries(part)?;
    }
    for name in ["cancel.json", "stop.json"] {
        if dir.has(Subdirectory::Ctl, name)? {
            ensure_absent(dir, Subdirectory::Ctl, name)?;
            record.log_event(dir, "stale_control", json!({ "file": name }));
        }
    }
    if stdio {
        ensure_absent(dir, Subdirectory::State, "lease.json")?;
    }
    Ok(())
}

/// Makes sure that nothing has the name.
fn ensure_absent(dir: &SessionDir, part: Subdirectory, name: &str) -> std::io::Result<()> {
    dir.remove(part, name).or_else(|error| {
        if dir.reject(part, name) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Ends the commands that an earlier Runner had begun: nothing runs twice.
pub(super) fn recover(dir: &SessionDir, record: &mut SessionLog) -> std::io::Result<()> {
    for file in dir.names(Subdirectory::Inflight)? {
        let Some(name) = CommandName::parse(&file) else {
            dir.reject(Subdirectory::Inflight, &file);
            continue;
        };
        if !dir.has(Subdirectory::Result, &file)? {
            let why = EndReason {
                status: CommandStatus::Error,
                reason: RESTART_REASON.to_owned(),
            };
            let result = build_result(&name, why, timestamp(), CommandStats::default());
            dir.write_atomic(
                Subdirectory::Result,
                &file,
                &serde_json::to_vec(&result)?,
                true,
            )?;
            record.log_event(
                dir,
                "recovered",
                json!({ "cmd_id": name.id, "seq": name.seq }),
            );
        }
        ensure_absent(dir, Subdirectory::Inflight, &file)?;
    }
    Ok(())
}
