//! The login of the script agent: a file in its home.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

fn file() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from)?;
    Some(home.join(".script-agent").join("key"))
}

/// Whether a login was stored.
pub(super) fn is_stored() -> bool {
    file().is_some_and(|file| file.exists())
}

/// Stores a key; without a home it is not stored.
pub(super) fn store(key: &str) -> io::Result<()> {
    let Some(file) = file() else { return Ok(()) };
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(file, key)
}

/// Asks for a key at the terminal and stores it.
pub(super) fn set_up() -> ExitCode {
    match ask() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(io::stderr(), "script-agent: {error}");
            ExitCode::from(1)
        }
    }
}

fn ask() -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(io::Error::other("the login needs a terminal"));
    }
    let mut out = io::stdout();
    write!(out, "Key: ")?;
    out.flush()?;
    let mut key = String::new();
    io::stdin().lock().read_line(&mut key)?;
    let key = key.trim();
    if key.is_empty() {
        writeln!(out, "no key")?;
        return Ok(false);
    }
    store(key)?;
    writeln!(out, "stored")?;
    Ok(true)
}
