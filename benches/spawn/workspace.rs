//! How soon an agent can work in a large workspace: an overlay of it, a copy of it, and the same
//! sandbox with the directory itself read-only, alternating in one run.
//!
//! A round of a side requests its workspace and starts a shell in a sandbox with it. The round ends
//! when the shell has read a file and, where it may, written one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marshal_config::{Config, DEFAULT, Network, Origin, Sandbox};
use marshal_launch::{LaunchPlan, SandboxSpec, Spawner, run_to_end};
use marshal_model::SessionId;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::{Listing, Masks, Overlay, Owner, Root, copy};
use marshal_sandbox::{self as sandbox, HostIds, SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;
use serde_json::{Map, Value, json};

use crate::sides::own_ids;
use crate::{Failure, at};

/// The number of files in one directory.
const IN_ONE: u32 = 100;
/// How long a shell may take until it is ready.
const START: Duration = Duration::from_secs(60);

/// The ways to give the workspace to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The directory itself, read-only: only the sandbox costs.
    Plain,
    Overlay,
    Copy,
}

impl Way {
    const ALL: [Self; 3] = [Self::Plain, Self::Overlay, Self::Copy];

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Overlay => "overlay",
            Self::Copy => "copy",
        }
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Plain => "cat 0/0",
            Self::Overlay | Self::Copy => "echo new > 0/0 && cat 0/1",
        }
    }
}

/// The measurements of one way.
#[derive(Debug, Default)]
struct Measured {
    /// From the request until the workspace exists on the host.
    made: Vec<Duration>,
    /// From the request until the shell inside has used it and ended.
    used: Vec<Duration>,
}

struct Bench {
    dir: tempfile::TempDir,
    ids: HostIds,
    profile: Sandbox,
    spawner: Spawner,
    state: StateDir,
}

/// Creates a workspace of this many files and uses it in every way, `rounds` times; copies only
/// `copies` times. Returns lines of JSON.
pub(crate) fn measure(
    marshal: &Path,
    profile: &str,
    files: u32,
    rounds: u32,
    copies: u32,
    runtime: &tokio::runtime::Runtime,
) -> Result<Vec<Value>, Failure> {
    let bench = Bench::new(marshal, profile, files)?;
    let mut all = Way::ALL.map(|way| (way, Measured::default()));
    // The first round reads files from the disk, so it is not measured.
    for round in 0..=rounds {
        for (way, measured) in &mut all {
            if *way == Way::Copy && (round == 0 || round > copies) {
                continue;
            }
            let (made, used) = runtime
                .block_on(bench.once(*way, round))
                .map_err(|error| format!("{}: {error}", way.name()))?;
            if round > 0 {
                measured.made.push(made);
                measured.used.push(used);
            }
        }
    }
    let half = |of: &[Duration]| at(of, 500);
    let mut lines: Vec<Value> = all
        .iter()
        .map(|(way, measured)| {
            json!({
                "workspace": way.name(),
                "files": files,
                "rounds": measured.used.len(),
                "made_p50_ms": half(&measured.made),
                "used_p10_ms": at(&measured.used, 100),
                "used_p50_ms": half(&measured.used),
                "used_p90_ms": at(&measured.used, 900),
            })
        })
        .collect();
    let [plain, overlay, copy] = all.map(|(_, measured)| half(&measured.used));
    let mut ratios = Map::new();
    ratios.insert("overlay/plain".to_owned(), Value::from(overlay / plain));
    ratios.insert("overlay/copy".to_owned(), Value::from(overlay / copy));
    lines.push(json!({ "used_p50_ratios": ratios, "overlay_over_plain_ms": overlay - plain }));
    Ok(lines)
}

impl Bench {
    fn new(marshal: &Path, profile: &str, files: u32) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("workspace")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let ids = own_ids();
        let config = Config::parse(DEFAULT, &Origin::built_in(dir.path().to_owned()))?;
        let profile = config.sandboxes.get(profile).cloned();
        let profile = profile.ok_or("no such profile")?;
        let project = dir.path().join("project");
        for number in 0..files {
            let below = project.join((number / IN_ONE).to_string());
            if number % IN_ONE == 0 {
                fs::create_dir_all(&below)?;
            }
            fs::write(below.join((number % IN_ONE).to_string()), "text\n")?;
        }
        let home = dir.path().join("home");
        fs::create_dir(&home)?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
        let owner = ids.uid_and_gid();
        chown(&home, Some(owner.0), Some(owner.1))?;
        let state = StateDir::open(&dir.path().join("state"), &[])?;
        Ok(Self {
            ids,
            profile,
            spawner: Spawner::with_executable(marshal.to_owned(), marshal::BUILD)?,
            state,
            dir,
        })
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    async fn once(&self, way: Way, round: u32) -> Result<(Duration, Duration), Failure> {
        let session = SessionId::new(&format!("round-{round}"))?;
        let owner = self.ids.uid_and_gid();
        let owned = matches!(self.ids, HostIds::Root { .. }).then_some(Owner {
            uid: owner.0,
            gid: owner.1,
        });
        let tree = |path: PathBuf, owner, access| Tree {
            path,
            owner,
            access,
            identity: None,
        };
        let requested = Instant::now();
        let lower = Root::open_resolved(&self.project())?;
        let meta = fs::metadata(self.project())?;
        let whole = tree(self.project(), (meta.uid(), meta.gid()), MountAccess::Rw);
        let (workspace, over) = match way {
            Way::Plain => {
                let access = MountAccess::Ro;
                (Tree { access, ..whole }, None)
            }
            Way::Overlay => {
                let root = self.state.overlays();
                let guard = Overlay::prepare(root, &session, &lower, "bench", owned)?;
                (whole, Some(guard))
            }
            Way::Copy => {
                let (all, bounds) = (
                    Listing::Except(Masks::default().into()),
                    copy::CopyBounds::default(),
                );
                copy::create(&self.state, &session, (&lower, &all), &[], owned, bounds)?;
                let path = self.state.copies().path().join(session.as_str());
                (tree(path, owner, MountAccess::Rw), None)
            }
        };
        let made = requested.elapsed();
        let layer = match &over {
            Some(guard) => {
                let owner = guard.owner()?;
                Some((guard.path().to_owned(), (owner.uid, owner.gid)))
            }
            None => None,
        };
        let sandbox_spec = sandbox::plan(&SandboxRequest {
            network: Network::None,
            home: Some(tree(self.dir.path().join("home"), owner, MountAccess::Rw)),
            workspace: Some(workspace),
            overlay: layer,
            hostname: "bench",
            ..sandbox::probe_request(&self.profile, self.ids)
        })?;
        let plan = LaunchPlan {
            argv: ["/bin/sh", "-c", way.script()].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: sandbox::WORKSPACE_INSIDE.to_owned(),
            limits: sandbox::limits_of(&self.profile),
            sandbox: SandboxSpec::Shim(Box::new(sandbox_spec)),
            preamble: Vec::new(),
        };
        let finished = run_to_end(&self.spawner, plan, START, 1 << 10).await?;
        let used = requested.elapsed();
        if finished.stdout != b"text\n" {
            let output = String::from_utf8_lossy(&finished.stderr).into_owned();
            return Err(format!("it could not be used: {output}").into());
        }
        match (way, over) {
            (Way::Overlay, Some(guard)) => guard.discard()?,
            (Way::Copy, _) => {
                fs::remove_dir_all(self.state.copies().path().join(session.as_str()))?;
            }
            _ => {}
        }
        Ok((made, used))
    }
}
