//! What an agent leaves behind on purpose: processes, held outputs, and things for the next one in
//! the same slot.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::arena::{Arena, Column, Who};
use crate::children::{Place, is_root, live_processes, profile, script_output};

/// How long everything that was left may take to go.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

fn who() -> Who {
    if is_root() { Who::Root } else { Who::User }
}

fn sandbox_command(arena: &Arena, script: &str) -> Command {
    let column = Column {
        name: "leftovers",
        who: who(),
        profile: "standard",
        launcher: None,
    };
    let words = arena.sandbox_args(&column, "ro");
    let mut command = arena.command(Path::new(&words[0]));
    command.args(&words[1..]).args(["sh", "-c", script]);
    command
}

/// A daemon that hears no signal, in a session of its own, twice over.
fn daemon(token: &str, end: &str) -> String {
    format!(
        "(setsid sh -c 'trap \"\" TERM HUP INT; (setsid sleep 300 {token} || sleep 40; : {token}) \
         {end}; : {token}' {token} &) >/dev/null 2>&1; echo begun"
    )
}

#[test]
fn a_daemon_ends_with_its_sandbox() {
    let arena = Arena::new(who());
    let token = uuid::Uuid::new_v4().simple().to_string();
    let script = daemon(&token, "");
    let printed = sandbox_command(&arena, &script)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "begun\n");
    assert_eq!(live_processes(&token), Vec::<u32>::new());

    // Without a sandbox it stays.
    let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "begun\n");
    let begin = Instant::now();
    let mut left = live_processes(&token);
    while left.is_empty() && begin.elapsed() < CLEANUP_TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
        left = live_processes(&token);
    }
    for pid in &left {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    assert!(!left.is_empty(), "the control's daemon did not stay");
}

#[test]
fn a_process_that_holds_the_output_holds_up_nobody() {
    let arena = Arena::new(who());
    let holder = "setsid sleep 100 & echo begun";
    let begin = Instant::now();
    let printed = sandbox_command(&arena, holder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "begun\n");
    assert!(begin.elapsed() < CLEANUP_TIMEOUT, "{:?}", begin.elapsed());

    // Without a sandbox its reader waits.
    let begin = Instant::now();
    let mut child = Command::new("sh")
        .args(["-c", "setsid sleep 2 & echo begun"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    child.wait().unwrap();
    assert!(
        begin.elapsed() > Duration::from_millis(1500),
        "{:?}",
        begin.elapsed()
    );
}

/// Two lives in one slot: the same uid, the same home and workspace.
#[tokio::test]
async fn a_slot_hands_nothing_on_but_home_and_workspace() {
    let (place, profile) = (Place::new(), profile());
    let request = place.request(&profile);
    let look = "ls -A /tmp /dev/shm; ipcs -m -q -s | grep -c '^0x'; \
        set -- /proc/[0-9]*; echo $#; cat /proc/net/unix 2>/dev/null | grep -c '@left'; true";
    let clean = script_output(&request, look).await;
    let leave = "echo x > /tmp/left; echo x > /dev/shm/left; ipcmk -M 64 >/dev/null; \
        ipcmk -Q >/dev/null; setsid sleep 300 >/dev/null 2>&1 & echo x > /home/agent/left; ";
    let left = script_output(&request, &format!("{leave} {look}")).await;
    // The control: in the same life all of it is there.
    assert_ne!(left, clean);
    assert!(left.contains("left"), "{left}");
    assert_eq!(script_output(&request, look).await, clean);
    assert_eq!(script_output(&request, "cat /home/agent/left").await, "x\n");
}
