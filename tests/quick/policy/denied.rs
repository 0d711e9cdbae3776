//! What real bash tries to run must never be allowed by a policy that denies it.
//!
//! Random texts of constructs in which readers lose commands: here-documents, arrays, branches,
//! quotes in quotes, braces, escapes, comments. Real bash runs each with a PATH that leads nowhere
//! and reports every command that it tries to run. A policy that allows everything else denies
//! those names: for each text that ran one, it must have seen it, or have found the text too odd to
//! allow. `MARSHAL_FUZZ` sets how many texts (3,000, or 30,000 with `MARSHAL_TEST_LONG=1`),
//! `MARSHAL_FUZZ_SEED` which.

use std::io::Write as _;
use std::process::{Command, Stdio};

use marshal_model::{AgentClaims, Decision};
use marshal_policy::{FsContext, NoLinks, Policy, Request};

/// Runs NUL-separated texts from stdin; writes a line with the text's number for each command `k…`
/// that is tried, to descriptor 19.
const DRIVER: &str = r#"
mapfile -d '' -t texts
command_not_found_handle() { case $1 in kubectl) printf '%d\n' "$n" >&19 ;; esac; return 127; }
FUNCNEST=4
PATH=/nonexistent
n=0
for text in "${texts[@]}"; do
  (ulimit -t 2; eval -- "$text"; wait) </dev/null
  n=$((n + 1))
done
"#;

/// What the command may be spelled as.
const NAMES: &[&str] = &[
    "kubectl",
    "kubectl get",
    "kube\"\"ctl",
    "kub\\ectl",
    "'kubectl'",
    "$'kube\\x63tl'",
    "$'\\x{6b}ubectl'",
    "$'k\\0zz'ubectl",
    "$'\\553ubectl'",
    "$'kubectl\\cx'",
    "$'kubectl\\c@x'",
    "{kubectl,x}",
    "{kubectl,\"get\",pods}",
    "kubect{l..l}",
    "{kubect,x}{l,l}",
    "kub{ec,}tl",
    "{{kubectl,y},x}",
    "kube\\\nctl",
    "$\"kubectl\"",
    "{fd}>/dev/null kubectl",
    ">/dev/null kubectl",
    "x=1 kubectl",
    "a=(1) kubectl",
    "command kubectl",
    "eval kubectl",
    "eval 'kubectl get'",
    "builtin eval kubectl",
];

const PIECES: &[&str] = &[
    "; ",
    "; ",
    "\n",
    "\n",
    "\n",
    " ",
    " ",
    " ",
    " && ",
    " || ",
    " | ",
    " & ",
    "\n;",
    ": ",
    "x ",
    "echo ",
    "x=1 ",
    "x=",
    "a=(",
    "a=( x ",
    ")",
    ")",
    ")#",
    " #",
    "#",
    "#'",
    "# '\n",
    "#\"\n",
    "'",
    "'",
    "\"",
    "\"",
    "`",
    "`",
    "$(",
    "$(",
    "\"$(",
    ")\"",
    "\"`",
    "`\"",
    "\\`",
    "\\\"",
    "\\'",
    "\\\\",
    "\\\n",
    " \\\n# ",
    "cat <<E\n",
    "cat <<'E'\n",
    "cat <<-E\n\t",
    "cat <<$HOME\n",
    "cat <<\"$HOME\"\n",
    "\nE\n",
    "\nE\n",
    "\nE\n",
    "\n$HOME\n",
    "\n~\n",
    "x\\\nE\n",
    "<<E ",
    "<<<x ",
    "${x:-",
    "${x:-'",
    "'}",
    "}",
    "}",
    "\"${x:-",
    "}\"",
    "\"${x#'",
    "'}\"",
    "$'",
    "$'\\''",
    "$\"",
    "$((",
    "))",
    "((1))",
    "((",
    "$[",
    "]",
    "{fd}>/dev/null ",
    ">/dev/null ",
    "2>&1 ",
    "<(",
    ">(",
    "case ",
    "case x in ",
    "case x in x) ",
    "x) ",
    ";; ",
    "esac",
    "; esac",
    "[[ ",
    " ]]",
    "]]",
    "[[ a]] ",
    "=~ ",
    "if ",
    "then ",
    "fi",
    "; fi",
    "for i in 1; do ",
    "done",
    "; done",
    "{ ",
    "; }",
    "} ",
    "( ",
    "f() { ",
    "f",
    "f ",
    "function case { ",
    "function f ",
    "time ",
    "! ",
    "coproc ",
    "a[",
    "a[1<<2]=3",
    "]=1 ",
    "declare a=(",
    "export x=(",
    "{a,b}",
    ",",
    "{",
    "..",
    "!",
    "@",
    "=",
    "(",
    "(",
    "~",
    "*",
    "?",
];

/// Whole shapes around a command, `%` its place.
const SHAPES: &[&str] = &[
    "a=(1)#; %",
    "a=(\n#'\n)\n%\n#'",
    "a=(x #)'\n); % #'",
    "cat <<$HOME\nx\n$HOME\n%\n~",
    "cat <<${HOME}\nx\n${HOME}\n%\n~",
    "echo \"$(x=1 case)\" ; % ; echo \"; esac)\"",
    "echo \"$(function case { :; })\" ; % ; echo \"; esac)\"",
    "echo \"$(case x in a) :;; case) :;; esac)\" ; % ; echo \"; esac)\"",
    "echo \"`echo \\\" #\\\" ; %`\"",
    "cat <<E\n${x:-'}\n$(%)\n'}\nE",
    "cat <<E\nx\\\nE\n'\nE\n%\n#'",
    "echo ${x:-<(%)}",
    "echo \"${x:-'$(%)'}\"",
    "x=1 [[ ; % ; ]]",
    "[[ a]]# == b ]]; %",
    "cat <(:)# ; %",
    " \\\n# '\n%\n#'",
    "a[1<<2]=3\n%\n2]=3",
    "a[x;y]=1; %",
    "case x in a) :;; [[) :;; esac; %; echo ]]",
    "echo $((echo a) # '\n) ; x '); % #'",
    "$\\\n'a\\'' ; % #'",
    "f() { %; }; f",
    "f() ( % ); f",
    "if :; then %; fi",
    "case x in x) %;; esac",
    "case x in y) :;; (x) %;; esac",
    "coproc %; wait",
    "for ((i=0;i<1;i++)); do %; done",
    "[[ -n x ]] && %",
    "(%)",
    "{ %; }",
    "declare a=(1)#; %",
    "x=$(%)",
    "a=($(%))",
    "a[$(%)]=1",
    "echo $[ $(%) ]",
    "echo \"${a[$(%)]}\"",
    "time -p %",
    "! %",
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

    fn of(&mut self, list: &[&'static str]) -> &'static str {
        list[self.below(list.len())]
    }

    fn noise(&mut self, most: usize) -> String {
        let count = self.below(most + 1);
        (0..count).map(|_| self.of(PIECES)).collect()
    }

    /// Mostly nothing: with much of it, few texts are ones that bash accepts.
    fn some_noise(&mut self) -> String {
        match self.below(4) {
            0 => self.noise(3),
            1 => self.noise(1),
            _ => String::new(),
        }
    }

    fn text(&mut self) -> String {
        let name = self.of(NAMES);
        let around = [self.some_noise(), self.some_noise()];
        let shape = match self.below(3) {
            0 => "%".to_owned(),
            1 => self.of(SHAPES).to_owned(),
            _ => {
                // A shape with a piece somewhere in it.
                let shape = self.of(SHAPES);
                let places: Vec<_> = shape.char_indices().map(|(at, _)| at).collect();
                let at = places[self.below(places.len())];
                format!("{}{}{}", &shape[..at], self.of(PIECES), &shape[at..])
            }
        };
        let text = format!("{}{shape}{}", around[0], around[1]);
        let other = self.of(SHAPES);
        match self.below(6) {
            0 => other.replace('%', &text).replace('%', name),
            _ => text.replace('%', name),
        }
    }
}

/// Which of the texts tried to run the command.
fn ran(texts: &[String]) -> Vec<bool> {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report");
    let work = directory.path().join("work");
    std::fs::create_dir(&work).expect("a directory");
    let mut child = Command::new("timeout")
        .args(["-k", "1", "300", "bash", "--norc", "--noprofile", "-c"])
        .arg(format!("exec 19>>'{}'; {DRIVER}", report.display()))
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
    assert!(
        child.wait().expect("bash ends").success(),
        "bash went through all texts"
    );
    let report = std::fs::read_to_string(report).expect("the report");
    let mut out = vec![false; texts.len()];
    for line in report.lines() {
        out[line.parse::<usize>().expect("a number")] = true;
    }
    out
}

const POLICY: &str = r#"
schema = 1
name = "sieve"
default = "allow"
[limits]
max_bytes = 65536
[shell]
dynamic = "ask"
redirect = { dev_null = "allow", fd_dup = "allow", read = "allow", write_inside = "allow", write_outside = "allow" }
[[rule]]
id = "k"
decision = "deny"
tool = "shell"
argv = ["kubectl"]
"#;

#[test]
fn what_bash_tries_to_run_is_never_allowed_where_it_is_denied() {
    let number = |name: &str, usual: u64| {
        std::env::var(name)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let is_long = std::env::var("MARSHAL_TEST_LONG").is_ok_and(|long| long == "1");
    let usual = if is_long { 30_000 } else { 3_000 };
    let goal = usize::try_from(number("MARSHAL_FUZZ", usual)).expect("a number");
    let seed = number("MARSHAL_FUZZ_SEED", 0x6b75_6265_6374_6c21);
    println!("seed {seed}");
    let mut random = Random(seed | 1);
    let policy =
        Policy::load(POLICY, "sieve", &|name| Err(format!("no {name}"))).expect("a policy");
    let place = FsContext {
        workspace: "/w",
        home: "/HOME",
        cwd: Some("/w"),
        resolver: &NoLinks,
    };
    let decide = |text: &str| {
        let command = text.to_owned();
        let request = Request::Shell { command, cwd: None };
        policy
            .decide(&request, &AgentClaims::default(), &place)
            .decision
    };
    let texts: Vec<_> = (0..goal).map(|_| random.text()).collect();
    let (mut tried, mut denied, mut missed) = (0, 0, Vec::new());
    for chunk in texts.chunks(500) {
        for (text, ran) in chunk.iter().zip(ran(chunk)) {
            if !ran {
                continue;
            }
            tried += 1;
            match decide(text) {
                Decision::Allow => missed.push(format!("{text:?}")),
                Decision::Deny => denied += 1,
                Decision::Ask => {}
            }
        }
    }
    println!(
        "{goal} texts, {tried} ran the command, {denied} denied, {} allowed",
        missed.len()
    );
    assert!(tried * 5 > goal, "only {tried} texts ran the command");
    missed.sort_by_key(String::len);
    missed.truncate(20);
    assert!(missed.is_empty(), "allowed:\n{}", missed.join("\n"));
    assert!(
        denied * 10 > tried * 6,
        "only {denied} of {tried} were denied"
    );
}
