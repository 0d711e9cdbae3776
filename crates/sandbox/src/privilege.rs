//! What a helper does to its own process: descriptors, parent, ids, capabilities, limits.
//!
//! Every helper has one thread, so what is "of the thread" here is of the process. Must not know
//! of mounts or messages.

use std::fs;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getppid};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use super::failure::{FailureContext, StepResult, failure};
use marshal_wire::shim::{ProcessLimits, Stage};

/// Closes every descriptor but 0, 1 and 2. Call it before anything is opened: it closes by number.
pub(super) fn close_inherited() -> StepResult {
    let mut inherited = Vec::new();
    let entries = fs::read_dir("/proc/self/fd").on(Stage::Shim, "list", "/proc/self/fd")?;
    for entry in entries {
        let entry = entry.on(Stage::Shim, "list", "/proc/self/fd")?;
        if let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
            && number > 2
        {
            inherited.push(number);
        }
    }
    for number in inherited {
        // The directory's own descriptor is in the list and already closed: EBADF is expected.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Has the kernel send `signal` when the parent's thread that started this process ends, and makes
/// sure that this parent (`pid`, if it can be seen from here) was still there after it was asked.
///
/// To be repeated after every change of ids: the kernel forgets it then (prctl(2)).
pub(super) fn die_with_parent(signal: Signal, pid: Option<u32>) -> StepResult {
    rustix::process::set_parent_process_death_signal(Some(signal))
        .at(Stage::Shim, "ask for the parent's death signal")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if pid.is_some() && parent != pid {
        return Err(failure(
            Stage::Shim,
            "the supervisor ended before its helper began",
        ));
    }
    Ok(())
}

/// Whether this process can be traced and its memory, environment and descriptors read by others
/// of its uid.
pub(super) fn set_dumpable(behaviour: DumpableBehavior) -> StepResult {
    rustix::process::set_dumpable_behavior(behaviour).at(Stage::Shim, "set dumpable")
}

/// No program started from here on gains anything by set-uid bits or file capabilities.
pub(super) fn no_new_privileges() -> StepResult {
    rustix::thread::set_no_new_privs(true).at(Stage::Caps, "set no_new_privs")
}

/// Becomes this user for good, with no group beside its own.
pub(super) fn become_user(uid: u32, gid: u32) -> StepResult {
    if uid == 0 || gid == 0 {
        return Err(failure(
            Stage::Uid,
            "an agent must not be uid or gid 0 of the host",
        ));
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[]).at(Stage::Uid, "drop the supplementary groups")?;
    rustix::thread::set_thread_res_gid(group, group, group)
        .at(Stage::Uid, "take the slot's gid")?;
    rustix::thread::set_thread_res_uid(user, user, user).at(Stage::Uid, "take the slot's uid")
}

/// Keeps these capabilities over the exec of a program that has none of its own (capabilities(7),
/// "ambient").
pub(super) fn keep_capabilities_across_exec(kept: CapabilitySet) -> StepResult {
    let mut sets = rustix::thread::capabilities(None).at(Stage::Caps, "read the capabilities")?;
    sets.inheritable = kept;
    rustix::thread::set_capabilities(None, sets).at(Stage::Caps, "set the capabilities")?;
    for capability in kept.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)
            .at(Stage::Caps, "raise an ambient capability")?;
    }
    Ok(())
}

/// Drops every capability from the effective, permitted, inheritable and ambient sets.
pub(super) fn drop_capabilities() -> StepResult {
    rustix::thread::clear_ambient_capability_set()
        .at(Stage::Caps, "clear the ambient capabilities")?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).at(Stage::Caps, "drop the capabilities")
}

/// Drops every capability that the kernel knows from the bounding set. Needs SETPCAP.
pub(super) fn empty_bounding_set() -> StepResult {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number beyond the kernel's last capability.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(error) => {
                return Err(error).at(Stage::Caps, "drop a capability from the bounding set");
            }
        }
    }
    Ok(())
}

/// Sets the limits, or the hard limit at hand where that is lower.
pub(super) fn set_rlimits(limits: ProcessLimits) -> StepResult {
    let wanted = [
        (Resource::Nofile, limits.nofile),
        (Resource::Fsize, limits.fsize),
        (Resource::Core, 0),
    ];
    let processes = limits.nproc.map(|nproc| (Resource::Nproc, nproc));
    for (resource, wanted) in wanted.into_iter().chain(processes) {
        let hard = rustix::process::getrlimit(resource).maximum;
        let value = hard.map_or(wanted, |hard| hard.min(wanted));
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(value),
                maximum: Some(value),
            },
        )
        .at(Stage::Rlimit, &format!("set {resource:?} to {value}"))?;
    }
    Ok(())
}
