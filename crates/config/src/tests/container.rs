//! `[container]`, and pools that name it.

use super::{discovered_origin, explicit_origin, refused_by};
use crate::{Config, ContainerEngine, Launcher};

const POOL: &str = "[pool.demo]\ncommand = [\"agent\"]\nlauncher = \"container\"\n";

fn digest() -> String {
    "0123456789abcdef".repeat(4)
}

#[test]
fn an_image_is_pinned_or_local() {
    for image in [
        format!("registry.example:5000/a/b@sha256:{}", digest()),
        format!("sha256:{}", digest()),
        "localhost/agent".to_owned(),
        "localhost/agent:1.2".to_owned(),
    ] {
        let text = format!("{POOL}[container]\nimage = {image:?}\n");
        let config = Config::parse(&text, &explicit_origin()).unwrap();
        assert_eq!(
            config.pools[0].container_image(&config.container),
            Some(&*image)
        );
        let shown = config.effective().to_toml();
        assert!(shown.contains(&image), "{shown}");
        let again = Config::parse(&shown, &explicit_origin()).unwrap();
        assert_eq!(again.container, config.container);
    }
    for (image, expect) in [
        (
            "debian:12",
            "is not pinned…podman image inspect --format '{{index .RepoDigests 0}}' debian:12 prints it",
        ),
        ("docker.io/library/debian", "is not pinned"),
        ("debian@sha256:12", "is not an image with a digest"),
        ("sha256:zz", "is not an image id"),
        ("-v=/:/host", "is not pinned"),
        ("localhost/a b", "is not pinned"),
    ] {
        let text = format!("{POOL}[container]\nimage = {image:?}\n");
        refused_by(&explicit_origin(), &text, expect);
    }
}

#[test]
fn a_pool_may_have_an_image_of_its_own() {
    let text = format!(
        "{POOL}image = \"localhost/own\"\n[container]\nimage = \"localhost/all\"\nengine = \"docker\"\n"
    );
    let config = Config::parse(&text, &explicit_origin()).unwrap();
    assert_eq!(config.pools[0].launcher, Launcher::Container);
    assert_eq!(
        config.pools[0].container_image(&config.container),
        Some("localhost/own")
    );
    assert_eq!(config.container.engine, ContainerEngine::Docker);
    refused_by(
        &explicit_origin(),
        POOL,
        "launcher = \"container\" needs an image",
    );
    let bwrap = POOL.replace("container", "bwrap");
    refused_by(
        &explicit_origin(),
        &format!("{bwrap}image = \"localhost/a\"\n"),
        "image is for launcher = \"container\"",
    );
    Config::parse(&bwrap, &explicit_origin()).unwrap();
}

#[test]
fn options_that_change_the_sandbox_are_refused_and_so_are_unknown_ones() {
    let with = |option: &str| {
        format!("{POOL}[container]\nimage = \"localhost/a\"\nextra = [{option:?}]\n")
    };
    for option in [
        "--privileged",
        "--privileged=true",
        "--network=host",
        "--net=host",
        "--pid=host",
        "--ipc=host",
        "--security-opt=seccomp=unconfined",
        "--cap-add=all",
        "--device=/dev/kvm",
        "-v=/:/host",
        "--volume=/:/host",
        "--mount=type=bind,src=/,dst=/host",
        "--userns=host",
        "--uts=host",
        "--cgroupns=host",
        "--env-host=true",
        "--user=0",
        "--read-only=false",
        "--entrypoint=/bin/sh",
    ] {
        refused_by(
            &explicit_origin(),
            &with(option),
            "would change the sandbox",
        );
    }
    refused_by(
        &explicit_origin(),
        &with("--new-thing=1"),
        "not one of the options that are known",
    );
    refused_by(
        &explicit_origin(),
        &with("localhost/other"),
        "not one of the options that are known",
    );
    refused_by(&explicit_origin(), &with("--memory"), "needs its value");
    refused_by(&explicit_origin(), &with("--memory="), "needs its value");
    let text = with("--memory=1g").replace("\"]", "\", \"--root=/store\"]");
    let config = Config::parse(&text, &explicit_origin()).unwrap();
    assert_eq!(config.container.global_options, ["--root=/store"]);
    assert_eq!(config.container.run_options, ["--memory=1g"]);
}

#[test]
fn a_file_that_was_found_starts_no_containers() {
    let text = format!("{POOL}[container]\nimage = \"localhost/a\"\n");
    let refused = Config::parse(&text, &discovered_origin())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("may not"), "{refused}");
    assert!(Config::parse(&POOL.replace("container", "bwrap"), &discovered_origin()).is_ok());
}
