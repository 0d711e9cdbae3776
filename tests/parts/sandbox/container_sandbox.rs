//! Walls that bubblewrap or a container engine puts up: the same plan, the same view, the same end.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use marshal_launch::cgroup::Enforcement;
use marshal_launch::{
    self as launch, Container, ContainerCli, Engine, LaunchPlan, ProgramOutput, RunError,
    SandboxSpec,
};
use marshal_model::ExitStatus;
use marshal_sandbox::{self as sandbox, SandboxRequest};
use marshal_wire::shim::MountAccess;

use crate::children::{
    self, Place, give, ids, is_root, live_processes, mounts_of, plain, profile, run, spawner, until,
};
use crate::engines;

/// The engines that can be had here: containers for root only.
fn all(place: &Place) -> Vec<Arc<Engine>> {
    let mut all = vec![bwrap()];
    if is_root() {
        all.push(Arc::new(Engine::Container(container(place))));
    }
    all
}

fn bwrap() -> Arc<Engine> {
    Arc::new(Engine::Bwrap {
        program: "/usr/bin/bwrap".to_owned(),
    })
}

/// A container of the tests' image, with this place's label.
fn container(place: &Place) -> Container {
    Container {
        flavour: ContainerCli::Podman,
        program: engines::podman(),
        env: vec![
            (
                "PATH".to_owned(),
                "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            ),
            ("HOME".to_owned(), "/root".to_owned()),
        ],
        limits: None,
        extra: Vec::new(),
        image: engines::image(),
        name: String::new(),
        labels: vec![format!("marshal.test={}", label(place))],
        directory: place.path("engines").to_string_lossy().into_owned(),
    }
}

/// The names of the containers of this place.
fn containers(place: &Place) -> Vec<String> {
    let output = engines::command(&[
        "ps",
        "--all",
        "--format={{.Names}}",
        &format!("--filter=label=marshal.test={}", label(place)),
    ])
    .output()
    .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Nobody else's.
fn label(place: &Place) -> String {
    let home = place.path("home");
    home.parent()
        .and_then(Path::file_name)
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

fn is_bwrap(engine: &Engine) -> bool {
    matches!(engine, Engine::Bwrap { .. })
}

fn walled(request: &SandboxRequest<'_>, engine: &Arc<Engine>, script: &str) -> LaunchPlan {
    let plan = sandbox::plan(request).unwrap();
    LaunchPlan {
        cwd: "/workspace".to_owned(),
        sandbox: SandboxSpec::Engine(Box::new(plan), Arc::clone(engine)),
        ..plain(script)
    }
}

async fn finished(
    request: &SandboxRequest<'_>,
    engine: &Arc<Engine>,
    script: &str,
) -> ProgramOutput {
    run(walled(request, engine, script))
        .await
        .unwrap_or_else(|error| panic!("{engine:?}: {error}"))
}

async fn script_output(request: &SandboxRequest<'_>, engine: &Arc<Engine>, script: &str) -> String {
    let finished = finished(request, engine, script).await;
    let output = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert_eq!(output, "", "stderr of {script} in {engine:?}");
    String::from_utf8(finished.stdout).unwrap()
}

/// Nothing of a child is left: no process with its marker, no container, no mount.
async fn nothing_left(place: &Place, marker: &str) {
    until(Duration::from_secs(10), "all processes gone", || {
        live_processes(marker).is_empty()
    })
    .await;
    if is_root() {
        assert_eq!(containers(place), Vec::<String>::new());
    }
    let home = place.path("home");
    let mounts = mounts_of(home.parent().unwrap());
    assert_eq!(mounts, Vec::<String>::new());
}

#[tokio::test]
async fn the_agent_is_the_same_nobody_as_with_unshare() {
    let (place, profile) = (Place::new(), profile());
    let script = "id -u; id -g; grep -E '^(Cap...|NoNewPrivs|Groups):' /proc/self/status; \
                  hostname 2>/dev/null || cat /etc/hostname; grep ^agent: /etc/passwd; \
                  ls /proc/self/fd | grep -vxE '[0-3]'; \
                  ls /root /var /boot 2>/dev/null; for f in /etc/passwd /new /run/marshal/new \
                  /usr/new /bin/sh /dev/new; do (: >> $f) 2>/dev/null && echo wrote $f; done; \
                  cat /proc/1/environ /proc/1/mem 2>/dev/null; \
                  cut -d: -f1 /proc/self/net/dev | tail -n +3 | tr -d ' '; echo done";
    for engine in all(&place) {
        let seen = script_output(&place.request(&profile), &engine, script).await;
        let status: Vec<&str> = seen.lines().filter(|line| line.contains(":\t")).collect();
        for line in &status {
            let (name, value) = line.split_once(":\t").unwrap();
            let expected = match name {
                "NoNewPrivs" => "1",
                "Groups" => continue,
                _ => "0000000000000000",
            };
            assert_eq!(value, expected, "{name} in {engine:?}");
        }
        assert_eq!(status.len(), 7, "{seen}");
        let rest: Vec<&str> = seen.lines().filter(|line| !line.contains(":\t")).collect();
        let agent = "agent:x:1000:1000:agent:/home/agent:/bin/sh";
        assert_eq!(
            rest,
            ["1000", "1000", "test-0", agent, "lo", "done"],
            "{engine:?}"
        );
        nothing_left(&place, "no marker is known").await;
    }
}

#[tokio::test]
async fn home_and_workspace_are_the_hosts_and_memory_is_bounded() {
    let (place, profile) = (Place::new(), profile());
    let script = "pwd; echo a > /home/agent/h; echo b > w; echo c > /tmp/t; echo d > /dev/shm/s; \
                  stat -c %u:%g /home/agent/h w /tmp/t /home/agent /workspace; \
                  ls -A /tmp; head -c 30000000 /dev/zero > /tmp/big 2>/dev/null || echo full; rm -f /tmp/big";
    for engine in all(&place) {
        let seen = script_output(&place.request(&profile), &engine, script).await;
        let expected = format!("/workspace\n{}t\nfull\n", "1000:1000\n".repeat(5));
        assert_eq!(seen, expected, "{engine:?}");
        for (file, text) in [("home/h", "a\n"), ("workspace/w", "b\n")] {
            let path = place.path(file);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), ids().uid_and_gid());
            fs::remove_file(path).unwrap();
        }
        assert!(!Path::new("/tmp/t").exists());
        if is_root() {
            let script = "i=0; while [ $i -lt 200 ] && touch /tmp/$i; do i=$((i+1)); done 2>/dev/null; \
                          [ $i -gt 50 ] && [ $i -lt 100 ] && echo bounded";
            let seen = finished(&place.request(&profile), &engine, script).await;
            assert_eq!(seen.stdout, b"bounded\n", "inodes in {engine:?}");
        }
    }
}

#[tokio::test]
async fn what_is_read_only_stays_so_and_a_foreign_owner_is_mapped() {
    let (place, profile) = (Place::new(), profile());
    let path = place.path("workspace");
    fs::write(path.join("file"), "text\n").unwrap();
    if is_root() {
        for path in [path.clone(), path.join("file")] {
            give(&path, (children::USER, children::USER));
        }
    }
    fs::set_permissions(path.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    let stat = fs::metadata(&path).unwrap();
    for engine in all(&place) {
        let mut request = place.request(&profile);
        if let Some(tree) = &mut request.workspace {
            tree.owner = (stat.uid(), stat.gid());
            tree.identity = Some((stat.dev(), stat.ino()));
            tree.access = MountAccess::Ro;
        }
        let script = "stat -c %u:%g file; cat file; echo x 2>/dev/null > new || echo sealed";
        let seen = script_output(&request, &engine, script).await;
        assert_eq!(seen, "1000:1000\ntext\nsealed\n", "{engine:?}");
        if let Some(tree) = &mut request.workspace {
            tree.access = MountAccess::Rw;
        }
        let seen = script_output(&request, &engine, "echo y > new; cat new; rm new").await;
        assert_eq!(seen, "y\n", "{engine:?}");
        if let Some(tree) = &mut request.workspace {
            tree.identity = Some((stat.dev(), stat.ino() + 1));
        }
        let error = run(walled(&request, &engine, "echo never"))
            .await
            .unwrap_err();
        let reported = error.to_string();
        assert!(reported.contains("another directory"), "{reported}");
    }
}

#[tokio::test]
async fn proc_tells_nothing_that_could_be_changed() {
    let (place, profile) = (Place::new(), profile());
    let script = "cd /proc; for f in kcore keys timer_list kallsyms kmsg; do \
                  [ -e $f ] && [ -n \"$(head -c 1 $f 2>/dev/null)\" ] && echo read $f; done; \
                  for f in sys/kernel/core_pattern sys/kernel/hostname sysrq-trigger \
                  sys/net/ipv4/ip_forward sys/fs/protected_symlinks; do \
                  [ -c $f ] || { (echo 1 > $f) 2>/dev/null && echo wrote $f; }; done; \
                  ls /sys/* 2>/dev/null | grep -v cgroup; unshare -U true 2>/dev/null && echo a namespace; echo -";
    let before = fs::read("/proc/sys/kernel/core_pattern").unwrap();
    for engine in all(&place) {
        let seen = script_output(&place.request(&profile), &engine, script).await;
        assert_eq!(seen, "-\n", "{engine:?}");
    }
    assert_eq!(fs::read("/proc/sys/kernel/core_pattern").unwrap(), before);
}

#[tokio::test]
async fn the_agents_own_end_is_never_taken_for_the_engines() {
    let (place, profile) = (Place::new(), profile());
    for engine in all(&place) {
        for code in [0, 3, 125, 126, 127, 255] {
            // Containers are dear: three of them tell it.
            if !is_bwrap(&engine) && [0, 3, 255].contains(&code) {
                continue;
            }
            let ended = finished(&place.request(&profile), &engine, &format!("exit {code}")).await;
            assert_eq!(ended.status, ExitStatus::Code(code), "{engine:?}");
        }
        let ended = finished(&place.request(&profile), &engine, "kill -SEGV $$").await;
        assert_eq!(ended.status, ExitStatus::Signal(11), "{engine:?}");
        let mut plan = walled(&place.request(&profile), &engine, "");
        plan.argv = vec!["no-such-program".to_owned()];
        let error = run(plan).await.unwrap_err();
        assert!(
            matches!(&error, RunError::Spawn(launch::SpawnError::Exec(failure)) if failure.errno == Some(2)),
            "{engine:?}: {error}"
        );
    }
}

#[tokio::test]
async fn this_program_runs_inside_any_image() {
    let (place, profile) = (Place::new(), profile());
    for engine in all(&place) {
        let mut plan = walled(&place.request(&profile), &engine, "");
        plan.argv = [sandbox::MARSHAL_INSIDE, "--version"]
            .map(str::to_owned)
            .to_vec();
        let finished = run(plan).await.unwrap();
        let output = String::from_utf8(finished.stdout).unwrap();
        assert!(
            output.contains(env!("CARGO_PKG_VERSION")),
            "{engine:?}: {output}"
        );
    }
}

#[tokio::test]
async fn signals_reach_the_agent_and_what_it_leaves_is_killed() {
    let (place, profile) = (Place::new(), profile());
    let script = "trap 'echo int' INT; trap 'echo term; exit 7' TERM; \
                  (trap '' INT TERM; echo ready; sleep 1000) & while :; do wait; done";
    for engine in all(&place) {
        let mut launched = spawner()
            .spawn(walled(&place.request(&profile), &engine, script))
            .await
            .unwrap();
        let marker = launched.marker.clone();
        assert!(!live_processes(&marker).is_empty(), "{engine:?}");
        let mut reported = String::new();
        hear(&mut launched.stdout, &mut reported, "ready\n").await;
        let waits = marshal_config::StopTimeouts {
            goodbye: Duration::ZERO,
            eof: Duration::ZERO,
            int: Duration::from_secs(20),
            term: Duration::from_secs(20),
        };
        let (keeper, ended) = launch::keep(launched.process, waits);
        keeper.signal(launch::Step::Int);
        hear(&mut launched.stdout, &mut reported, "int\n").await;
        keeper.stop_from(launch::Step::Term);
        let ended = ended.await.unwrap();
        assert_eq!(ended.status, Some(ExitStatus::Code(7)), "{engine:?}");
        assert!(!ended.is_forced && ended.survivors_killed > 0, "{ended:?}");
        assert_eq!(ended.survivors_left, 0, "{ended:?}");
        nothing_left(&place, &marker).await;
    }
}

#[tokio::test]
async fn a_kill_ends_everything_and_so_does_the_loss_of_the_helper() {
    let (place, profile) = (Place::new(), profile());
    let script = "setsid sh -c 'trap \"\" INT TERM HUP; while :; do sleep 1; done' & \
                  trap '' INT TERM; echo ready; while :; do sleep 1; done";
    for engine in all(&place) {
        for by_helper in [false, true] {
            let mut launched = spawner()
                .spawn(walled(&place.request(&profile), &engine, script))
                .await
                .unwrap();
            let (marker, helper) = (launched.marker.clone(), launched.pid);
            let mut reported = String::new();
            hear(&mut launched.stdout, &mut reported, "ready\n").await;
            let waits = marshal_config::StopTimeouts {
                goodbye: Duration::ZERO,
                eof: Duration::ZERO,
                int: Duration::ZERO,
                term: Duration::ZERO,
            };
            let (keeper, ended) = launch::keep(launched.process, waits);
            if by_helper {
                let pid = rustix::process::Pid::from_raw(i32::try_from(helper).unwrap()).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            } else {
                keeper.kill();
            }
            let ended = ended.await.unwrap();
            assert_eq!(ended.survivors_left, 0, "{engine:?}: {ended:?}");
            // A container whose helper was killed is removed by its monitor, a moment later.
            until(Duration::from_secs(10), "processes gone", || {
                live_processes(&marker).is_empty()
            })
            .await;
            if is_root() {
                until(Duration::from_secs(10), "containers gone", || {
                    containers(&place).is_empty()
                })
                .await;
            }
            nothing_left(&place, &marker).await;
        }
    }
}

#[tokio::test]
async fn what_a_mask_hides_is_covered_or_nothing_starts() {
    let (place, profile) = (Place::new(), profile());
    let path = place.path("workspace");
    fs::create_dir_all(path.join("keys")).unwrap();
    fs::create_dir_all(path.join("sub")).unwrap();
    for file in ["keys/a", "sub/.env", "seen"] {
        fs::write(path.join(file), "secret\n").unwrap();
    }
    std::os::unix::fs::symlink("seen", path.join("link")).unwrap();
    if is_root() {
        let owner = ids().uid_and_gid();
        for name in ["", "keys", "keys/a", "sub", "sub/.env", "seen"] {
            give(&path.join(name), owner);
        }
    }
    for engine in all(&place) {
        let mut request = place.request(&profile);
        request.extra_mounts.hidden = vec!["keys".to_owned(), "sub/.env".to_owned()];
        request.extra_mounts.pinned = vec!["link".to_owned(), "sub".to_owned()];
        let script = "cat seen; { cat keys/a sub/.env; ls keys; chmod 777 keys sub/.env; \
                      rm -rf keys sub/.env; mv sub/.env new; mv sub new; rm -f link; \
                      mv link new; } 2>/dev/null; echo done; readlink link; ls -d sub";
        let ran = run(walled(&request, &engine, script)).await;
        if is_root() {
            let output = String::from_utf8(ran.unwrap().stdout).unwrap();
            assert_eq!(output, "secret\ndone\nseen\nsub\n", "{engine:?}");
            assert_eq!(fs::read_to_string(path.join("keys/a")).unwrap(), "secret\n");
            let missing = "missing".to_owned();
            request.extra_mounts.hidden.push(missing);
            let error = run(walled(&request, &engine, script)).await.unwrap_err();
            assert!(error.to_string().contains("hide"), "{engine:?}: {error}");
        } else {
            let error = ran.unwrap_err().to_string();
            assert!(
                error.contains("cannot hide files of a workspace"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn memory_is_held_and_it_is_said_by_what() {
    let (place, profile) = (Place::new(), profile());
    for engine in all(&place) {
        let script = "head -c 300000000 /dev/zero | tail -c 299999999 | wc -c";
        let mut plan = walled(&place.request(&profile), &engine, script);
        plan.limits.group.memory = Some(64 << 20);
        plan.limits.group.swap = Some(0);
        let ran = run(plan).await.unwrap();
        let held = ran.limit_enforcement.expect("said").memory;
        let output = String::from_utf8(ran.stdout).unwrap();
        if is_bwrap(&engine) {
            assert!(held.is_group() || held == Enforcement::Unenforced, "{held}");
        } else {
            assert_eq!(held, Enforcement::Engine);
        }
        if held != Enforcement::Unenforced {
            // What counts is gone, or all of it.
            assert!(!output.contains("299999999"), "{engine:?}: {output}");
        }
    }
}

#[tokio::test]
async fn a_writable_view_is_refused_by_who_cannot_make_it() {
    let (place, profile) = (Place::new(), profile());
    let over = place.path("home");
    for engine in all(&place) {
        let mut request = place.request(&profile);
        request.overlay = Some((over.clone(), ids().uid_and_gid()));
        let error = run(walled(&request, &engine, "echo never"))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("this launcher has no overlays"), "{error}");
    }
}

async fn hear(from: &mut tokio::net::unix::pipe::Receiver, reported: &mut String, what: &str) {
    use tokio::io::AsyncReadExt as _;
    let mut chunk = [0; 256];
    while !reported.contains(what) {
        let got = tokio::time::timeout(Duration::from_secs(20), from.read(&mut chunk))
            .await
            .unwrap_or_else(|_| panic!("{what:?} was not said, but {reported:?}"))
            .unwrap();
        assert!(got > 0, "{what:?} was not said, but {reported:?}");
        reported.push_str(&String::from_utf8_lossy(&chunk[..got]));
    }
}
