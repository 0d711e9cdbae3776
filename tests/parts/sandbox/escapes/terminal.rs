//! A real terminal in front of `marshal sandbox exec`, and attempts to type into it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::arena::{Arena, Column, Outcomes, Who, read};
use crate::children::{USER, is_root};

/// The key that attempts type; the terminal shows it.
const KEY: char = '#';

/// Inside the sandbox, started from a terminal; nothing may be typed there.
pub(super) fn attack(arena: &Arena, column: &Column) -> Outcomes {
    let mut words = arena.sandbox_args(column, "ro");
    words.push("/workspace/prober".to_owned());
    let text = on_a_terminal(arena, column.who, words, &[]);
    let outcomes = read(&text);
    assert!(!outcomes.is_empty(), "{}: {text}", column.name);
    assert!(!text.contains(KEY), "{}: {text}", column.name);
    outcomes
}

/// The same without a sandbox: the key appears.
pub(super) fn control(arena: &Arena) -> Outcomes {
    let prober = arena.path("scratch/prober").display().to_string();
    let text = on_a_terminal(arena, Who::User, vec![prober], &["control=1"]);
    assert!(text.contains(KEY), "no key was typed: {text}");
    read(&text.replace(KEY, ""))
}

/// Runs a command with a terminal of its own; what that showed.
fn on_a_terminal(arena: &Arena, who: Who, words: Vec<String>, more: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    if is_root() && who == Who::User {
        chown(&name, Some(USER), None).unwrap();
    }
    let mut command = arena.command(&arena.path("scratch/prober"));
    command.args(["terminal", &name]).args(words);
    command
        .args(["only=tty_".to_owned(), format!("terminal={name}")])
        .args(more);
    show(command, master, Path::new(&name))
}

fn show(mut command: Command, master: OwnedFd, terminal: &Path) -> String {
    // Held open, so that the terminal does not end before it is read.
    let held = File::options().read(true).write(true).open(terminal);
    let mut shown = File::from(master);
    let reader = std::thread::spawn(move || {
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        // A terminal that nobody has open any more ends with an error.
        while let Ok(got) = shown.read(&mut part) {
            text.extend_from_slice(&part[..got]);
            if got == 0 {
                break;
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = command.status().unwrap();
    drop(held);
    let text = reader.join().unwrap();
    assert!(status.success(), "{status}: {text}");
    text
}
