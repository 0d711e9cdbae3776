//! A workspace that an agent can write and that stays as it is: what is seen inside, what is kept,
//! and how long it takes to be ready.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use marshal_config as config;
use marshal_model::SessionId;
use marshal_policy::{FsEntry, Resolver};
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::manifest::Manifest;
use marshal_sandbox::workspace::{
    Listing, Masks, MergedView, Overlay, OverlayError, Owner, Root, TreeResolver, copy, overlay,
};
use marshal_sandbox::{SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

use crate::children::{
    Place, SLOT_UID, give, ids, is_root, marshal, profile, run, script_output, walled,
};

/// A workspace and a state directory.
pub(crate) struct OverlayHost {
    pub(crate) place: Place,
    pub(crate) profile: config::Sandbox,
}

pub(crate) fn session() -> SessionId {
    SessionId::new("s-1").unwrap()
}

/// What a command of the program said.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl OverlayHost {
    pub(crate) fn new() -> Self {
        let over = Self {
            place: Place::new(),
            profile: config::Sandbox {
                fsize: 8 << 30,
                ..profile()
            },
        };
        for dir in ["project", "state", "state/overlays"] {
            fs::create_dir(over.at(dir)).unwrap();
        }
        for dir in ["state", "state/overlays"] {
            fs::set_permissions(over.at(dir), fs::Permissions::from_mode(0o700)).unwrap();
        }
        over.config("");
        over
    }

    pub(crate) fn config(&self, more: &str) {
        let text = format!(
            "[supervisor]\nstate_dir = \"state\"\n[pool.demo]\nagent = \"script\"\n\
             workspace = {{ path = \"project\", mode = \"overlay\" }}\n{more}\n"
        );
        fs::write(self.at("supervisor.toml"), text).unwrap();
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.place.path(path)
    }

    pub(crate) fn project(&self, path: &str) -> PathBuf {
        self.at("project").join(path)
    }

    pub(crate) fn upper(&self, path: &str) -> PathBuf {
        self.at("state/overlays/s-1/upper").join(path)
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.project(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.project(path)).unwrap()
    }

    pub(crate) fn overlays(&self) -> Root {
        Root::open(&self.at("state/overlays")).unwrap()
    }

    pub(crate) fn prepare(&self) -> Result<Overlay, OverlayError> {
        let lower = Root::open_resolved(&self.at("project")).unwrap();
        let owner = is_root().then_some(Owner {
            uid: SLOT_UID,
            gid: SLOT_UID,
        });
        Overlay::prepare(&self.overlays(), &session(), &lower, "demo", owner)
    }

    pub(crate) fn request(&self, guard: &Overlay) -> SandboxRequest<'_> {
        let meta = fs::metadata(self.at("project")).unwrap();
        let owner = guard.owner().unwrap();
        SandboxRequest {
            workspace: Some(Tree {
                path: self.at("project"),
                owner: (meta.uid(), meta.gid()),
                access: MountAccess::Rw,
                identity: Some((meta.dev(), meta.ino())),
            }),
            overlay: Some((guard.path().to_owned(), (owner.uid, owner.gid))),
            ..self.place.request(&self.profile)
        }
    }

    /// What a script says in a session of its own, or in the one that is there.
    pub(crate) async fn session_says(&self, script: &str) -> String {
        // A file of the same moment as the session's beginning counts as changed since.
        std::thread::sleep(Duration::from_millis(20));
        let guard = self.prepare().unwrap();
        let output = script_output(&self.request(&guard), script).await;
        guard.changes(&Manifest::default()).unwrap();
        drop(guard);
        self.is_free();
        output
    }

    /// Waits until nobody has the session's lock: what other tests start beside holds it, too, until it is
    /// another program. By a process of its own, because nobody else inherits what that opens.
    fn is_free(&self) {
        let lock = self.at("state/overlays/s-1,lock");
        let mut locks = Command::new("flock");
        let free = locks.args(["-w", "30"]).arg(lock).arg("true").status();
        assert!(free.unwrap().success(), "its lock is held");
    }

    /// Runs a command of the program. What other tests start beside may hold a lock of this process
    /// until it is another program, so a busy overlay is looked at again.
    pub(crate) fn run_unless_busy(&self, args: &[&str]) -> CommandOutput {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let reported = self.run_once(args);
            if !reported.err.contains("is still running") || Instant::now() > until {
                return reported;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn run_once(&self, args: &[&str]) -> CommandOutput {
        let output = Command::new(marshal())
            .arg("--config")
            .arg(self.at("supervisor.toml"))
            .args(args)
            .current_dir(self.at("."))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.at("home"))
            .output()
            .unwrap();
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Everything in the workspace: path, kind, mode, content or target.
    pub(crate) fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(&self.at("project"), Path::new(""), &mut found);
        found.sort();
        found
    }
}

fn list(root: &Path, below: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        let meta = entry.path().symlink_metadata().unwrap();
        let what = if meta.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).unwrap().display())
        } else if meta.is_dir() {
            list(root, &path, found);
            "/".to_owned()
        } else {
            String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned()
        };
        found.push(format!(
            "{} {:o} {what:?}",
            path.display(),
            meta.mode() & 0o7777
        ));
    }
}

#[tokio::test]
async fn an_agent_changes_its_view_and_nothing_below_it() {
    let over = OverlayHost::new();
    for path in ["kept", "changed", "gone", "dir/a", "dir/b", "tree/x/y"] {
        over.put(path, "old\n");
    }
    let before = over.tree();
    let reported = over
        .session_says(
            "stat -c '%u:%g %n' . kept dir/a; echo new > changed; rm gone; rm -r tree; mkdir tree; \
             echo z > tree/z; chmod 755 kept; mv dir/a dir/c; echo n > new; ln -s dir/c link; \
             cat changed dir/c tree/z; ls; ls tree; test -e gone || echo no; touch /workspace/x; rm x",
        )
        .await;
    let expect = "1000:1000 .\n1000:1000 kept\n1000:1000 dir/a\nnew\nold\nz\nchanged\ndir\nkept\n\
                  link\nnew\ntree\nz\nno\n";
    assert_eq!(reported, expect);
    assert_eq!(over.tree(), before, "the workspace is as it was");
    // The session goes on: what it wrote is there again.
    let reported = over.session_says("cat changed new dir/c; ls tree").await;
    assert_eq!(reported, "new\nn\nold\nz\n");
    for name in ["changed", "new", "dir/c", "tree/z"] {
        let meta = fs::metadata(over.upper(name)).unwrap();
        let owner = if is_root() {
            (SLOT_UID, SLOT_UID)
        } else {
            ids().uid_and_gid()
        };
        assert_eq!((meta.uid(), meta.gid()), owner, "{name}");
    }
}

#[tokio::test]
async fn another_slot_goes_on_with_what_the_first_one_wrote() {
    if !is_root() {
        return; // There is one user only.
    }
    let over = OverlayHost::new();
    over.put("a", "old\n");
    over.session_says("echo new > a; echo b > b; chmod 600 b")
        .await;
    let guard = over.prepare().unwrap();
    let request = SandboxRequest {
        ids: marshal_sandbox::HostIds::Root {
            slot_uid: SLOT_UID + 1,
        },
        home: None,
        ..over.request(&guard)
    };
    let output = script_output(
        &request,
        "cat a b; echo more >> b; echo c > c; rm a; stat -c %u c",
    )
    .await;
    assert_eq!(output, "new\nb\n1000\n");
    for name in ["b", "c"] {
        assert_eq!(fs::metadata(over.upper(name)).unwrap().uid(), SLOT_UID);
    }
}

#[tokio::test]
async fn set_id_devices_and_mounts_are_nothing_in_there() {
    let over = OverlayHost::new();
    over.put("a", "old\n");
    let guard = over.prepare().unwrap();
    let script = "grep ' /workspace ' /proc/self/mountinfo | cut -d' ' -f6; \
                  mknod d c 1 3 2>/dev/null && echo device; \
                  mknod w c 0 0 2>/dev/null && echo whiteout; \
                  umount /workspace 2>/dev/null && echo unmounted; \
                  mount -o remount,suid /workspace 2>/dev/null && echo remounted; \
                  ls /tmp /run/marshal";
    let output = script_output(&over.request(&guard), script).await;
    let (flags, rest) = output.split_once('\n').unwrap();
    assert!(flags.starts_with("rw,nosuid,nodev"), "{output}");
    assert_eq!(rest, "/run/marshal:\nmarshal\n\n/tmp:\n", "{output}");
}

#[tokio::test]
async fn one_process_works_with_an_overlay_at_a_time() {
    let over = OverlayHost::new();
    let guard = over.prepare().unwrap();
    assert!(matches!(over.prepare(), Err(OverlayError::Busy(_))));
    let reported = over.run_once(&["diff", "s-1"]);
    assert_eq!(reported.code, Some(1), "{}", reported.err);
    assert!(reported.err.contains("still running"), "{}", reported.err);
    drop(guard);
    let reported = over.run_unless_busy(&["diff", "s-1"]);
    assert_eq!(
        (reported.code, &*reported.out),
        (Some(0), ""),
        "{}",
        reported.err
    );
    let reported = over.run_unless_busy(&["diff", "s-2"]);
    assert_eq!(reported.code, Some(2), "{}", reported.err);
    assert!(
        reported.err.contains("the session s-2 has no overlay"),
        "{}",
        reported.err
    );
}

#[tokio::test]
async fn what_cannot_be_overlaid_is_refused_with_what_to_do() {
    let over = OverlayHost::new();
    let guard = over.prepare().unwrap();
    // procfs can be neither mapped nor a lower directory.
    let request = SandboxRequest {
        workspace: Some(Tree {
            path: "/proc/sys".into(),
            owner: ids().uid_and_gid(),
            access: MountAccess::Rw,
            identity: None,
        }),
        overlay: Some((over.at("home"), ids().uid_and_gid())),
        ..over.request(&guard)
    };
    let failed = run(walled(&request, "true")).await.unwrap_err().to_string();
    assert!(failed.contains("copy"), "{failed}");
    assert!(failed.contains("/proc/sys"), "{failed}");
    drop(guard);
    if is_root() {
        return;
    }
    // An ordinary user cannot give a file away; of root's there are enough.
    let lower = Root::open_resolved(Path::new("/usr")).unwrap();
    let other = SessionId::new("s-2").unwrap();
    let refused = Overlay::prepare(&over.overlays(), &other, &lower, "demo", None).unwrap_err();
    let shown = refused.to_string();
    assert!(shown.contains("/usr belongs to uid 0"), "{shown}");
    assert!(shown.contains("mode \"copy\""), "{shown}");
}

#[tokio::test]
async fn paths_are_judged_as_the_agent_sees_them() {
    let over = OverlayHost::new();
    for path in ["plain", "covered/a", "hidden/deep/x", "gone"] {
        over.put(path, "old\n");
    }
    symlink("/etc", over.project("below")).unwrap();
    symlink("plain", over.project("was")).unwrap();
    over.session_says(
        "ln -s /etc/shadow evil; rm was; echo x > was; rm gone; rm -r hidden; mkdir hidden; \
         ln -s .. hidden/up; rm -r covered; ln -s /home covered",
    )
    .await;
    let links = TreeResolver::new().with_merged(
        "/workspace",
        MergedView::new(
            Root::open(&over.upper("")).unwrap(),
            Root::open(&over.at("project")).unwrap(),
        ),
    );
    let link = |to: &str| FsEntry::Link(to.to_owned());
    for (path, expect) in [
        ("/workspace", FsEntry::Directory),
        ("/workspace/plain", FsEntry::File),
        ("/workspace/below", link("/etc")),
        ("/workspace/evil", link("/etc/shadow")),
        ("/workspace/was", FsEntry::File),
        ("/workspace/gone", FsEntry::Missing),
        ("/workspace/hidden", FsEntry::Directory),
        ("/workspace/hidden/deep", FsEntry::Missing),
        ("/workspace/hidden/up", link("..")),
        ("/workspace/covered", link("/home")),
        ("/workspace/covered/a", FsEntry::Unresolved),
        ("/workspace/evil/x", FsEntry::Unresolved),
    ] {
        assert_eq!(links.lookup(path), expect, "{path}");
    }
    let mut names = links.list_links("/workspace").unwrap();
    names.sort();
    names.dedup();
    assert_eq!(names, ["below", "covered", "evil", "was"]);
    assert_eq!(links.list_links("/workspace/hidden").unwrap(), ["up"]);
}

#[tokio::test]
async fn changes_come_from_what_was_written_alone() {
    let over = OverlayHost::new();
    for path in [
        "same", "changed", "gone", "dir/a", "dir/b", "tree/x", "mode",
    ] {
        over.put(path, "old\n");
    }
    std::thread::sleep(Duration::from_millis(20));
    let guard = over.prepare().unwrap();
    script_output(
        &over.request(&guard),
        "echo new > changed; rm gone; rm -r dir; rm -r tree; mkdir tree; echo y > tree/y; \
         chmod 700 mode; mkdir -p d/e; echo f > d/e/f; mkdir empty; cat same",
    )
    .await;
    let words = |before: &Manifest| -> Vec<String> {
        let changes = guard.changes(before).unwrap();
        assert!(!changes.is_truncated);
        let word = |c: &marshal_sandbox::workspace::Change| format!("{} {}", c.kind, c.path.raw());
        changes.list.iter().map(word).collect()
    };
    let all = [
        "modified changed",
        "added d/e/f",
        "deleted dir/a",
        "deleted dir/b",
        "added empty",
        "deleted gone",
        "modified mode",
        "deleted tree/x",
        "added tree/y",
    ];
    assert_eq!(words(&Manifest::default()), all);
    // The next task of the same session tells its own.
    let before = Manifest::record(&guard.upper().unwrap()).unwrap();
    assert_eq!(words(&before), Vec::<String>::new());
    script_output(&over.request(&guard), "echo more >> changed; rm same").await;
    assert_eq!(words(&before), ["modified changed", "deleted same"]);
}

/// The promise is 20,000 files ready in 10 ms on a quiet machine; on a busy one the sandbox itself
/// take ten times that, so what is asserted is the ratio to a copy, with much room.
#[tokio::test]
async fn a_large_workspace_is_ready_at_once() {
    let over = OverlayHost::new();
    for dir in 0..200 {
        fs::create_dir(over.project(&format!("{dir}"))).unwrap();
        for file in 0..100 {
            fs::write(over.project(&format!("{dir}/{file}")), "text\n").unwrap();
        }
    }
    give(&over.at("home"), ids().uid_and_gid());
    let longest = || Duration::MAX;
    let (mut made, mut with, mut without) = (longest(), longest(), longest());
    for round in 0..8 {
        let lower = Root::open_resolved(&over.at("project")).unwrap();
        let name = SessionId::new(&format!("r-{round}")).unwrap();
        let owner = is_root().then_some(Owner {
            uid: SLOT_UID,
            gid: SLOT_UID,
        });
        let began = Instant::now();
        let guard = Overlay::prepare(&over.overlays(), &name, &lower, "demo", owner).unwrap();
        made = made.min(began.elapsed());
        // What the mount takes is the difference to the same sandbox without it.
        let overlaid = over.request(&guard);
        let plain = SandboxRequest {
            overlay: None,
            workspace: overlaid.workspace.clone().map(|tree| Tree {
                access: MountAccess::Ro,
                ..tree
            }),
            ..overlaid.clone()
        };
        for (request, least) in [(&overlaid, &mut with), (&plain, &mut without)] {
            let began = Instant::now();
            script_output(request, "true").await;
            *least = began.elapsed().min(*least);
        }
    }
    let least = made + with.saturating_sub(without);
    let state = StateDir::open(&over.at("copying"), &[]).unwrap();
    let lower = Root::open_resolved(&over.at("project")).unwrap();
    let began = Instant::now();
    let bounds = copy::CopyBounds::default();
    copy::create(
        &state,
        &session(),
        (&lower, &Listing::Except(Masks::default().into())),
        &[],
        None,
        bounds,
    )
    .unwrap();
    let copied = began.elapsed();
    eprintln!(
        "20,000 files: overlay {least:?} (made {made:?}, {with:?} against {without:?}), copy {copied:?}"
    );
    assert!(least < Duration::from_millis(500), "{least:?}");
    assert!(least * 10 < copied, "{least:?} against {copied:?}");
    assert!(
        overlay::path(&over.overlays(), &session())
            .symlink_metadata()
            .is_err()
    );
}
