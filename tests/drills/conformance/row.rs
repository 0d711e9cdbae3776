//! The rows: which dialect, with which agent, and its cells.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, OnceLock};

use crate::conformance::agent::{self, Goodbye, Reason, Speech, Usage};
use crate::conformance::bench::Bench;
use crate::conformance::column::{CellOutcome, Column};
use crate::conformance::tool;

/// How many rows work at the same time.
const AT_ONCE: usize = 3;

/// What came of a cell: what was seen, or everything about why it failed.
pub(crate) type Cell = Result<CellOutcome, String>;

/// A row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// What the agent was.
    pub(crate) with: &'static str,
    kind: Kind,
    cells: OnceLock<Vec<Cell>>,
}

#[expect(clippy::large_enum_variant, reason = "seven in all, and none is moved")]
enum Kind {
    Agent(Speech),
    Tool,
}

const SCAIFLUX_TABLE: &str = include_str!("../../../examples/dialects/scaiflux.toml");

pub(crate) static ROWS: [Row; 7] = [
    Row {
        name: "scaiflux",
        with: "the script agent",
        kind: Kind::Agent(scaiflux("\"scaiflux\"", &[])),
        cells: OnceLock::new(),
    },
    Row {
        name: "acp",
        with: "the script agent",
        kind: Kind::Agent(Speech {
            dialect: "\"acp\"",
            command: &["--dialect", "acp"],
            keys: "",
            files: &[],
            odd: &["--protocol", "2"],
            versions: ["version 2", "version 1"],
            asks: true,
            reason: Reason::NextPrompt,
            cancel: "cancel",
            goodbye: Goodbye::Offered("close", &["--quirk", "close"]),
            resume: "session/resume",
            usage: Usage::Line(
                r#"raw {"jsonrpc":"2.0","id":{reply},"result":{"stopReason":"end_turn","usage":{"inputTokens":31,"outputTokens":7,"totalTokens":38}}}"#,
                [31, 7],
            ),
        }),
        cells: OnceLock::new(),
    },
    Row {
        name: "loaf",
        with: "the script agent",
        kind: Kind::Agent(Speech {
            dialect: "\"loaf\"",
            command: &["--dialect", "loaf"],
            keys: "",
            files: &[],
            odd: &["--protocol", "2"],
            versions: ["version 2.0.0", "version 1"],
            asks: false,
            reason: Reason::Answer,
            cancel: "interrupt",
            goodbye: Goodbye::Word("shutdown"),
            resume: "session.get",
            usage: Usage::Never,
        }),
        cells: OnceLock::new(),
    },
    Row {
        name: "skillpilot",
        with: "tclsh at a terminal",
        kind: Kind::Tool,
        cells: OnceLock::new(),
    },
    Row {
        name: "claude",
        with: "the script agent",
        kind: Kind::Agent(Speech {
            dialect: "\"claude\"",
            command: &["--dialect", "claude"],
            keys: "",
            files: &[],
            odd: &["--protocol", "3"],
            versions: ["version 3.0.0", "version 2"],
            asks: true,
            reason: Reason::Answer,
            cancel: "interrupt",
            goodbye: Goodbye::Eof,
            resume: "--resume",
            usage: Usage::Counted,
        }),
        cells: OnceLock::new(),
    },
    Row {
        name: "codex",
        with: "the script agent",
        kind: Kind::Agent(Speech {
            dialect: "\"codex\"",
            command: &["--dialect", "codex"],
            keys: "",
            files: &[],
            odd: &["--protocol", "0.100.0"],
            versions: ["0.100.0", "0.166"],
            asks: true,
            reason: Reason::NextPrompt,
            cancel: "interrupt",
            goodbye: Goodbye::Eof,
            resume: "thread/resume",
            usage: Usage::Counted,
        }),
        cells: OnceLock::new(),
    },
    Row {
        name: "custom",
        with: "the script agent, by `examples/dialects/scaiflux.toml`",
        kind: Kind::Agent(scaiflux(
            "{ custom = \"table.toml\" }",
            &[("table.toml", SCAIFLUX_TABLE)],
        )),
        cells: OnceLock::new(),
    },
];

/// ScaiFlux' serve mode, by whichever dialect.
const fn scaiflux(dialect: &'static str, files: &'static [(&'static str, &'static str)]) -> Speech {
    Speech {
        dialect,
        // In a mode in which it asks for everything by itself.
        command: &[
            "--dialect",
            "scaiflux",
            "--permission-mode",
            "workspace-write",
        ],
        keys: "permission_requests = \"all\"\nresume_args = [\"--resume\", \"{session}\"]",
        files,
        odd: &["--protocol", "2"],
        versions: ["version 2", "version 1"],
        asks: true,
        reason: Reason::Answer,
        cancel: "interrupt",
        goodbye: Goodbye::Word("shutdown"),
        resume: "resume_args",
        usage: Usage::Counted,
    }
}

impl Row {
    /// Its cells, in the order of the columns; worked once, with few others at the same time.
    pub(crate) fn cells(&self) -> &[Cell] {
        self.cells.get_or_init(|| {
            let _place = Place::acquire();
            self.work()
        })
    }

    fn work(&self) -> Vec<Cell> {
        let bench = match caught(|| self.bench()) {
            Ok(bench) => bench,
            Err(why) => {
                let mut cells = Column::ALL.map(|_| Err("no supervisor, see above".to_owned()));
                cells[0] = Err(format!("no supervisor: {why}"));
                return cells.to_vec();
            }
        };
        let mut cells = Vec::new();
        for column in Column::ALL {
            bench.begin_cell();
            let cell = caught(|| self.see(&bench, column));
            cells.push(cell.map_err(|why| format!("{why}\n{}", bench.evidence())));
        }
        // What it leaves behind is told with the last cell, since it is nobody's own.
        if let Err(why) = caught(|| bench.end()) {
            let last = cells.pop();
            let before = last.and_then(Result::err).unwrap_or_default();
            cells.push(Err(format!("{before}\nafter all cells: {why}")));
        }
        cells
    }

    fn bench(&self) -> Bench {
        match &self.kind {
            Kind::Agent(speech) => speech.bench(),
            Kind::Tool => tool::bench(),
        }
    }

    fn see(&self, bench: &Bench, column: Column) -> CellOutcome {
        match &self.kind {
            Kind::Agent(speech) => see_agent(bench, speech, column),
            Kind::Tool => tool::see(bench, column),
        }
    }
}

fn see_agent(bench: &Bench, speech: &Speech, column: Column) -> CellOutcome {
    let cell = match column {
        Column::Version => agent::version,
        Column::Prompt => agent::prompt,
        Column::Stream => agent::stream,
        Column::Tools => agent::tools,
        Column::Allow => agent::allow,
        Column::Deny => agent::deny,
        Column::Ask => agent::ask,
        Column::Cancel => agent::cancel,
        Column::Busy => agent::busy,
        Column::Crash => agent::crash,
        Column::Resume => agent::resume,
        Column::Goodbye => agent::goodbye,
        Column::Eof => agent::eof,
        Column::Garbage => agent::garbage,
        Column::HugeLine => agent::huge_line,
        Column::Usage => agent::usage,
    };
    cell(bench, speech)
}

/// Does it; a panic becomes its words.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "a panic without words".to_owned())
    })
}

/// One of the few places of rows that work.
struct Place;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ROW_ENDED: Condvar = Condvar::new();

impl Place {
    fn acquire() -> Self {
        let taken = RUNNING.lock().expect("no panic holds it");
        let mut taken = ROW_ENDED
            .wait_while(taken, |taken| *taken >= AT_ONCE)
            .expect("no panic holds it");
        *taken += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut taken) = RUNNING.lock() {
            *taken -= 1;
        }
        ROW_ENDED.notify_one();
    }
}
