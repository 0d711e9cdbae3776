//! `sandbox explain`: the walls in words, or the whole plan as JSON.
//!
//! Must not build anything.

use super::room::{self, NoRoom};
use super::{Mode, NO_WALLS, WallArgs};
use crate::cli::streams::Streams;
use crate::cli::trust::shown;
use crate::config::{Config, show_size};
use crate::model::foreign;
use crate::sandbox::{ShimPlan, Tree};
use crate::wire::shim::{Access, Mount, Net, Source};

/// Prints the plan; gives the exit code.
pub(super) fn explain(args: &WallArgs, config: &Config, json: bool, streams: &mut Streams) -> u8 {
    let planned = planned(args, config);
    let (plan, workspace) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            streams.err.line(&format!("marshal: {error}"));
            return NO_WALLS;
        }
    };
    if json {
        match serde_json::to_string(&plan) {
            Ok(document) => streams.out.json(&document),
            Err(error) => {
                streams.err.line(&format!("marshal: no JSON: {error}"));
                return NO_WALLS;
            }
        }
        return 0;
    }
    for line in lines(args, &plan, &workspace) {
        streams.out.line(&line);
    }
    0
}

fn planned(args: &WallArgs, config: &Config) -> Result<(ShimPlan, String), NoRoom> {
    let wanted = room::look(args, config)?;
    let (ids, _held) = room::ids(args.launcher)?;
    let workspace = match args.mode {
        // It would be made at the start, and belong to the command.
        Mode::Copy => Tree {
            owner: ids.outside(),
            identity: None,
            ..room::tree(&wanted.workspace, true)?
        },
        Mode::Ro => room::tree(&wanted.workspace, false)?,
        Mode::Rw => room::tree(&wanted.workspace, true)?,
    };
    let plan = room::plan(args, &wanted, ids, workspace)?;
    let shown = shown(&wanted.workspace);
    Ok((plan, shown))
}

fn lines(args: &WallArgs, plan: &ShimPlan, workspace: &str) -> Vec<String> {
    let (uid, gid) = plan.ids.outside();
    let mode = match args.mode {
        Mode::Copy => "in a copy, which is kept below the state directory",
        Mode::Ro => "itself, read-only",
        Mode::Rw => "itself, writable",
    };
    let network = match plan.network {
        Net::Loopback => "a loopback of its own, and nothing else",
        Net::Host => "the host's network: whatever this host reaches",
    };
    let home = match &args.home {
        Some(home) => format!("{}, writable", shown(home)),
        None => "in memory, gone at the end".to_owned(),
    };
    let mut lines = vec![
        format!("profile    {}", args.profile),
        format!("user       uid and gid 1000 inside, {uid} and {gid} on this host"),
        "namespaces user, mount, pid, ipc, uts, cgroup".to_owned()
            + if plan.network == Net::Loopback {
                ", network"
            } else {
                ""
            },
        "also       no capabilities, no_new_privs, no further user namespaces".to_owned(),
        format!("network    {network}"),
        format!("host name  {}", foreign::show(&plan.hostname, 64)),
        format!("workspace  {workspace}, {mode}, as /workspace"),
        format!("home       {home}, as /home/agent"),
        "sees".to_owned(),
    ];
    lines.extend(
        plan.mounts
            .iter()
            .map(|mount| format!("  {}", told(mount, args.mode))),
    );
    lines.push("and nothing else of this host's files".to_owned());
    lines
}

fn told(mount: &Mount, mode: Mode) -> String {
    let show = |text: &str| foreign::show(text, 200);
    match mount {
        Mount::Tree {
            source,
            target,
            access,
            optional,
            ..
        } => {
            let access = match access {
                Access::Ro => "read-only",
                Access::Rw => "writable ",
                Access::Device => "device   ",
            };
            let from = match source {
                Source::OwnBinary => " (this program)".to_owned(),
                Source::Path(_)
                    if target == crate::sandbox::WORKSPACE_INSIDE && mode == Mode::Copy =>
                {
                    " (the copy)".to_owned()
                }
                Source::Path(path) if path == target => String::new(),
                Source::Path(path) => format!(" = {}", show(path)),
            };
            let maybe = if *optional { ", if it is there" } else { "" };
            format!("{access}  {}{from}{maybe}", show(target))
        }
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
        Mount::Dir { target } => format!("empty      {}", show(target)),
        Mount::File { target, .. } => format!("made       {}", show(target)),
        Mount::Link { target, to } => format!("link       {} -> {}", show(target), show(to)),
    }
}
