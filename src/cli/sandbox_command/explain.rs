//! `sandbox explain`: describes the sandbox, or prints the whole plan as JSON.
//!
//! Must not build anything.

use super::preparation::{self, PrepareError};
use super::{NO_SANDBOX, SandboxArgs, WorkspaceModeArg};
use crate::cli::doctor::{own_ids, preflight};
use crate::cli::streams::Streams;
use crate::cli::trust::display_path;
use marshal_config::{Config, OnMissing, Sandbox, Seccomp, show_size};
use marshal_model::untrusted;
use marshal_sandbox::doctor::Row;
use marshal_sandbox::{HostIds, ShimPlan, Tree};
use marshal_wire::shim::{Mount, MountAccess, MountSource, NetworkMode};

/// Prints the plan; returns the exit code.
pub(super) fn explain(
    args: &SandboxArgs,
    config: &Config,
    json: bool,
    streams: &mut Streams,
) -> u8 {
    let planned = build_plan(args, config);
    let (plan, workspace, ids) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            streams.err.line(&format!("marshal: {error}"));
            return NO_SANDBOX;
        }
    };
    if json {
        match serde_json::to_string(&plan) {
            Ok(document) => streams.out.json(&document),
            Err(error) => {
                streams
                    .err
                    .line(&format!("marshal: cannot write the plan as JSON: {error}"));
                return NO_SANDBOX;
            }
        }
        return 0;
    }
    let Some(profile) = config.sandboxes.get(args.profile()) else {
        return NO_SANDBOX;
    };
    for line in lines(args, profile, &plan, &workspace) {
        streams.out.line(&line);
    }
    for row in preflight::missing_rows(
        args.profile(),
        profile,
        ids,
        plan.network == NetworkMode::Loopback,
    ) {
        streams.out.line(&lack(&row));
    }
    0
}

fn build_plan(
    args: &SandboxArgs,
    config: &Config,
) -> Result<(ShimPlan, String, HostIds), PrepareError> {
    let wanted = preparation::check_args(args, config)?;
    // Also explain a sandbox that cannot be built here.
    let (ids, _held) = match preparation::ids(wanted.profile, args.launcher) {
        Err(PrepareError::SharedUid) => (own_ids(), None),
        ids => ids?,
    };
    let workspace = match args.mode {
        // The copy would be made at the start, and the command would own it.
        WorkspaceModeArg::Copy => Tree {
            owner: ids.uid_and_gid(),
            identity: None,
            ..preparation::tree(&wanted.workspace, true)?
        },
        WorkspaceModeArg::Ro => preparation::tree(&wanted.workspace, false)?,
        WorkspaceModeArg::Rw => preparation::tree(&wanted.workspace, true)?,
    };
    let plan = preparation::plan(args, &wanted, ids, workspace)?;
    let shown = display_path(&wanted.workspace);
    Ok((plan, shown, ids))
}

fn lines(args: &SandboxArgs, profile: &Sandbox, plan: &ShimPlan, workspace: &str) -> Vec<String> {
    let (uid, gid) = plan.ids.uid_and_gid();
    let whose = match plan.ids {
        HostIds::Root { .. } => "used by nothing else",
        HostIds::Own { .. } => "the same as your own (shared_uid)",
    };
    let mode = match args.mode {
        WorkspaceModeArg::Copy => "as a copy, which is kept below the state directory",
        WorkspaceModeArg::Ro => "read-only",
        WorkspaceModeArg::Rw => "writable",
    };
    let network = match plan.network {
        NetworkMode::Loopback => "a private loopback, and nothing else",
        NetworkMode::Host => "the network of this host",
    };
    let home = match &args.home {
        Some(home) => format!("{}, writable", display_path(home)),
        None => "in memory, removed at the end".to_owned(),
    };
    let mut lines = vec![
        format!("profile    {}", args.profile()),
        format!("user       uid and gid 1000 inside, {uid} and {gid} on this host, {whose}"),
        "namespaces user, mount, pid, ipc, uts, cgroup".to_owned()
            + if plan.network == NetworkMode::Loopback {
                ", network"
            } else {
                ""
            },
        "also       no capabilities, no_new_privs, no further user namespaces".to_owned(),
        format!(
            "limits     {} open files, files of at most {}, no core dumps; together {}",
            profile.nofile,
            show_size(profile.fsize),
            describe_group_limits(profile)
        ),
        format!("seccomp    {}", seccomp(profile)),
        format!("landlock   {}", landlock(profile)),
        format!("if missing {}", on_missing(profile)),
        format!("network    {network}"),
        format!(
            "host name  {}",
            untrusted::escape_for_display(&plan.hostname, 64)
        ),
        format!("workspace  {workspace}, {mode}, as /workspace"),
        format!("home       {home}, as /home/agent"),
        "sees".to_owned(),
    ];
    lines.extend(
        plan.mounts
            .iter()
            .map(|mount| format!("  {}", describe_mount(mount, args.mode))),
    );
    lines.push("and no other files of this host".to_owned());
    lines
}

/// The limits of the command and all its processes together.
fn describe_group_limits(profile: &Sandbox) -> String {
    let limits = &profile.group_limits;
    let none = || "any".to_owned();
    format!(
        "{} processes, {} of memory, {} of swap, {} CPUs (backend: {})",
        limits.pids.map_or_else(none, |pids| pids.to_string()),
        limits.memory.map_or_else(none, show_size),
        limits.swap.map_or_else(none, show_size),
        limits.cpu_millis.map_or_else(none, |millis| format!(
            "{}.{:03}",
            millis / 1000,
            millis % 1000
        )),
        limits.backend
    )
}

fn seccomp(profile: &Sandbox) -> String {
    match &profile.seccomp {
        Seccomp::Default => "the built-in list of allowed system calls".to_owned(),
        Seccomp::Off => "off: every system call of this kernel is allowed".to_owned(),
        Seccomp::File(path) => format!("the system calls that {} allows", display_path(path)),
    }
}

fn landlock(profile: &Sandbox) -> String {
    match profile.landlock_min_abi {
        0 => "the highest ABI of this kernel, or none".to_owned(),
        least => format!("the highest ABI of this kernel, at least {least}"),
    }
}

/// What happens to a command if this host lacks a layer.
fn on_missing(profile: &Sandbox) -> String {
    let demands = &profile.requirements;
    let words: Vec<&str> = demands
        .allow_degrade
        .iter()
        .map(|word| word.as_str())
        .collect();
    match demands.on_missing {
        OnMissing::Fail => "the command does not run".to_owned(),
        OnMissing::Degrade => format!(
            "the command runs without {}; without any other layer, it does not run",
            words.join(", ")
        ),
    }
}

/// A line about a feature that this host lacks.
fn lack(row: &Row) -> String {
    let found = &row.result;
    let hint = found.hint.as_deref().map_or_else(String::new, |hint| {
        format!("; {}", untrusted::escape_for_display(hint, 300))
    });
    format!(
        "here       {} {}: {}{hint}",
        row.status,
        row.query.feature,
        untrusted::escape_for_display(&found.detail, 200)
    )
}

fn describe_mount(mount: &Mount, mode: WorkspaceModeArg) -> String {
    let show = |text: &str| untrusted::escape_for_display(text, 200);
    match mount {
        Mount::Tree {
            source,
            target,
            access,
            optional,
            ..
        } => {
            let access = match access {
                MountAccess::Ro => "read-only",
                MountAccess::Rw => "writable ",
                MountAccess::Device => "device   ",
            };
            let from = match source {
                MountSource::OwnBinary => " (this program)".to_owned(),
                MountSource::Path(_)
                    if target == marshal_sandbox::WORKSPACE_INSIDE
                        && mode == WorkspaceModeArg::Copy =>
                {
                    " (the copy)".to_owned()
                }
                MountSource::Path(path) if path == target => String::new(),
                MountSource::Path(path) => format!(" = {}", show(path)),
            };
            let maybe = if *optional { ", if it exists" } else { "" };
            format!("{access}  {}{from}{maybe}", show(target))
        }
        Mount::Overlay { target, layers } => format!(
            "overlay    {} on {}, writes to {}",
            show(&layers.lower.path),
            show(target),
            show(&layers.upper.path)
        ),
        Mount::Mirror { path } => format!("as here    {}", show(path)),
        Mount::Tmpfs {
            target,
            bytes,
            inodes,
            ..
        } => format!(
            "in memory  {}, {} and {inodes} files",
            show(target),
            show_size(*bytes)
        ),
        Mount::Proc { pid_only, .. } => {
            let what = if *pid_only {
                "its own processes only"
            } else {
                "its own, masked"
            };
            format!("own        /proc, {what}")
        }
        Mount::Terminals => "own        /dev/pts, terminals".to_owned(),
        Mount::Dir { target } => format!("empty      {}", show(target)),
        Mount::Hidden { target } => format!("hidden     {}", show(target)),
        Mount::Held { target } => format!("stays      {}", show(target)),
        Mount::Replaced { target, .. } => format!("replaced   {}", show(target)),
        Mount::ReadOnly { target } => format!("read-only  {}", show(target)),
        Mount::File { target, .. } => format!("made       {}", show(target)),
        Mount::Link { target, to } => format!("link       {} -> {}", show(target), show(to)),
    }
}
