//! What the strict reader accepts must have exactly the words that bash runs.
//!
//! Random texts from pieces that have fooled readers before; those that the engine calls plain
//! are run by real bash with a PATH that leads nowhere and without built-ins, where every command ends in
//! `command_not_found_handle`, which reports its words. `MARSHAL_FUZZ` sets how many texts
//! (5,000, or 100,000 with `MARSHAL_TEST_LONG=1`), `MARSHAL_FUZZ_SEED` which.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use marshal_model::AgentClaims;
use marshal_policy::{FsContext, NoLinks, Policy, Request};

/// Runs NUL-separated texts from stdin; writes `S` for each, then `C`, the number of words and
/// the words of each command, all ended by NUL, to descriptor 19.
const DRIVER: &str = r#"
mapfile -d '' -t texts
command_not_found_handle() { printf '%s\0' C "$#" "$@" >&19; }
set -f
names=($(compgen -b))
FUNCNEST=1 # a handler that calls itself ends here
PATH=/nonexistent
for name in "${names[@]}"; do
  case $name in printf | eval | enable) ;; *) enable -n "$name" ;; esac
done
enable -n enable
for text in "${texts[@]}"; do
  printf '%s\0' S >&19
  (eval -- "$text") </dev/null
done
"#;

const PIECES: &[&str] = &[
    "git",
    "a",
    "b2",
    "-x",
    "--y=z",
    "x=y",
    "A=1",
    "CI=",
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\t",
    "\n",
    "&&",
    "||",
    ";",
    "|",
    "&",
    "'",
    "\"",
    "\\",
    "'a b'",
    "\"c d\"",
    "\\ ",
    "\\\n",
    " \\\n ",
    "#",
    " # c",
    "~",
    "~/b",
    "=~",
    ":~",
    "%",
    "%1",
    "]]",
    "[[",
    "[",
    "]",
    "{",
    "}",
    "{a,b}",
    "{}",
    "@{u}",
    "^{}",
    "^{tree}",
    "time -p ",
    "!",
    "! ",
    "time ",
    "time",
    "coproc ",
    "then",
    "if",
    "in",
    "esac",
    "$",
    "$x",
    "$[",
    "`",
    "(",
    ")",
    "*",
    "?",
    "^",
    "@",
    "+",
    ",",
    ".",
    "2>&1",
    ">/dev/null",
    "</dev/null",
    "&>/dev/null",
    " 2>",
    ">",
    "<",
    ">&",
    "1",
    "20",
    "é",
    "\u{a0}",
    "\u{200b}",
    "\r",
    "\u{7}",
    "''",
    "\"\"",
    "'\n'",
    "\\$",
    "\\~",
    "\\=",
    "\\#",
    "x:",
    "=",
    "a#b",
    "HEAD~2",
    "\"\\\\\"",
    "\"\\x\"",
    "\"\\$\"",
    "!a",
    "if ",
    "; then ",
    "; elif ",
    "; else ",
    "; fi",
    "for f in a b; do ",
    "for f in ",
    "; do ",
    "; done",
    "$f",
    "\"$f\"",
    "x\"${f}\"y",
    "( ",
    " )",
    "read f",
    "f=1",
    "cd ",
    "echo ",
    "$?",
    "\"$?\"",
    "\"x ${PIPESTATUS[0]}\"",
    "${PIPESTATUS[1]}",
    "a$ ",
    "a$",
    "\"a$\"",
    "\"^b$)\"",
    "\"$|$/\"",
    " <<'E'",
    " <<\"E\"",
    " << E",
    "<<E",
    "\nE\n",
    "\nb c\nE\n",
    "\nb $x\nE\n",
    "\n E\nE",
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64*, enough for choosing pieces.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(mixed).expect("31 bits") % bound
    }

    /// A compound command around random texts.
    fn compound(&mut self) -> String {
        let mut inner = || match self.below(4) {
            0 => self.compound(),
            _ => self.simple(),
        };
        let (one, two, three) = (inner(), inner(), inner());
        match self.below(7) {
            0 => format!("if {one}; then {two}; fi"),
            1 => format!("if {one}\nthen {two}; else {three}; fi"),
            2 => format!("({one})"),
            3 => format!("( {one}; {two} ); {three}"),
            4 => format!("for f in a 'b c' *.x; do {one} \"$f\"; {two}; done"),
            5 => format!("for f in a b2; do {one} $f; done; {two}"),
            _ => format!("for x in -x --y=z; do\n{one} x\"${{x}}\"y\n{two}\ndone"),
        }
    }

    fn text(&mut self) -> String {
        if self.below(3) == 0 {
            self.compound()
        } else {
            self.simple()
        }
    }

    fn simple(&mut self) -> String {
        let mut text = String::new();
        if self.below(2) == 0 {
            text.push_str(["a ", "git ", "b2 -x ", "A=1 a ", "time a "][self.below(5)]);
        }
        for _ in 0..=self.below(9) {
            text.push_str(PIECES[self.below(PIECES.len())]);
        }
        text
    }
}

/// The words of each command, if the engine calls the text plain.
fn plain(policy: &Policy, text: &str) -> Option<Vec<Vec<String>>> {
    let at = FsContext {
        workspace: "/w",
        home: "/HOME",
        cwd: Some("/w"),
        resolver: &NoLinks,
    };
    let command = text.to_owned();
    let judged = policy.decide(
        &Request::Shell { command, cwd: None },
        &AgentClaims::default(),
        &at,
    );
    let parts = judged.facts.parts;
    if judged.facts.not_plain.is_some() || parts.is_empty() {
        return None;
    }
    let words = |part: marshal_policy::Part| {
        part.words
            .into_iter()
            .map(marshal_model::UntrustedText::into_raw)
            .collect()
    };
    Some(
        parts
            .into_iter()
            .map(words)
            .filter(|w: &Vec<String>| !w.is_empty())
            .collect(),
    )
}

/// Texts that may be run: they open no file beside `/dev/null` outside an empty directory, and
/// name no program by its path, which would not reach the handler.
fn runnable(text: &str, commands: &[Vec<String>]) -> bool {
    let opens = text.contains(['<', '>']);
    let mut rest = text.to_owned();
    for end in ["", " ", "\t", "\n", ";", "&", "|", "<", ">"] {
        rest = match end {
            "" => rest
                .strip_suffix("/dev/null")
                .map_or(rest.clone(), str::to_owned),
            end => rest.replace(&format!("/dev/null{end}"), end),
        };
    }
    !(opens && rest.contains(['/', '~'])) && commands.iter().all(|c| !c[0].contains('/'))
}

fn bash(texts: &[String]) -> Vec<Vec<Vec<String>>> {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report");
    let work = directory.path().join("work");
    std::fs::create_dir(&work).expect("a directory");
    let mut child = Command::new("timeout")
        .args(["-k", "1", "300", "bash", "--norc", "--noprofile", "-c"])
        .arg(format!("exec 19>'{}'; {DRIVER}", report.display()))
        .env_clear()
        .env("HOME", "/HOME")
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .current_dir(&work)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash is installed");
    let mut stdin = child.stdin.take().expect("a pipe");
    for text in texts {
        stdin.write_all(text.as_bytes()).expect("bash reads");
        stdin.write_all(b"\0").expect("bash reads");
    }
    drop(stdin);
    child.wait().expect("bash ends");
    let report = String::from_utf8(std::fs::read(report).expect("the report")).expect("UTF-8");
    let mut fields = report.split_terminator('\0');
    let mut out: Vec<Vec<Vec<String>>> = Vec::new();
    while let Some(kind) = fields.next() {
        if kind == "S" {
            out.push(Vec::new());
            continue;
        }
        assert_eq!(kind, "C", "the report is broken");
        let count: usize = fields
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        let words = fields.by_ref().take(count).map(home).collect();
        out.last_mut().expect("a text").push(words);
    }
    out
}

fn home(word: &str) -> String {
    match word.strip_prefix("/HOME") {
        Some(rest) => format!("~{rest}"),
        None => word.to_owned(),
    }
}

fn count_commands(commands: &[Vec<String>]) -> BTreeMap<&Vec<String>, usize> {
    let mut out = BTreeMap::new();
    for command in commands {
        *out.entry(command).or_insert(0) += 1;
    }
    out
}

/// The policy `developer` without its rules and what it extends: how a text is read depends on none of
/// them, and they take most of the time.
fn reader() -> Policy {
    let text = marshal_policy::builtin_text("developer").expect("its text");
    let (settings, _) = text.split_once("[[rule]]").expect("rules");
    let settings: String = settings
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("extends"))
        .collect();
    Policy::load(&settings, "reader", &|name| Err(format!("no {name}"))).expect("a policy")
}

/// Whether each command that ran is one that was read, with a number for each exit status.
fn fits_with_numbers(read: &[Vec<String>], ran: &[Vec<String>]) -> bool {
    let status =
        regex::Regex::new(r"\\\$\\\?|\\\$\\\{PIPESTATUS\\\[[0-9]\\\]\\\}").expect("a pattern");
    let fits = |read: &String, ran: &String| {
        let pattern = regex::escape(read);
        let pattern = status.replace_all(&pattern, "[0-9]*");
        read == ran || regex::Regex::new(&format!("(?s)^{pattern}$")).is_ok_and(|r| r.is_match(ran))
    };
    let mut left: Vec<&Vec<String>> = read.iter().collect();
    ran.iter().all(|ran| {
        let same = |read: &&Vec<String>| {
            read.len() == ran.len() && read.iter().zip(ran).all(|(read, ran)| fits(read, ran))
        };
        let place = left.iter().position(same);
        place.map(|place| left.swap_remove(place)).is_some()
    })
}

#[test]
fn what_is_called_plain_runs_exactly_as_it_was_read() {
    let number = |name: &str, usual: u64| {
        std::env::var(name)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let is_long = std::env::var("MARSHAL_TEST_LONG").is_ok_and(|long| long == "1");
    let usual = if is_long { 100_000 } else { 5_000 };
    let goal = usize::try_from(number("MARSHAL_FUZZ", usual)).expect("a number");
    let seed = number("MARSHAL_FUZZ_SEED", 0x6d61_7273_6861_6c21);
    println!("seed {seed}");
    let mut random = Random(seed | 1);
    let policy = reader();
    let mut texts = Vec::new();
    let mut read = Vec::new();
    while texts.len() < goal {
        let text = random.text();
        // Bash's printf writes at every newline, so two stages of a pipe would write into each
        // other's reports.
        let would_mix = text.contains('|') && text.contains('\n');
        if let Some(commands) = plain(&policy, &text)
            && runnable(&text, &commands)
            && !would_mix
        {
            texts.push(text);
            read.push(commands);
        }
    }
    let ran: Vec<_> = texts.chunks(1_000).flat_map(bash).collect();
    assert_eq!(ran.len(), texts.len(), "bash reports on every text");
    let mut differences = Vec::new();
    let mut compared = 0;
    for ((text, read), ran) in texts.iter().zip(&read).zip(&ran) {
        let (read_words, ran_words) = (count_commands(read), count_commands(ran));
        // A redirect that cannot be opened, `||` and `if` leave commands out; nothing may come in.
        let partial = text.contains(['<', '>']) || text.contains("||") || text.contains("if ");
        let fits = if text.contains("$?") || text.contains("PIPESTATUS") {
            fits_with_numbers(read, ran) && (partial || read.len() == ran.len())
        } else if partial {
            ran_words
                .iter()
                .all(|(words, n)| read_words.get(words).is_some_and(|m| n <= m))
        } else {
            compared += 1;
            read_words == ran_words
        };
        if !fits {
            differences.push(format!("{text:?}\n  read {read:?}\n  ran  {ran:?}"));
        }
    }
    assert!(
        compared > goal / 2,
        "only {compared} texts were compared word for word"
    );
    for construct in ["<<", "$?", "if ", "for ", "("] {
        let with_it = texts.iter().filter(|text| text.contains(construct)).count();
        println!("{with_it} texts with {construct:?}");
        assert!(
            with_it > goal / 1000,
            "only {with_it} texts with {construct:?}"
        );
    }
    differences.truncate(20);
    assert!(
        differences.is_empty(),
        "differences:\n{}",
        differences.join("\n")
    );
}
