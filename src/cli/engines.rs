//! The programs that put walls up in marshal's place: found, asked for their image, and made to
//! forget what an earlier start left.
//!
//! Must not know what they are told for one child.

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

/// What an engine may know of the supervisor's environment.
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

/// The label of every container: whose it is, by the directory that only one supervisor can hold.
const OWNER: &str = "marshal.state";

/// The directory, below the state directory, for what containers are shown.
const DIRECTORY: &str = "engines";

/// How many characters of what an engine said a message shows.
const SHOWN: usize = 300;

/// What an engine's own processes may have.
const LIMITS: ProcessLimits = ProcessLimits {
    nofile: 4096,
    fsize: 1 << 30,
    nproc: None,
    group: ResourceLimits::NONE,
};

/// Why walls that another program is to put up cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such program.
    #[error(
        "launcher {launcher} needs the program {program}, which is in no directory of PATH: install it, or use launcher = \"unshare\""
    )]
    Missing {
        /// The launcher.
        launcher: Launcher,
        /// The program.
        program: &'static str,
    },
    /// It did not answer.
    #[error("{program} could not be asked for {what}: {why}")]
    NoAnswer {
        /// The program.
        program: &'static str,
        /// For what it was asked.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// It has no such image.
    #[error(
        "{program} has no image {image} here, and none is fetched: {said}; to fetch it: {program} pull {image}"
    )]
    NoImage {
        /// The program.
        program: &'static str,
        /// The image.
        image: String,
        /// What the program said.
        said: String,
    },
    /// It has another image of that name.
    #[error("the image that {program} has as {image} has another digest: {said}")]
    OtherImage {
        /// The program.
        program: &'static str,
        /// The image.
        image: String,
        /// Those that it has.
        said: String,
    },
    /// It said something that is no answer.
    #[error("{program} gave no id for the image {image}, but {said:?}")]
    Garbage {
        /// The program.
        program: &'static str,
        /// The image.
        image: String,
        /// What it said instead.
        said: String,
    },
    /// What an earlier start left cannot be removed.
    #[error("containers of an earlier start could not be removed: {said}")]
    LeftoverContainers {
        /// What the engine said.
        said: String,
    },
}

/// The engines of all pools that need one. Containers that an earlier start of the supervisor with
/// this state directory left are removed.
///
/// # Errors
/// [`EngineError`]; nothing runs then.
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

/// bubblewrap, where it is.
///
/// # Errors
/// [`EngineError::OnMissing`].
pub fn bwrap() -> Result<Engine, EngineError> {
    Ok(Engine::Bwrap {
        program: find(Launcher::Bwrap, "bwrap")?,
    })
}

/// The first of that name in the PATH of this process.
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

/// The engine for this image, which must be there. `owner` is what its containers are labelled with,
/// `directory` where files for them may be put.
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

/// The id of the image of that name.
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
            said: shown(&finished.stderr),
        });
    }
    let said = shown(&finished.stdout);
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    let mut words = text.split_whitespace();
    let id = words.next().unwrap_or_default();
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_id || finished.is_truncated || text.lines().count() != 1 {
        return Err(EngineError::Garbage {
            program,
            image,
            said,
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
            said,
        })
    }
}

/// Removes every container of this state directory: its supervisor is gone, for this one holds it.
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
            said: shown(&finished.stderr),
        });
    }
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    for name in text.split_whitespace() {
        // Only names that we give; whatever else is said is no name.
        if !name.starts_with("marshal-") {
            continue;
        }
        tracing::warn!(name, "removing a container that an earlier start left");
        let words = ["rm", "--force", name];
        let finished = run_command(container, &words, program, "an end", spawner).await?;
        if finished.status.shell_code() != 0 {
            return Err(EngineError::LeftoverContainers {
                said: shown(&finished.stderr),
            });
        }
    }
    // What they were shown.
    if let Err(error) = std::fs::remove_dir_all(&container.directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(directory = container.directory, %error, "files of containers are left");
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

fn shown(said: &[u8]) -> String {
    untrusted::escape_for_display(String::from_utf8_lossy(said).trim(), SHOWN)
}
