//! What a helper does to its own process: descriptors, parent, ids, capabilities, limits.
//!
//! Every helper has one thread, so per-thread settings apply to the process. Must not know mounts
//! or messages.

use std::fs;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getppid};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use super::failure::{FailureContext, StepResult, failure};
use marshal_wire::shim::{ProcessLimits, Stage};

/// Closes every descriptor except 0, 1 and 2. Call it before anything is opened: it closes by
/// number.
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
        // The list contains the directory's own descriptor, which is closed already: EBADF is
        // expected.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Asks the kernel to send `signal` when the parent's thread that started this process ends, and
/// then checks that this parent (`pid`, if it is visible from here) is still alive.
///
/// Repeat it after every change of ids, which resets it (prctl(2)).
pub(super) fn die_with_parent(signal: Signal, pid: Option<u32>) -> StepResult {
    rustix::process::set_parent_process_death_signal(Some(signal))
        .at(Stage::Shim, "set the parent-death signal")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if pid.is_some() && parent != pid {
        return Err(failure(
            Stage::Shim,
            "the supervisor ended before its helper started",
        ));
    }
    Ok(())
}

/// Sets whether other processes of the same uid can trace this process and read its memory,
/// environment and descriptors.
pub(super) fn set_dumpable(behaviour: DumpableBehavior) -> StepResult {
    rustix::process::set_dumpable_behavior(behaviour).at(Stage::Shim, "set dumpable")
}

/// From now on no exec gains privileges by set-uid bits or file capabilities.
pub(super) fn no_new_privileges() -> StepResult {
    rustix::thread::set_no_new_privs(true).at(Stage::Caps, "set no_new_privs")
}

/// Switches to this user permanently, without supplementary groups.
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
        .at(Stage::Uid, "switch to the slot's gid")?;
    rustix::thread::set_thread_res_uid(user, user, user).at(Stage::Uid, "switch to the slot's uid")
}

/// Keeps these capabilities across the exec of a program without file capabilities
/// (capabilities(7), "ambient").
pub(super) fn keep_capabilities_across_exec(capabilities: CapabilitySet) -> StepResult {
    let mut sets = rustix::thread::capabilities(None).at(Stage::Caps, "read the capabilities")?;
    sets.inheritable = capabilities;
    rustix::thread::set_capabilities(None, sets).at(Stage::Caps, "set the capabilities")?;
    for capability in capabilities.iter() {
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
            // The first number after the kernel's last capability.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(error) => {
                return Err(error).at(Stage::Caps, "drop a capability from the bounding set");
            }
        }
    }
    Ok(())
}

/// Sets the resource limits, capped at the current hard limits.
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
