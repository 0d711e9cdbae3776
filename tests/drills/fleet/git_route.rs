//! A real git in the default sandbox fetches and pushes through a route to `git http-backend`: what
//! the route allows arrives, everything else is refused in git's own words, and the key is nowhere.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::drill::{Drill, Ran};
use crate::git_server::GitServer;

/// The key that must be nowhere but at the server.
const KEY: &str = "forge-drill-0123456789abcdef-the-real-one";

/// A secret that the agent has, and must not push.
const TOKEN: &str = "token-of-the-agent-51Hq7";

/// An agent that runs each prompt in a shell and tells what it printed, or looks for a text whose
/// halves it is given.
const AGENT: &str = r#"
import json, os, subprocess, sys
def say(**m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
def look(needle):
    found = []
    places = ["/proc/%s/%s" % (p, f) for p in os.listdir("/proc") if p.isdigit() for f in ("environ", "cmdline", "mounts")]
    for top in (os.environ["HOME"], "/workspace", "/tmp", "/etc", "/run", "/dev/shm"):
        for d, _, names in os.walk(top):
            places += [os.path.join(d, n) for n in names]
    for place in places:
        try:
            if needle.encode() in open(place, "rb").read(1 << 26): found.append(place)
        except OSError: pass
    return found
say(type="ready", protocol=1, version="1", session_id="s", model="m", mode="x", tools=[], context_window=1, max_tokens=1, gadgets=[])
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "prompt":
        say(type="turn_started", turn_id="t")
        words = m["text"].split()
        if words[0] == "look":
            text = "found %s" % look(words[1] + words[2])
        else:
            ran = subprocess.run(["sh", "-c", m["text"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=os.environ["HOME"])
            text = ran.stdout.decode(errors="replace")
        say(type="text_delta", turn_id="t", delta=text + "\n")
        say(type="turn_complete", turn_id="t", stop_reason="end_turn", iterations=1, input_tokens=0, output_tokens=0, mutations=[])
    elif m["type"] == "shutdown": sys.exit(0)
"#;

/// What every script begins with: a clone, and a way to push with a label.
const BEGIN: &str = r#"
git config --global user.name a; git config --global user.email a@a; git config --global advice.detachedHead false
git clone -q "$SERVER/owner/repo.git" "$HOME/r" 2>&1 || exit 1
cd "$HOME/r"
commit() { git add -A && git commit -q -m "$1"; }
try() { echo "== $1"; shift; "$@" 2>&1; echo "-- $?"; }
echo one > one; commit one
"#;

fn git(dir: &Path, words: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(dir)
        .args([
            "-c",
            "user.name=o",
            "-c",
            "user.email=o@o",
            "-c",
            "safe.directory=*",
        ])
        .args(words)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git");
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

struct Forge {
    dir: tempfile::TempDir,
    server: GitServer,
    drill: Drill,
}

impl Forge {
    /// A repository with so many branches that git compresses the requests of a clone.
    fn new(keys: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let work = dir.path().join("work");
        std::fs::create_dir(&work).expect("created");
        git(&work, &["init", "-q", "-b", "main", "."]);
        for at in 0..60 {
            git(
                &work,
                &["commit", "-q", "--allow-empty", "-m", &format!("{at}")],
            );
            git(&work, &["branch", &format!("old/{at}")]);
        }
        let bare = dir.path().join("owner/repo.git");
        git(
            dir.path(),
            &["clone", "-q", "--bare", "work", &bare.display().to_string()],
        );
        // {"x-access-token:" + KEY} in base64.
        let authorization =
            "Basic eC1hY2Nlc3MtdG9rZW46Zm9yZ2UtZHJpbGwtMDEyMzQ1Njc4OWFiY2RlZi10aGUtcmVhbC1vbmU=";
        let server = GitServer::start(dir.path(), authorization);
        let drill = Drill::new(&format!(
            r#"
[pool.demo]
command   = ["python3", "agent.py"]
dialect   = "scaiflux"
network   = "routes"
routes    = ["forge"]
workspace = {{ path = "project", mode = "copy" }}
[pool.demo.env.set]
DRILL = "MARK"
TOKEN = "file:token"
ROUTE = "{{route.forge}}"
SERVER = "http://{0}"
[route.forge]
kind         = "git"
upstream     = "http://{0}"
repositories = ["owner/repo", "moved/repo"]
user         = "x-access-token"
secret       = "file:key"
{keys}
"#,
            server.address
        ));
        std::fs::write(drill.workspace().join("agent.py"), AGENT).expect("agent.py");
        for (name, text) in [("key", KEY), ("token", TOKEN)] {
            let file = drill.path(name);
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))
                .expect("private");
        }
        Self { dir, server, drill }
    }

    fn run(&self, scripts: &[&str]) -> Ran {
        let scripts: Vec<String> = scripts
            .iter()
            .map(|script| {
                if script.starts_with("look ") {
                    return (*script).to_owned();
                }
                format!("{BEGIN}{script}")
            })
            .collect();
        let mut words = vec!["-v", "--json", "run"];
        words.extend(scripts.iter().map(String::as_str));
        let ran = self.drill.run(&words);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        ran
    }

    /// The server's refs, apart from those that it began with.
    fn refs(&self) -> Vec<(String, String)> {
        let bare = self.dir.path().join("owner/repo.git");
        let listed = git(
            &bare,
            &["for-each-ref", "--format=%(refname) %(objectname)"],
        );
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        pairs
            .filter(|(name, _)| !name.starts_with("refs/heads/old/"))
            .map(|(name, id)| (name.to_owned(), id.to_owned()))
            .collect()
    }

    /// Pushes that the server received.
    fn pushes(&self) -> usize {
        let got = self.server.got();
        got.iter()
            .filter(|got| got.line.starts_with("POST") && got.line.contains("receive-pack"))
            .count()
    }
}

/// What a labelled command of a script printed, and its status.
fn of<'r>(ran: &'r Ran, label: &str) -> (String, &'r str) {
    let text = &ran.stdout;
    let begin = format!("== {label}\\n");
    let (_, after) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no {label}: {}", ran.all()));
    let (printed, rest) = after
        .split_once("-- ")
        .unwrap_or_else(|| panic!("no end of {label}: {}", ran.all()));
    let printed = printed.replace("\\n", "\n").replace("\\\"", "\"");
    (printed, rest.split("\\n").next().unwrap_or(""))
}

fn refused(ran: &Ran, label: &str, reason: &str) {
    let (printed, status) = of(ran, label);
    assert_ne!(status, "0", "{label}: {printed}");
    assert!(printed.contains(reason), "{label}: {printed}");
    assert!(printed.contains("marshal: "), "{label}: {printed}");
    assert!(!printed.contains(KEY), "{label}: {printed}");
}

#[test]
fn what_the_route_allows_is_fetched_and_pushed_and_the_key_is_nowhere() {
    let forge = Forge::new("");
    let (first, second) = KEY.split_at(12);
    let look = format!("look {first} {second}");
    let ran = forge.run(&[
        r#"
try fetched git log --oneline -1 origin/main
try created git push origin HEAD:refs/heads/marshal/x
echo two > two; commit two
try forwarded git push origin HEAD:refs/heads/marshal/x
head -c 5242880 /dev/urandom > large; commit large
try large git push origin HEAD:refs/heads/marshal/x
try known git push origin origin/main:refs/heads/marshal/known
git clone -q --depth 1 "$SERVER/owner/repo" "$HOME/s" && cd "$HOME/s"
echo three > three; commit three
try shallow git push origin HEAD:refs/heads/marshal/deep/er
echo "tip $(git rev-parse HEAD)"
"#,
        &look,
    ]);
    for label in [
        "fetched",
        "created",
        "forwarded",
        "large",
        "known",
        "shallow",
    ] {
        let (printed, status) = of(&ran, label);
        assert_eq!(status, "0", "{label}: {printed}");
    }
    let refs = forge.refs();
    let names: Vec<&str> = refs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "refs/heads/main",
            "refs/heads/marshal/deep/er",
            "refs/heads/marshal/known",
            "refs/heads/marshal/x",
        ]
    );
    assert!(
        ran.stdout.contains(&format!("tip {}", refs[1].1)),
        "{}",
        ran.all()
    );
    assert_eq!(forge.pushes(), 5);
    let got = forge.server.got();
    assert!(got.iter().all(|got| got.has_key), "{got:?}");
    assert!(
        got.iter().any(|got| got.is_gzip),
        "a large fetch is compressed"
    );
    assert!(ran.stdout.contains("found []"), "{}", ran.all());
    assert!(!ran.stdout.contains(KEY) && !ran.stderr.contains(KEY));
    let grep = Command::new("grep")
        .args(["-rlaF", KEY])
        .arg(forge.drill.state())
        .output()
        .expect("grep");
    assert_eq!(String::from_utf8_lossy(&grep.stdout), "");
    // Nothing of the packs is left.
    let copies = std::fs::read_dir(forge.drill.state().join("copies")).expect("copies");
    let names: Vec<String> = copies
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert!(
        names.iter().all(|name| !name.contains("push-")),
        "{names:?}"
    );
}

#[test]
fn other_pushes_are_refused_with_gits_own_message_and_never_arrive() {
    let forge = Forge::new("push_max = \"8M\"");
    // Only the halves are in the prompt.
    let (first, second) = KEY.split_at(12);
    let key = format!(
        "printf 'a%s%s' {first} {second} > k; commit k\ntry key git push origin HEAD:refs/heads/marshal/k\n"
    );
    let ran = forge.run(&[
        &key,
        r"
try base git push origin HEAD:refs/heads/marshal/x
git commit -q --amend -m other
try force git push --force origin HEAD:refs/heads/marshal/x
try delete git push origin --delete marshal/x
try main git push origin HEAD:main
try several git push origin HEAD:refs/heads/marshal/a HEAD:refs/heads/marshal/b
git tag v1; git tag -a -m two v2
try tag git push origin v1
try annotated git push origin v2
try notes git push origin HEAD:refs/notes/x
try option git -c push.default=current push -o a=b origin HEAD:refs/heads/marshal/o
try moved git ls-remote $SERVER/moved/repo
try elsewhere git ls-remote $ROUTE/other/repo
",
        r#"
head -c 9437184 /dev/urandom > large; commit large
try oversized git push origin HEAD:refs/heads/marshal/l
git reset -q --hard HEAD~1
echo "a $TOKEN z" > leak; commit leak; git rm -q leak; commit gone
try secret git push origin HEAD:refs/heads/marshal/s
git reset -q --hard HEAD~2; printf '%050d%s' 0 "$TOKEN" | base64 > leak; commit leak
try encoded git push origin HEAD:refs/heads/marshal/e
git reset -q --hard HEAD~1; echo x > x; commit "the token is $TOKEN"
try message git push origin HEAD:refs/heads/marshal/m
git reset -q --hard HEAD~1; echo x > "$TOKEN"; commit name
try name git push origin HEAD:refs/heads/marshal/n
git reset -q --hard HEAD~1; mkdir -p d; echo A=1 > d/.env; commit env
try env git push origin HEAD:refs/heads/marshal/v
git reset -q --hard HEAD~1
try refname git push origin "HEAD:refs/heads/marshal/$TOKEN"
"#,
        r#"
git rev-list --objects HEAD ^origin/main | git pack-objects -q --stdout > "$HOME/pack"
ID=$(git rev-parse HEAD) python3 - <<'PY'
import gzip, os, http.client
host = os.environ["ROUTE"].removeprefix("http://")
def post(path, body, **headers):
    c = http.client.HTTPConnection(host, timeout=60)
    c.request("POST", path, body, headers)
    r = c.getresponse()
    return r.status, r.read()
kind = {"Content-Type": "application/x-git-receive-pack-request"}
print("gzip", post("/owner/repo.git/git-receive-pack", gzip.compress(b"0000"), **kind, **{"Content-Encoding": "gzip"}))
print("junk", post("/owner/repo.git/git-receive-pack", b"hello world", **kind))
print("type", post("/owner/repo.git/git-receive-pack", b"0000"))
pack = open(os.environ["HOME"] + "/pack", "rb").read()
def push(pack):
    line = b"0" * 40 + b" " + os.environ["ID"].encode() + b" refs/heads/marshal/raw\0report-status\n"
    return post("/owner/repo.git/git-receive-pack", b"%04x" % (len(line) + 4) + line + b"0000" + pack, **kind)
print("tail", push(pack + b"more"))
print("broken", push(pack[:-1] + bytes([pack[-1] ^ 1])))
print("cut", push(pack[:-30]))
print("none", push(b""))
print("whole", push(pack))
for path in ("/owner/repo.git/HEAD", "/owner/repo.git/info/refs", "/owner/repo.git/info/refs?service=git-upload-archive", "/owner/repo.git/info/lfs/objects/batch", "/owner/repo.git/../repo.git/info/refs"):
    c = http.client.HTTPConnection(host, timeout=60)
    c.request("GET", path)
    r = c.getresponse()
    print("get", path, r.status, r.read()[:60])
PY
"#,
    ]);
    assert_eq!(of(&ran, "base").1, "0", "{}", ran.all());
    refused(&ran, "force", "not a fast-forward that can be checked");
    refused(
        &ran,
        "delete",
        "[remote rejected] marshal/x (marshal: the route forge deletes no ref",
    );
    refused(
        &ran,
        "main",
        "[remote rejected] HEAD -> main (marshal: the route forge allows pushes only to refs/heads/marshal/*",
    );
    refused(&ran, "several", "takes one ref a push, this one has 2");
    refused(&ran, "tag", "[remote rejected] v1 -> v1 (marshal: ");
    refused(&ran, "annotated", "[remote rejected] v2 -> v2 (marshal: ");
    refused(&ran, "notes", "allows pushes only to");
    let (printed, status) = of(&ran, "option");
    assert!(
        status != "0" && printed.contains("does not support push options"),
        "{printed}"
    );
    refused(
        &ran,
        "moved",
        "remote error: marshal: the upstream of the route forge answered with a redirect (302)",
    );
    let (printed, status) = of(&ran, "elsewhere");
    assert!(
        status != "0" && printed.contains("is not allowed by the route forge"),
        "{printed}"
    );
    refused(&ran, "oversized", "the pack is larger than 8388608 bytes");
    for label in ["secret", "encoded", "message", "name"] {
        refused(&ran, label, "contains the secret TOKEN");
    }
    refused(
        &ran,
        "env",
        "it has the file d/.env, which workspace.mask hides",
    );
    refused(&ran, "refname", "the ref's name contains the secret TOKEN");
    for line in [
        "marshal: the pack cannot be read: something follows the pack",
        "marshal: git refused the pack: fatal: pack is corrupted",
        "marshal: git refused the pack: fatal: early EOF",
        "marshal: the push has no pack",
        "ok refs/heads/marshal/raw",
        "gzip (200, b'",
        "\\\\x03marshal: the body is compressed",
        "junk (200, b'",
        "\\\\x03marshal: the push is not in git's protocol",
        "\\\\x03marshal: the content type is not that of a request",
        "get /owner/repo.git/HEAD 403 b'marshal: ",
        "get /owner/repo.git/info/refs 403 b'marshal: ",
        "get /owner/repo.git/info/refs?service=git-upload-archive 403 b'marshal: ",
        "get /owner/repo.git/info/lfs/objects/batch 403 b'marshal: ",
        "get /owner/repo.git/../repo.git/info/refs 403 b'marshal: ",
    ] {
        assert!(
            ran.stdout.contains(line) || ran.stdout.contains(&line.replace('\'', "\\\"")),
            "{line}: {}",
            ran.all()
        );
    }
    let names: Vec<String> = forge.refs().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "refs/heads/main",
            "refs/heads/marshal/raw",
            "refs/heads/marshal/x",
        ]
    );
    // Refusals are the proxy's own: the server got the pushes that passed.
    assert_eq!(forge.pushes(), 2);
}

#[test]
fn a_route_without_refs_is_only_read() {
    let forge = Forge::new("push = []");
    let ran = forge.run(&["try push git push origin HEAD:refs/heads/marshal/x\n"]);
    refused(
        &ran,
        "push",
        "remote error: marshal: the route forge takes no pushes",
    );
    assert_eq!(forge.pushes(), 0);
}
