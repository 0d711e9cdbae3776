//! Sockets that a service manager opened and passes to this process, as sd_listen_fds(3) describes:
//! `http` is the HTTP listener, and `control` the socket in the state directory.
//!
//! Must not know whether they fit the configuration (`listeners`).

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use marshal_model::untrusted::escape_for_display;

/// More descriptors than anybody passes by intent.
const MOST: usize = 64;
/// The names, as `FileDescriptorName=` of a socket unit sets them.
const HTTP: &str = "http";
const CONTROL: &str = "control";

/// The sockets that were passed.
#[derive(Debug, Default)]
pub struct PassedSockets {
    /// The HTTP listener.
    pub http: Option<TcpListener>,
    /// The socket in the state directory.
    pub control: Option<UnixListener>,
}

impl PassedSockets {
    /// Takes all sockets that were passed, so that no child inherits one. Changes the environment:
    /// must be called while this process has one thread.
    ///
    /// # Errors
    /// A descriptor that nobody here takes, or that is no such listener.
    pub fn take(env: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let text = |name: &str| env(name).map(|value| value.to_string_lossy().into_owned());
        // Those for another process are none of ours: its child may be this one.
        if text("LISTEN_PID") != Some(std::process::id().to_string()) {
            return Ok(Self::default());
        }
        let count = text("LISTEN_FDS").unwrap_or_default();
        let count = count
            .parse::<usize>()
            .ok()
            .filter(|count| *count <= MOST)
            .ok_or_else(|| {
                let count = escape_for_display(&count, 40);
                format!("LISTEN_FDS={count}: expected a number of sockets, at most {MOST}")
            })?;
        let names = text("LISTEN_FDNAMES").unwrap_or_default();
        let names: Vec<&str> = if count == 0 {
            Vec::new()
        } else {
            names.split(':').collect()
        };
        if names.len() != count {
            return Err(format!(
                "LISTEN_FDNAMES has {} names for {count} sockets; name each with FileDescriptorName= as {HTTP} or {CONTROL}",
                names.len()
            ));
        }
        let mut passed = ListenFd::from_env();
        let mut sockets = Self::default();
        for (index, name) in names.into_iter().enumerate() {
            let is_second = match name {
                HTTP => {
                    let taken = checked(passed.take_tcp_listener(index), name)?;
                    sockets.http.replace(taken).is_some()
                }
                CONTROL => {
                    let taken = checked(passed.take_unix_listener(index), name)?;
                    sockets.control.replace(taken).is_some()
                }
                other => {
                    return Err(format!(
                        "the service manager passes a socket named {:?}; expected {HTTP} or {CONTROL} (FileDescriptorName= in its unit)",
                        escape_for_display(other, 40)
                    ));
                }
            };
            if is_second {
                return Err(format!(
                    "the service manager passes two sockets named {name}; one is expected"
                ));
            }
        }
        Ok(sockets)
    }
}

/// A socket that listens.
fn checked<S: AsFd>(taken: std::io::Result<Option<S>>, name: &str) -> Result<S, String> {
    let wrong = |why: String| {
        let kind = if name == HTTP {
            "a TCP"
        } else {
            "a Unix stream"
        };
        format!(
            "the socket {name} of the service manager cannot be used: {why}; expected {kind} socket that listens (ListenStream=, Accept=no)"
        )
    };
    let socket = taken
        .map_err(|error| wrong(error.to_string()))?
        .ok_or_else(|| wrong("it was not passed".to_owned()))?;
    match rustix::net::sockopt::socket_acceptconn(&socket) {
        Ok(true) => Ok(socket),
        Ok(false) => Err(wrong("it does not listen".to_owned())),
        Err(error) => Err(wrong(error.to_string())),
    }
}
