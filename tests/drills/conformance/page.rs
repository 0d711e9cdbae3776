//! `docs/conformance.md`, made of what a run saw.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::conformance::column::{CellOutcome, Column};
use crate::conformance::row::Row;

const BEGINS: &str = "# What each dialect does

The same behaviours are tested for every protocol. The test writes this page (`tests/run conformance`). Each cell is a conversation of the daemon with a real child in a sandbox. It holds
only if the behaviour was seen in the journal, over HTTP and in the child's own record of what it received. `none` means that the protocol does not have it; that is tested as well, and the
note gives the reason.

";

const ENDS: &str = "
`custom` is a protocol that a [table](dialects.md) describes; what such a protocol has depends on its table. That real agents speak these protocols as well is what `tests/run agents` shows
([agents](agents.md)).
";

/// The page of these rows. Every cell has passed.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut page = BEGINS.to_owned();
    let heads: Vec<_> = Column::ALL.map(Column::head).to_vec();
    let _ = writeln!(page, "| dialect | {} |", heads.join(" | "));
    let _ = writeln!(page, "|---|{}", "---|".repeat(heads.len()));
    let mut notes: Vec<&'static str> = Vec::new();
    for row in rows {
        let _ = write!(page, "| {} |", row.name);
        for cell in row.cells() {
            let (word, note) = match cell {
                Ok(CellOutcome::Yes) => ("yes", None),
                Ok(CellOutcome::As(note)) => ("yes", Some(*note)),
                Ok(CellOutcome::None(note)) => ("none", Some(*note)),
                Err(_) => ("FAILED", None),
            };
            let _ = write!(page, " {word}");
            if let Some(note) = note {
                let _ = write!(page, " ({})", number(&mut notes, note));
            }
            page.push_str(" |");
        }
        page.push('\n');
    }
    page.push('\n');
    for (at, note) in notes.iter().enumerate() {
        let _ = writeln!(page, "{}. {note}", at + 1);
    }
    page.push_str("\nWhat spoke:\n\n");
    for row in rows {
        let _ = writeln!(page, "- {}: {}", row.name, row.with);
    }
    page.push_str(
        "\n## The columns\n\n| behaviour | what holds where it says `yes` |\n|---|---|\n",
    );
    for column in Column::ALL {
        let _ = writeln!(page, "| {} | {} |", column.head(), column.yes_meaning());
    }
    page.push_str(ENDS);
    page
}

/// The number of a note; the same words are one note.
fn number(notes: &mut Vec<&'static str>, note: &'static str) -> usize {
    if let Some(at) = notes.iter().position(|item| *item == note) {
        return at + 1;
    }
    notes.push(note);
    notes.len()
}

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md")
}

/// Holds the committed page against this one, or writes it.
pub(crate) fn compare(page: &str) {
    if std::env::var("MARSHAL_CONFORMANCE_TABLE").is_ok_and(|value| value == "write") {
        fs::write(place(), page).expect("a page");
        return;
    }
    let committed = fs::read_to_string(place()).unwrap_or_default();
    assert_eq!(
        committed,
        page,
        "{} is not what was seen: MARSHAL_CONFORMANCE_TABLE=write tests/run conformance",
        place().display()
    );
}
