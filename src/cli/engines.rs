//! The programs that build sandboxes instead of marshal: finds them, checks their images, and
//! removes the containers of an earlier start.
//!
//! Must not know the arguments for a child.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use marshal_config::{self as config, Config, ContainerEngine, Launcher};
use marshal_launch::{
    self, Container, ContainerCli, Engine, LaunchPlan, ProcessLimits, ProgramOutput, SandboxSpec,
    Spawner,
};
use marshal_model::limits::{ENGINE_COMMAND, ENGINE_OUTPUT_BYTES};
use marshal_model::{PoolName, ResourceLimits, untrusted};

/// The variables of the supervisor's environment that an engine gets.
const PASSED: [&str; 16] = [
    "CONTAINERS_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "CONTAINERS_STORAGE_CONF",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_CERT_PATH",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "HOME",
    "PATH",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// The label of every container. Its value is the state directory, which only one supervisor can
/// lock.
const OWNER: &str = "marshal.state";

/// The directory for files that are mounted into containers, below the state directory.
const DIRECTORY: &str = "engines";

/// Characters shown of an engine's output in a message.
const MAX_SHOWN: usize = 300;

/// The limits of an engine's own processes.
const LIMITS: ProcessLimits = ProcessLimits {
    nofile: 4096,
    fsize: 1 << 30,
    nproc: None,
    group: ResourceLimits::NONE,
};

/// Why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program is not installed.
    #[error(
        "launcher {launcher} needs the program {program}, which is not in PATH; install it, or use launcher = \"unshare\""
    )]
    Missing {
        /// The launcher.
        launcher: Launcher,
        /// The program's name.
        program: &'static str,
    },
    /// A command of the program failed.
    #[error("{program} did not answer about {what}: {why}")]
    NoAnswer {
        /// The program's name.
        program: &'static str,
        /// The subject of the command.
        what: String,
        /// The error.
        why: String,
    },
    /// The image is not on this host.
    #[error(
        "{program} does not have the image {image}, and marshal pulls no images: {output}; run {program} pull {image}"
    )]
    NoImage {
        /// The program's name.
        program: &'static str,
        /// The image's name.
        image: String,
        /// The program's message.
        output: String,
    },
    /// The image of that name has another digest.
    #[error("the image {image} of {program} has another digest: {output}")]
    OtherImage {
        /// The program's name.
        program: &'static str,
        /// The image's name.
        image: String,
        /// The id and the digests of the image.
        output: String,
    },
    /// The output of the program is not valid.
    #[error("{program} printed no id for the image {image}, but {output:?}")]
    Garbage {
        /// The program's name.
        program: &'static str,
        /// The image's name.
        image: String,
        /// The program's output.
        output: String,
    },
    /// The containers of an earlier start cannot be removed.
    #[error("cannot remove the containers of an earlier start: {output}")]
    LeftoverContainers {
        /// The engine's message.
        output: String,
    },
}

/// The engines of all pools that need one. Removes the containers that an earlier supervisor with
/// this state directory left behind.
///
/// # Errors
/// [`EngineError`]; no child was started then.
pub async fn prepare_engines(
    config: &Config,
    spawner: &Spawner,
    state: &Path,
) -> Result<BTreeMap<PoolName, Arc<Engine>>, EngineError> {
    let mut engines = BTreeMap::new();
    let mut images: BTreeMap<&str, Arc<Engine>> = BTreeMap::new();
    for pool in &config.pools {
        let engine = match pool.launcher {
            Launcher::Bwrap => Arc::new(bwrap()?),
            Launcher::Container => {
                let image = pool.container_image(&config.container).unwrap_or_default();
                if let Some(engine) = images.get(image) {
                    Arc::clone(engine)
                } else {
                    let owner = state.to_string_lossy();
                    let directory = state.join(DIRECTORY);
                    let container = &config.container;
                    let engine = of_image(container, image, spawner, &owner, &directory).await?;
                    if images.is_empty() {
                        sweep(&engine, spawner, state).await?;
                    }
                    let engine = Arc::new(Engine::Container(engine));
                    images.insert(image, Arc::clone(&engine));
                    engine
                }
            }
            Launcher::Unshare | Launcher::Pty | Launcher::None | Launcher::Ssh => continue,
        };
        engines.insert(pool.name.clone(), engine);
    }
    Ok(engines)
}

/// bubblewrap, from PATH.
///
/// # Errors
/// [`EngineError::Missing`].
pub fn bwrap() -> Result<Engine, EngineError> {
    Ok(Engine::Bwrap {
        program: find(Launcher::Bwrap, "bwrap")?,
    })
}

/// The first program of that name in the PATH of this process.
fn find(launcher: Launcher, program: &'static str) -> Result<String, EngineError> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|path| {
            path.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
        .and_then(|path| path.into_os_string().into_string().ok())
        .ok_or(EngineError::Missing { launcher, program })
}

/// The engine for this image, which must be on this host. `owner` is the label of its containers;
/// `directory` is for files that are mounted into them.
///
/// # Errors
/// [`EngineError`].
pub async fn of_image(
    config: &config::Container,
    image: &str,
    spawner: &Spawner,
    owner: &str,
    directory: &Path,
) -> Result<Container, EngineError> {
    let (flavour, program) = match config.engine {
        ContainerEngine::Podman => (ContainerCli::Podman, "podman"),
        ContainerEngine::Docker => (ContainerCli::Docker, "docker"),
    };
    let mut line = vec![find(Launcher::Container, program)?];
    line.extend(config.global_options.iter().cloned());
    let mut extra = Vec::new();
    if let Some(runtime) = &config.runtime {
        match flavour {
            ContainerCli::Podman => line.push(format!("--runtime={runtime}")),
            ContainerCli::Docker => extra.push(format!("--runtime={runtime}")),
        }
    }
    extra.extend(config.run_options.iter().cloned());
    let mut container = Container {
        flavour,
        program: line,
        env: PASSED
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect(),
        limits: None,
        extra,
        image: String::new(),
        name: String::new(),
        labels: vec![format!("{OWNER}={owner}")],
        directory: directory.to_string_lossy().into_owned(),
    };
    container.image = resolve_image(&container, image, program, spawner).await?;
    Ok(container)
}

/// The id of the image with that name.
async fn resolve_image(
    container: &Container,
    image: &str,
    program: &'static str,
    spawner: &Spawner,
) -> Result<String, EngineError> {
    let words = [
        "image",
        "inspect",
        "--format={{.Id}}{{range .RepoDigests}} {{.}}{{end}}",
        image,
    ];
    let what = format!("the image {image}");
    let finished = run_command(container, &words, program, &what, spawner).await?;
    let image = image.to_owned();
    if finished.status.shell_code() != 0 {
        return Err(EngineError::NoImage {
            program,
            image,
            output: display_output(&finished.stderr),
        });
    }
    let output = display_output(&finished.stdout);
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    let mut words = text.split_whitespace();
    let id = words.next().unwrap_or_default();
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_id || finished.is_truncated || text.lines().count() != 1 {
        return Err(EngineError::Garbage {
            program,
            image,
            output,
        });
    }
    let is_meant = if let Some(wanted) = image.strip_prefix("sha256:") {
        wanted == id
    } else if let Some((_, digest)) = image.split_once('@') {
        words.any(|known| known.rsplit('@').next() == Some(digest))
    } else {
        true
    };
    if is_meant {
        Ok(id.to_owned())
    } else {
        Err(EngineError::OtherImage {
            program,
            image,
            output,
        })
    }
}

/// Removes every container of this state directory. Their supervisor has ended, because this one
/// has the lock.
async fn sweep(container: &Container, spawner: &Spawner, state: &Path) -> Result<(), EngineError> {
    let program = match container.flavour {
        ContainerCli::Podman => "podman",
        ContainerCli::Docker => "docker",
    };
    let label = format!("--filter=label={OWNER}={}", state.display());
    let words = ["ps", "--all", "--format={{.Names}}", &label];
    let finished = run_command(container, &words, program, "its containers", spawner).await?;
    if finished.status.shell_code() != 0 {
        return Err(EngineError::LeftoverContainers {
            output: display_output(&finished.stderr),
        });
    }
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    for name in text.split_whitespace() {
        // Only names that marshal gives: the output may have other lines.
        if !name.starts_with("marshal-") {
            continue;
        }
        tracing::warn!(name, "removing a container that an earlier start left");
        let words = ["rm", "--force", name];
        let finished = run_command(
            container,
            &words,
            program,
            "the removal of a container",
            spawner,
        )
        .await?;
        if finished.status.shell_code() != 0 {
            return Err(EngineError::LeftoverContainers {
                output: display_output(&finished.stderr),
            });
        }
    }
    // The files that were mounted into them.
    if let Err(error) = std::fs::remove_dir_all(&container.directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(directory = container.directory, %error, "cannot remove the files of containers");
    }
    Ok(())
}

/// Runs one command of an engine.
async fn run_command(
    container: &Container,
    words: &[&str],
    program: &'static str,
    what: &str,
    spawner: &Spawner,
) -> Result<ProgramOutput, EngineError> {
    let argv = container.program.iter().cloned();
    let plan = LaunchPlan {
        argv: argv
            .chain(words.iter().map(|&word| word.to_owned()))
            .collect(),
        env: container.env.clone(),
        cwd: "/".to_owned(),
        limits: LIMITS,
        sandbox: SandboxSpec::None,
        preamble: Vec::new(),
    };
    marshal_launch::run_to_end(spawner, plan, ENGINE_COMMAND, ENGINE_OUTPUT_BYTES)
        .await
        .map_err(|error| EngineError::NoAnswer {
            program,
            what: what.to_owned(),
            why: error.to_string(),
        })
}

fn display_output(output: &[u8]) -> String {
    untrusted::escape_for_display(String::from_utf8_lossy(output).trim(), MAX_SHOWN)
}
