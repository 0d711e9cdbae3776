//! One seed, one world: a configuration, tasks, and the lives of the supervisors that work them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use marshal_config::{Config, Origin};
use marshal_fleet::LoadedPolicy;
use marshal_policy::Policy;
use marshal_policy::extract::{self, Extractor};

use crate::sim::ledger::Ledger;
use crate::sim::random::SeededRandom;
use crate::sim::{check, supervisor_life};

/// What is broken on purpose, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twist {
    Nothing,
    /// Somebody allows before the verdict is durable.
    Hasty,
    /// The disk loses what it said to have.
    Forgetful,
    /// A prompt is delivered twice.
    Echo,
    /// A child's end is told, and it lives on.
    Immortal,
}

/// How much goes wrong, in hundredths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wildness(u64);

impl Wildness {
    /// Nothing goes wrong.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn percent(self, random: &mut SeededRandom, chance: u64) -> bool {
        random.between(0, 9_999) < self.0 * chance
    }
}

/// What came of a world.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) digest: u64,
    pub(crate) faults: Vec<String>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

/// One world.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: Arc<Config>,
    pub(crate) wildness: Wildness,
    pub(crate) twist: Twist,
    pub(crate) ledger: Arc<Ledger>,
    /// Microseconds since the Unix epoch, as this world's clock on the wall says.
    pub(crate) wall_us: i64,
    pub(crate) event_interval: u32,
}

/// Where worlds lie: in memory, if that can be.
fn place() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        match tempfile::tempdir_in(memory) {
            Ok(_) => memory.to_owned(),
            Err(_) => std::env::temp_dir(),
        }
    })
}

impl World {
    /// A world with this configuration.
    pub(crate) fn new(seed: u64, text: &str, wildness: Wildness, prints: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("marshal-sim-")
            .tempdir_in(place())
            .expect("a directory");
        std::fs::create_dir(dir.path().join("workspace")).expect("a workspace");
        std::fs::write(dir.path().join("workspace/a.txt"), "a").expect("a file");
        let origin = Origin {
            file: None,
            dir: dir.path().to_owned(),
            is_explicit: true,
        };
        let config = Config::parse(text, &origin);
        let config = config.unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        Self {
            seed,
            config: Arc::new(config),
            wildness,
            twist: Twist::Nothing,
            ledger: Arc::new(Ledger::new(prints)),
            wall_us: 1_700_000_000_000_000,
            event_interval: 61,
            dir,
        }
    }
}

/// Runs the world of a seed.
pub(crate) fn run(seed: u64, twist: Twist, prints: bool) -> Outcome {
    let mut random = SeededRandom::new(seed, 0);
    let wildness = Wildness(random.pick(&[0, 10, 40, 100]));
    let text = configuration(&mut random);
    if prints {
        println!("{wildness:?}\n{text}");
    }
    let mut world = World::new(seed, &text, wildness, prints);
    world.twist = twist;
    world.event_interval = random.pick(&[1, 2, 7, 61]);
    let lives = random.pick(&[1, 1, 2, 2, 3]);
    for number in 1..=lives {
        let is_last = number == lives;
        supervisor_life::live(&mut world, &mut random, is_last);
        check::database(&world, is_last);
    }
    let book = world.ledger.book();
    let faults = book.faults.iter().cloned().collect();
    let seen = book.seen.clone();
    drop(book);
    Outcome {
        digest: world.ledger.digest(),
        faults,
        seen,
    }
}

fn configuration(random: &mut SeededRandom) -> String {
    let mut text = "[supervisor]\nmax_children = 64\npause_after_denied = 0\n".to_owned();
    for name in ["a", "b", "c"]
        .iter()
        .take(usize::try_from(random.pick(&[1, 1, 2, 3])).expect("small"))
    {
        let keeps = random.percent(35);
        let on_crash = random.pick(&["report", "retry", "resume"]);
        let on_crash = if on_crash == "resume" && !keeps {
            "report"
        } else {
            on_crash
        };
        let attempts = if on_crash == "retry" {
            random.between(2, 3)
        } else {
            random.pick(&[1, 1, 2])
        };
        let scope = if keeps { "slot" } else { "task" };
        let check = if random.percent(20) {
            r#"["true"]"#
        } else {
            "[]"
        };
        let dialect = random.pick(&["scaiflux", "scaiflux", "acp"]);
        let resume_args = if dialect == "acp" {
            ""
        } else {
            r#"resume_args = ["--resume", "{session}"]"#
        };
        let size = random.between(1, 4);
        let mode = if random.percent(15) { "copy" } else { "rw" };
        let kind = random.pick(&["permanent", "transient", "temporary"]);
        let budget = random.pick(&[0, 2, 5, 50]);
        let window = random.pick(&["10s", "5m"]);
        let max = random.pick(&["1s", "60s"]);
        let silence = random.pick(&["20s", "10m"]);
        let turn = random.pick(&["none", "none", "5m"]);
        let unasked = random.pick(&["report", "report", "interrupt", "stop"]);
        let on_timeout = random.pick(&["deny", "deny", "deny_turn"]);
        let _ = write!(
            text,
            r#"
[pool.{name}]
size = {size}
command = ["marshal", "script-agent", "--dialect", "{dialect}"]
{resume_args}
dialect = "{dialect}"
launcher = "none"
policy = "developer"
workspace = {{ path = "workspace", mode = "{mode}" }}
session = "{scope}"
attempts = {attempts}
check = {check}
on_unasked_deny = "{unasked}"
approval = {{ on_timeout = "{on_timeout}" }}
restart = {{ kind = "{kind}", budget = {budget}, window = "{window}", base = "100ms", max = "{max}", reset_after = "60s", on_crash = "{on_crash}", never_codes = [101] }}
timeouts = {{ handshake = "30s", silence = "{silence}", turn = "{turn}", cancel = "5s" }}
"#
        );
    }
    text
}

/// The policy and the extractors, read once.
pub(crate) fn policies() -> BTreeMap<String, LoadedPolicy> {
    static LOADED: OnceLock<LoadedPolicy> = OnceLock::new();
    let policy = LOADED.get_or_init(|| LoadedPolicy {
        policy: Arc::new(Policy::builtin("developer").expect("a policy")),
        sha256: "0".repeat(64),
        files: Vec::new(),
    });
    [("developer".to_owned(), policy.clone())].into()
}

pub(crate) fn extractors(config: &Config) -> BTreeMap<String, Arc<Extractor>> {
    static PARSED: OnceLock<BTreeMap<&'static str, Arc<Extractor>>> = OnceLock::new();
    let parsed = PARSED.get_or_init(|| {
        let parse = |name| {
            let text = extract::builtin_text(name).expect("an extractor");
            (
                name,
                Arc::new(Extractor::parse(text).expect("an extractor")),
            )
        };
        ["scaiflux", "acp"].map(parse).into()
    });
    let pools = config.pools.iter();
    pools
        .map(|pool| {
            (
                pool.name.to_string(),
                Arc::clone(&parsed[pool.dialect.as_str()]),
            )
        })
        .collect()
}
