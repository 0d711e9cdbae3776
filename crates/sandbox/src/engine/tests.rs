//! What other programs are told, and how they are run.

use super::container::{self, ContainerSpec, Library};
use super::stage::StagedMount;
use super::*;
use crate::{SandboxRequest, plan, probe_request};
use marshal_config::Network;
use marshal_wire::engine::ContainerLimits;
use marshal_wire::shim::{Mount, MountSource, ProcessLimits};

fn planned(network: Network, ids: HostIds) -> ShimPlan {
    let profile = marshal_config::Config::parse(
        "[pool.a]\ncommand = [\"a\"]\n",
        &marshal_config::Origin::built_in("/dir".into()),
    )
    .unwrap()
    .sandboxes["standard"]
        .clone();
    plan(&SandboxRequest {
        network,
        hostname: "demo",
        ..probe_request(&profile, ids)
    })
    .unwrap()
}

/// As if everything were there, at a numbered place; `own`: what can be made by others is.
fn placed(plan: &ShimPlan, wants: impl Fn(&Mount) -> bool, own: bool) -> Vec<StagedMount> {
    let numbered = plan.mounts.iter().enumerate();
    numbered
        .map(|(number, mount)| match mount {
            _ if !wants(mount) => StagedMount::Nothing,
            Mount::Mirror { path } if path != "/lib32" => StagedMount::Link {
                to: format!("usr{path}"),
            },
            Mount::Mirror { .. } | Mount::Tree { optional: true, .. } => StagedMount::Nothing,
            Mount::Tree {
                source: MountSource::Path(path),
                ..
            } if own => StagedMount::At {
                path: path.clone(),
                is_dir: true,
            },
            Mount::Proc { .. } => StagedMount::MadeByEngine,
            Mount::Tmpfs { .. } | Mount::File { .. } if own => StagedMount::MadeByEngine,
            _ => StagedMount::At {
                path: format!("/run/marshal/{number}"),
                is_dir: true,
            },
        })
        .collect()
}

const ROOT: HostIds = HostIds::Root { slot_uid: 701_000 };
const OWN: HostIds = HostIds::Own {
    uid: 1234,
    gid: 1234,
};

#[test]
fn what_bubblewrap_is_told() {
    for (name, ids, network, own) in [
        ("root", ROOT, Network::None, false),
        ("user", OWN, Network::Host, true),
    ] {
        let plan = planned(network, ids);
        let mut texts = 10;
        let words = bwrap::options(
            &plan,
            &placed(&plan, bwrap::is_shown, own),
            "MARKER",
            |_| {
                texts += 1;
                texts
            },
            |path| match path {
                "/proc/kcore" => Some(false),
                "/proc/acpi" | "/proc/sys" => Some(true),
                _ => None,
            },
        );
        insta::assert_snapshot!(format!("bwrap_{name}"), lines(&words));
    }
}

/// An option a line.
fn lines(words: &[String]) -> String {
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(if word.starts_with("--") { '\n' } else { ' ' });
        }
        out.push_str(word);
    }
    out
}

fn engine(flavour: ContainerCli) -> Container {
    Container {
        flavour,
        program: vec!["/usr/bin/engine".to_owned(), "--root=/store".to_owned()],
        env: Vec::new(),
        limits: Some(ContainerLimits {
            pids: Some(256),
            memory: Some(1 << 30),
            swap: Some(1 << 20),
            cpu_millis: Some(1500),
        }),
        extra: vec!["--pids-limit=64".to_owned()],
        image: "a".repeat(64),
        name: "marshal-1-demo-0".to_owned(),
        labels: vec!["marshal.state=/state".to_owned()],
        directory: "/state/engines".to_owned(),
    }
}

#[test]
fn what_an_engine_is_told() {
    let libraries = ["ld-linux-x86-64.so.2", "libc.so.6"].map(|name| Library {
        path: format!("/usr/lib/{name}"),
        name: name.to_owned(),
    });
    for (name, flavour, ids, own, libraries) in [
        (
            "podman_root",
            ContainerCli::Podman,
            ROOT,
            false,
            &libraries[..],
        ),
        (
            "podman_user",
            ContainerCli::Podman,
            OWN,
            true,
            &libraries[..],
        ),
        ("docker_static", ContainerCli::Docker, ROOT, true, &[]),
    ] {
        let plan = planned(Network::None, ids);
        let container = engine(flavour);
        let words = container::run_argv(&ContainerSpec {
            container: &container,
            plan: &plan,
            placed: &placed(&plan, container::is_shown, own),
            libraries,
            link: "/run/a, \"b\"/link",
            marker: "MARKER",
            limits: ProcessLimits {
                nofile: 1024,
                fsize: 1,
                nproc: None,
                group: marshal_model::ResourceLimits::NONE,
            },
            processes: 100,
        });
        assert!(!words.iter().any(|word| word.contains("privileged=")));
        insta::assert_snapshot!(name, lines(&words));
    }
}

#[test]
fn a_container_is_looked_for_and_removed_by_its_name() {
    let podman = engine(ContainerCli::Podman);
    assert_eq!(
        container::remove_argv(&podman).join(" "),
        "/usr/bin/engine --root=/store rm --force --time=0 marshal-1-demo-0"
    );
    assert_eq!(
        container::inspect_argv(&podman).join(" "),
        "/usr/bin/engine --root=/store container inspect --format={{.Id}} marshal-1-demo-0"
    );
    let docker = container::remove_argv(&engine(ContainerCli::Docker)).join(" ");
    assert_eq!(
        docker,
        "/usr/bin/engine --root=/store rm --force marshal-1-demo-0"
    );
}

#[test]
fn this_process_knows_its_libraries() {
    let libraries = own_binary::libraries().unwrap();
    // Linked with all that it needs, it has none; else there is a loader among them.
    let is_loader = |library: &Library| library.name.starts_with("ld");
    assert!(
        libraries.is_empty() || libraries.iter().any(is_loader),
        "{libraries:?}"
    );
}

#[test]
fn a_program_is_heard_bounded_and_ended_when_it_is_late() {
    let sh = |script: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    };
    let limit = std::time::Duration::from_secs(20);
    assert!(
        program_run::run_to_end(&mut sh("exit 0"), "sh", None, limit)
            .unwrap()
            .is_ok()
    );
    let said =
        program_run::run_to_end(&mut sh("echo no luck >&2; exit 125"), "sh", None, limit).unwrap();
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("exit status: 125") && said.contains("no luck"),
        "{said}"
    );
    let noisy = "i=0; while [ $i -lt 3000 ]; do echo 01234567890123456789012345678901234567890 >&2; i=$((i+1)); done; exit 1";
    let said = program_run::run_to_end(&mut sh(noisy), "sh", None, limit)
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(said.len() < 1000, "{said}");
    let began = Instant::now();
    let short = std::time::Duration::from_millis(100);
    let late = program_run::run_to_end(&mut sh("exec sleep 60"), "sh", None, short).unwrap_err();
    assert!(late.what.contains("did not end"), "{late}");
    assert!(began.elapsed() < limit);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let unwanted =
        program_run::run_to_end(&mut sh("exec sleep 60"), "sh", Some(&theirs), limit).unwrap_err();
    assert!(unwanted.what.contains("cancelled the start"), "{unwanted}");
    let missing = program_run::run_to_end(&mut Command::new("/no/such/program"), "it", None, limit);
    assert_eq!(missing.unwrap_err().errno, Some(2));
}
