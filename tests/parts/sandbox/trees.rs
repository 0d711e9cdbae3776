//! What of a workspace is hidden, and what alone is seen of it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use marshal_model::SessionId;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::workspace::{Listing, Masks, Root, WorkspaceView, copy, slice};
use marshal_sandbox::{ExtraMounts, SandboxRequest};

use crate::children::{Place, give, ids, profile, run, script_output, spawner, walled};
use crate::sandbox::overlay::OverlayHost;

/// A workspace with secrets, of the agent's own.
fn with_secrets(place: &Place) {
    let at = |name: &str| place.path("workspace").join(name);
    for dir in ["deep/deeper", "vault", "shown"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    for file in [".env", "deep/deeper/key.pem", "vault/inner", "shown/text"] {
        fs::write(at(file), "secret\n").unwrap();
    }
    for path in [
        "deep",
        "deep/deeper",
        "vault",
        "shown",
        ".env",
        "deep/deeper/key.pem",
        "vault/inner",
        "shown/text",
    ] {
        give(&at(path), ids().uid_and_gid());
    }
}

const READS: &str = "for f in .env deep/deeper/key.pem vault/inner shown/text; do \
                     cat $f 2>&1 | head -n 1; done";

#[tokio::test]
async fn what_is_hidden_cannot_be_read_written_or_moved_from_under_its_cover() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let mut request = place.request(&profile);
    let open = script_output(&request, READS).await;
    assert_eq!(open, "secret\n".repeat(4), "without a mask all are read");
    let hidden = [".env", "deep/deeper/key.pem", "vault"];
    request.extra_mounts.hidden = hidden.map(str::to_owned).to_vec();
    let seen = script_output(&request, READS).await;
    assert_eq!(seen.matches("Permission denied").count(), 3, "{seen}");
    assert_eq!(seen.matches("secret").count(), 1, "{seen}");
    // Each of these would lead to the text if it did what it says.
    let tricks = [
        "echo x > .env",
        "echo x >> deep/deeper/key.pem",
        "chmod 644 .env",
        "chmod 755 vault",
        "rm -f .env",
        "mv .env other",
        "mv vault other",
        "ln .env other",
        "ln vault/inner other",
        "mv shown/text .env",
        "rmdir vault",
        "cp .env other",
        "dd if=.env of=other",
        "umount .env",
        "mount --bind shown vault",
        "ls vault",
        "truncate -s 0 .env",
        "cat /proc/self/root/workspace/.env",
        "cd deep/deeper && cat ./key.pem",
        "tar -c .env vault",
    ];
    for trick in tricks {
        let finished = run(walled(&request, trick)).await.unwrap();
        assert_ne!(finished.status.shell_code(), 0, "{trick}");
        let out = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert!(!out.contains("secret"), "{trick}: {out}");
    }
    // A directory above goes where it will, and its cover goes along.
    let moved = "mv deep moved && cat moved/deeper/key.pem; ln -s moved link; \
                 cat link/deeper/key.pem; mkdir -p deep/deeper && echo mine > deep/deeper/key.pem; \
                 cat deep/deeper/key.pem";
    let finished = run(walled(&request, moved)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "mine\n");
    let at = |name: &str| place.path("workspace").join(name);
    for file in [".env", "moved/deeper/key.pem", "vault/inner"] {
        assert_eq!(fs::read_to_string(at(file)).unwrap(), "secret\n", "{file}");
    }
}

#[tokio::test]
async fn what_is_no_longer_where_it_was_hidden_lets_nothing_start() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let link = place.path("workspace").join("link");
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    let mut request = place.request(&profile);
    for name in ["link/hostname", "gone/already", ".env/below"] {
        request.extra_mounts.hidden = vec![name.to_owned()];
        let refused = run(walled(&request, "true")).await.unwrap_err();
        assert!(refused.to_string().contains("hide"), "{name}: {refused}");
    }
    // The agent could open it again, where the directory is its own.
    request.extra_mounts.hidden = vec!["deep/deeper/key.pem".to_owned()];
    assert_eq!(
        script_output(&request, "chmod 0 deep && echo shut").await,
        "shut\n"
    );
    let refused = run(walled(&request, "true")).await.unwrap_err();
    assert!(refused.to_string().contains("hide"), "{refused}");
}

fn sliced<'a>(request: &SandboxRequest<'a>, from: &Path, parts: &[&str]) -> SandboxRequest<'a> {
    let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
    let root = Root::open(from).unwrap();
    SandboxRequest {
        workspace: None,
        extra_mounts: ExtraMounts {
            slice: slice::open(&root, &parts).unwrap(),
            ..ExtraMounts::none()
        },
        ..request.clone()
    }
}

#[tokio::test]
async fn a_slice_shows_its_paths_alone_and_takes_nothing() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let from = place.path("workspace");
    let request = sliced(
        &place.request(&profile),
        &from,
        &["deep/deeper", "shown/text"],
    );
    let script = "find . | sort; stat -c %u shown/text deep/deeper/key.pem; cat shown/text; \
                  for c in 'touch new' 'touch deep/new' 'touch deep/deeper/new' 'rm -f shown/text' \
                  'mkdir d' 'chmod 777 shown/text' 'mv shown/text x'; do \
                  $c 2>/dev/null && echo could $c; done; (echo x >> shown/text) 2>/dev/null && \
                  echo wrote; true";
    let seen = script_output(&request, script).await;
    let expect = ".\n./deep\n./deep/deeper\n./deep/deeper/key.pem\n./shown\n./shown/text\n\
                  1000\n1000\nsecret\n";
    assert_eq!(seen, expect);
    let mut masked = request.clone();
    masked.extra_mounts.hidden = vec!["deep/deeper/key.pem".to_owned()];
    let seen = script_output(&masked, "cat deep/deeper/key.pem 2>&1; true").await;
    assert!(seen.contains("Permission denied"), "{seen}");
}

#[tokio::test]
async fn a_part_that_is_replaced_after_it_was_looked_at_is_refused() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let from = place.path("workspace");
    let request = sliced(&place.request(&profile), &from, &["shown"]);
    assert_eq!(script_output(&request, "ls").await, "shown\n");
    fs::rename(from.join("shown"), from.join("was")).unwrap();
    std::os::unix::fs::symlink("/etc", from.join("shown")).unwrap();
    let failed = spawner().spawn(walled(&request, "ls")).await.unwrap_err();
    assert!(failed.to_string().contains("another directory"), "{failed}");
}

/// What a slice costs does not depend on what it holds; a copy's cost does.
#[tokio::test]
async fn a_slice_of_twenty_thousand_files_is_there_at_once() {
    let (place, profile) = (Place::new(), profile());
    let big = place.path("workspace").join("big");
    for dir in 0..200 {
        let dir = big.join(dir.to_string());
        fs::create_dir_all(&dir).unwrap();
        for file in 0..100 {
            fs::write(dir.join(file.to_string()), "x").unwrap();
        }
        give(&dir, ids().uid_and_gid());
    }
    give(&big, ids().uid_and_gid());
    let from = place.path("workspace");
    let request = place.request(&profile);
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        for (at, times) in times.iter_mut().enumerate() {
            let began = Instant::now();
            let request = if at == 0 {
                SandboxRequest {
                    workspace: None,
                    ..request.clone()
                }
            } else {
                sliced(&request, &from, &["big"])
            };
            script_output(&request, "true").await;
            times.push(began.elapsed());
        }
    }
    let [empty, slice] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    let state = StateDir::open(&place.path("state"), &[]).unwrap();
    let root = Root::open(&from).unwrap();
    let session = SessionId::new("s").unwrap();
    let began = Instant::now();
    let bounds = copy::CopyBounds::default();
    let copied = copy::create(
        &state,
        &session,
        (&root, &Listing::Except(Masks::default().into())),
        &[],
        None,
        bounds,
    )
    .unwrap();
    let copy = began.elapsed();
    let counted = sliced(&request, &from, &["big"]);
    assert_eq!(
        script_output(&counted, "find . -type f | wc -l").await,
        "20000\n"
    );
    assert_eq!(copied.files, 20_000);
    println!(
        "20000 files: sandbox {empty:?} without, {slice:?} with the slice (median of 9), copy {copy:?}: {:.0} times the slice's own {:?}",
        copy.as_secs_f64() / slice.saturating_sub(empty).as_secs_f64().max(1e-4),
        slice.saturating_sub(empty)
    );
    assert!(slice < empty + copy, "a slice costs less than a copy");
}

/// What a mask finds now, in the request.
fn masked(request: &mut SandboxRequest<'_>, patterns: &[&str], view: WorkspaceView) {
    let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
    let root = Root::open(&request.workspace.as_ref().unwrap().path).unwrap();
    let covers = Masks::new(&patterns).unwrap().find(&root, &[], view);
    let covers = covers.unwrap();
    request.extra_mounts.hidden = covers.hidden;
    request.extra_mounts.pinned = covers.pinned;
}

/// Each in a sandbox of its own, as the sessions of a slot are.
#[tokio::test]
async fn what_an_agent_moves_stays_hidden_from_the_next_session() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let at = |name: &str| place.path("workspace").join(name);
    std::os::unix::fs::symlink("hop", at("prod.pem")).unwrap();
    std::os::unix::fs::symlink("shown/text", at("hop")).unwrap();
    let mut request = place.request(&profile);
    let patterns = ["deep/deeper/*.pem", "prod.pem", "vault"];
    // Without what is held, an agent that renames a directory or removes a link has the text in the
    // next session: these lead to it, if they can be done.
    let tricks = [
        ("mv deep moved", "moved/deeper/key.pem"),
        ("mv deep/deeper deep/moved", "deep/moved/key.pem"),
        ("rm -f prod.pem", "shown/text"),
        ("mv prod.pem was", "shown/text"),
        ("rm -f hop", "shown/text"),
        ("ln -sfn nowhere hop", "shown/text"),
        ("mv shown moved", "moved/text"),
    ];
    for is_held in [true, false] {
        let mut got = Vec::new();
        for (trick, path) in tricks {
            masked(&mut request, &patterns, WorkspaceView::Writable);
            if !is_held {
                request.extra_mounts.pinned.clear();
            }
            let script = format!("{trick}; cat {path} 2>/dev/null");
            let finished = run(walled(&request, &script)).await.unwrap();
            let out = String::from_utf8_lossy(&finished.stdout).into_owned();
            assert!(
                !out.contains("secret"),
                "{trick}, in its own session: {out}"
            );
            masked(&mut request, &patterns, WorkspaceView::Writable);
            let finished = run(walled(&request, &format!("cat {path}"))).await.unwrap();
            if String::from_utf8_lossy(&finished.stdout).contains("secret") {
                got.push(trick);
            }
            if !is_held {
                // As it was, by whoever may.
                for dir in ["deep", "shown", "moved"] {
                    let _ = fs::remove_dir_all(at(dir));
                }
                for link in ["prod.pem", "hop", "was"] {
                    let _ = fs::remove_file(at(link));
                }
                with_secrets(&place);
                std::os::unix::fs::symlink("hop", at("prod.pem")).unwrap();
                std::os::unix::fs::symlink("shown/text", at("hop")).unwrap();
            }
        }
        if is_held {
            assert_eq!(got, [""; 0], "nothing leads to it");
        } else {
            let all: Vec<&str> = tricks.iter().map(|(trick, _)| *trick).collect();
            assert_eq!(got, all, "each works where nothing is held");
        }
    }
    // What is held can be worked in all the same.
    masked(&mut request, &patterns, WorkspaceView::Writable);
    let work = "set -e; echo new > deep/new; mkdir deep/d; \
                perl -e 'rename \"deep/new\", \"deep/d/new\" or die $!'; rm -r deep/d; \
                echo x > top; mv top deep/top; cat deep/top; readlink prod.pem; ls deep/deeper";
    assert_eq!(script_output(&request, work).await, "x\nhop\nkey.pem\n");
}

#[tokio::test]
async fn another_name_of_a_hidden_file_is_hidden_too() {
    let (place, profile) = (Place::new(), profile());
    with_secrets(&place);
    let at = |name: &str| place.path("workspace").join(name);
    fs::hard_link(at(".env"), at("shown/planted")).unwrap();
    fs::hard_link(at("vault/inner"), at("planted-too")).unwrap();
    let mut request = place.request(&profile);
    let reads = "cat shown/planted planted-too shown/text 2>&1; true";
    assert_eq!(script_output(&request, reads).await, "secret\n".repeat(3));
    masked(&mut request, &[".env", "vault"], WorkspaceView::ReadOnly);
    let seen = script_output(&request, reads).await;
    assert_eq!(seen.matches("Permission denied").count(), 2, "{seen}");
    assert_eq!(seen.matches("secret").count(), 1, "{seen}");
}

/// Connects to a socket, and says what it hears there.
const CONNECTS: &str = "perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); \
    connect(S,pack_sockaddr_un($ARGV[0])) or die \"no: $!\\n\"; print scalar <S>' run/agent.sock 2>&1; true";

#[tokio::test]
async fn a_program_of_the_host_is_not_reached_by_its_socket_in_the_workspace() {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    let (place, profile) = (Place::new(), profile());
    let at = |name: &str| place.path("workspace").join(name);
    fs::create_dir(at("run")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(at("run/agent.sock")).unwrap();
    fs::set_permissions(at("run/agent.sock"), fs::Permissions::from_mode(0o777)).unwrap();
    for path in ["run", "run/agent.sock"] {
        give(&at(path), ids().uid_and_gid());
    }
    let _answers = std::thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            let _ = (&caller).write_all(b"at your service\n");
        }
    });
    let mut request = place.request(&profile);
    assert_eq!(script_output(&request, CONNECTS).await, "at your service\n");
    masked(&mut request, &["nothing"], WorkspaceView::Writable);
    assert_eq!(request.extra_mounts.hidden, ["run/agent.sock"]);
    assert_eq!(
        script_output(&request, CONNECTS).await,
        "no: Permission denied\n"
    );
    let moved = format!(
        "(mv run moved; mv run/agent.sock run/x; rm -f run/agent.sock) 2>/dev/null; {CONNECTS}"
    );
    assert!(
        script_output(&request, &moved)
            .await
            .ends_with("no: Permission denied\n")
    );
    // Read-only makes no difference to a socket.
    if let Some(tree) = &mut request.workspace {
        tree.access = marshal_wire::shim::MountAccess::Ro;
    }
    request.extra_mounts = ExtraMounts::none();
    assert_eq!(script_output(&request, CONNECTS).await, "at your service\n");
    masked(&mut request, &["nothing"], WorkspaceView::ReadOnly);
    assert_eq!(
        script_output(&request, CONNECTS).await,
        "no: Permission denied\n"
    );
}

/// In a view nothing need be held: what an agent moves is moved in the view, and a program of the
/// host does not answer at the view's socket.
#[tokio::test]
async fn in_a_writable_view_what_is_hidden_stays_so_and_no_socket_answers() {
    use std::os::unix::fs::PermissionsExt as _;
    let over = OverlayHost::new();
    for path in ["deep/deeper/key.pem", "prod", "run/file"] {
        over.put(path, "secret\n");
    }
    std::os::unix::fs::symlink("prod", over.project("prod.pem")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(over.project("run/agent.sock"));
    let listener = listener.unwrap();
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(over.project("run/agent.sock"), all).unwrap();
    let guard = over.prepare().unwrap();
    let tricks = "(mv deep moved; mv deep/deeper gone; rm -f prod.pem; mv prod was; rm -rf deep) \
                  2>/dev/null; find . -type f -exec cat {} + 2>/dev/null; ";
    for _ in ["a session", "the same, which goes on"] {
        let mut request = over.request(&guard);
        masked(
            &mut request,
            &["deep/deeper/*.pem", "prod.pem"],
            WorkspaceView::Layered,
        );
        assert_eq!(request.extra_mounts.hidden, ["deep/deeper/key.pem", "prod"]);
        assert_eq!(request.extra_mounts.pinned, [""; 0]);
        // Of the three files one is not hidden.
        assert_eq!(script_output(&request, tricks).await, "secret\n");
        assert_eq!(
            script_output(&request, CONNECTS).await,
            "no: Connection refused\n"
        );
    }
    drop(listener);
}
