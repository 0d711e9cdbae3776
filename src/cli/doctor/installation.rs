//! What is weaker by how this program was installed, which no probe of the host shows.

use std::path::Path;

/// How it was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Installation {
    /// Linked against no library of the host.
    is_static: bool,
    /// In a container of podman, Docker or another engine.
    is_in_container: bool,
    /// As root.
    is_root: bool,
}

impl Installation {
    /// Of this process.
    pub(super) fn own() -> Self {
        // podman, Docker, and what systemd-nspawn and podman set for the first process.
        let marks = ["/run/.containerenv", "/.dockerenv"];
        Self {
            is_static: cfg!(target_feature = "crt-static"),
            is_in_container: marks.iter().any(|mark| Path::new(mark).exists())
                || std::env::var_os("container").is_some_and(|name| !name.is_empty()),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// A kind of installation, and what is weaker there; one entry for each.
    pub(super) fn weaknesses(self) -> Vec<(&'static str, &'static str)> {
        let mut found = Vec::new();
        if self.is_in_container {
            found.push((
                "container",
                "limits and sandboxes are at most what the engine permits to this container, and a process that escapes from a sandbox has the container's rights",
            ));
        }
        if self.is_in_container && self.is_root {
            found.push((
                "container",
                "the uids of slots are locked in this container alone: give containers that share the host's uids different ranges (sandbox.NAME.uid_range)",
            ));
        }
        if self.is_static {
            found.push((
                "static",
                "host names are found by DNS and /etc/hosts, and users in /etc/passwd, by no other service of nsswitch.conf; memory is allocated more slowly",
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_installation_says_what_is_weaker() {
        let kinds = |is_static, is_in_container, is_root| {
            let installation = Installation {
                is_static,
                is_in_container,
                is_root,
            };
            let found = installation.weaknesses();
            found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>()
        };
        assert!(kinds(false, false, true).is_empty());
        assert_eq!(kinds(true, false, false), ["static"]);
        assert_eq!(kinds(false, true, false), ["container"]);
        assert_eq!(
            kinds(true, true, true),
            ["container", "container", "static"]
        );
    }
}
