//! `[container]`: the container engine, its image, and options that leave the sandbox unchanged.
//!
//! An image is pinned, so that it cannot change between two starts. Only known options of the
//! engine are accepted: a deny list would miss the next dangerous option.
//! Must not know pools or how a container is started.

use super::error::quote;
use super::pool::TRUST_HELP;
use super::table::{Diagnostics, Located, Place, Section, keywords, one_of};
use super::types::{Container, ContainerEngine};

keywords!(ContainerEngine);

/// Global options of the engine: its storage and how it works.
const GLOBAL_OPTIONS: &[&str] = &[
    "--cgroup-manager",
    "--config",
    "--conmon",
    "--context",
    "--host",
    "--log-level",
    "--root",
    "--runroot",
    "--storage-driver",
    "--storage-opt",
    "--tmpdir",
];

/// Options of `run`: how much a container may take.
const RUN_OPTIONS: &[&str] = &[
    "--annotation",
    "--arch",
    "--blkio-weight",
    "--cgroup-parent",
    "--cpu-period",
    "--cpu-quota",
    "--cpu-shares",
    "--cpus",
    "--cpuset-cpus",
    "--cpuset-mems",
    "--memory",
    "--memory-reservation",
    "--memory-swap",
    "--memory-swappiness",
    "--os",
    "--pids-limit",
    "--platform",
    "--shm-size",
    "--ulimit",
];

/// Refused options with a specific reason.
const FORBIDDEN_OPTIONS: &[&str] = &[
    "--add-host",
    "--cap-add",
    "--cgroupns",
    "--cgroups",
    "--device",
    "--device-cgroup-rule",
    "--entrypoint",
    "--env",
    "--env-file",
    "--env-host",
    "--gidmap",
    "--gpus",
    "--group-add",
    "--hooks-dir",
    "--init",
    "--ipc",
    "--mount",
    "--net",
    "--network",
    "--pid",
    "--pod",
    "--privileged",
    "--publish",
    "--read-only",
    "--rootfs",
    "--secret",
    "--security-opt",
    "--sysctl",
    "--tmpfs",
    "--uidmap",
    "--user",
    "--userns",
    "--uts",
    "--volume",
    "--volumes-from",
    "-e",
    "-p",
    "-u",
    "-v",
];

/// The JSON-schema pattern of an image.
pub(super) const IMAGE_PATTERN: &str =
    r"^(localhost/[A-Za-z0-9._/:-]+|[A-Za-z0-9._/:-]+@sha256:[0-9a-f]{64}|sha256:[0-9a-f]{64})$";
/// The JSON-schema pattern of a runtime.
const RUNTIME_PATTERN: &str = r"^[A-Za-z0-9/][A-Za-z0-9._/-]*$";
/// The JSON-schema pattern of an option.
const OPTION_PATTERN: &str = r"^--[a-z-]+=[^\n]+$";

/// Reads the table. `is_discovered`: the file was discovered, not named.
pub(super) fn read(section: &Section<'_>, is_there: bool, is_discovered: bool) -> Container {
    let engine = section.keyword::<ContainerEngine>("engine", &[]);
    let runtime = section.get("runtime").and_then(|item| {
        let found = item.text_like(RUNTIME_PATTERN)?;
        let fits = found.value.len() <= 255
            && !found.value.starts_with(['-', '.', '_'])
            && found
                .value
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._/-".contains(&b));
        if !fits {
            let message = format!(
                "expected a runtime's name or path, such as \"runc\", found {}",
                quote(&found.value)
            );
            section.diagnostics.report(&found.place, message, None);
        }
        Some(found.value)
    });
    let image = read_image(section);
    let (before, of_run) = read_extra_options(section);
    section.reject_unknown_keys(&["env", "volumes"], &[("network", "pool.NAME.network")]);
    if is_discovered && is_there {
        let message = "a discovered supervisor.toml may not have the table container: it names programs that run without a sandbox";
        let help = Some(TRUST_HELP.to_owned());
        section.diagnostics.report(&section.place, message, help);
    }
    Container {
        engine: engine.map_or(ContainerEngine::Podman, |found| found.value),
        runtime,
        image,
        global_options: before,
        run_options: of_run,
    }
}

/// The image of this table, or of a pool's.
pub(super) fn read_image(section: &Section<'_>) -> Option<String> {
    let found = section.get("image")?.text_like(IMAGE_PATTERN)?;
    if let Some((message, help)) = image_error(&found.value) {
        section
            .diagnostics
            .report(&found.place, message, Some(help));
    }
    Some(found.value)
}

/// What is wrong with the name of an image, and the help.
fn image_error(image: &str) -> Option<(String, String)> {
    let plain = |text: &str| {
        !text.is_empty()
            && text.len() <= 512
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._/:-".contains(&b))
    };
    let is_digest = |text: &str| {
        text.len() == 64
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    if let Some(id) = image.strip_prefix("sha256:") {
        let message = || format!("{} is not an image id", quote(image));
        return (!is_digest(id)).then(|| {
            (
                message(),
                "expected sha256: and 64 hexadecimal digits".to_owned(),
            )
        });
    }
    if let Some((name, digest)) = image.split_once("@sha256:") {
        let message = || format!("{} is not an image with a digest", quote(image));
        return (!plain(name) || !is_digest(digest)).then(|| {
            let help = "expected NAME@sha256: and 64 hexadecimal digits";
            (message(), help.to_owned())
        });
    }
    if image.starts_with("localhost/") && plain(image) {
        return None;
    }
    let message = format!(
        "the image {} is not pinned: its name can refer to another image later",
        quote(image)
    );
    let help = if plain(image) {
        format!(
            "name it with its digest, NAME@sha256:…; podman image inspect --format '{{{{index .RepoDigests 0}}}}' {image} prints it; only localhost/ images need no digest: marshal reads their id at the start"
        )
    } else {
        "expected NAME@sha256:…, sha256:… or localhost/NAME".to_owned()
    };
    Some((message, help))
}

/// The global options, and those of `run`.
fn read_extra_options(section: &Section<'_>) -> (Vec<String>, Vec<String>) {
    let (mut before, mut of_run) = (Vec::new(), Vec::new());
    let found = section.texts_like("extra", OPTION_PATTERN);
    for Located { value, place } in found.map_or_else(Vec::new, |found| found.value) {
        match classify_option(section.diagnostics, &value, &place) {
            Some(true) => before.push(value),
            Some(false) => of_run.push(value),
            None => {}
        }
    }
    (before, of_run)
}

/// Whether an option is a global one; `None` for a refused option.
fn classify_option(diagnostics: &Diagnostics, option: &str, place: &Place) -> Option<bool> {
    let (name, value) = option
        .split_once('=')
        .map_or((option, None), |(name, value)| (name, Some(value)));
    let message = if FORBIDDEN_OPTIONS.contains(&name) {
        format!("{name} would change the sandbox, which marshal builds")
    } else if !GLOBAL_OPTIONS.contains(&name) && !RUN_OPTIONS.contains(&name) {
        let known: Vec<&str> = GLOBAL_OPTIONS.iter().chain(RUN_OPTIONS).copied().collect();
        format!(
            "{} is not one of the options that are known to leave the sandbox unchanged: {}",
            quote(option),
            one_of(&known)
        )
    } else if value.is_none_or(str::is_empty) {
        format!("{name} needs its value after a \"=\"")
    } else if option.contains(char::is_control) {
        format!("{name} has a control character in its value")
    } else {
        return Some(GLOBAL_OPTIONS.contains(&name));
    };
    let help =
        "directories, networks, users and capabilities come from the pool and its sandbox profile";
    diagnostics.report(place, message, Some(help.to_owned()));
    None
}
