//! `land --pr` against `git http-backend` and a small server for the API of each forge, which refuses
//! whatever is not the form of its documentation.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::worktrees::{branch_of, git, text};
use crate::drill::{Drill, Ran};
use crate::git_server::GitServer;

/// The keys that must be nowhere but at their servers.
const KEY: &str = "forge-drill-0123456789abcdef-the-real-one";
const API_TOKEN: &str = "api-drill-fedcba9876543210-the-other-one";
/// A secret of a variable, which must not be pushed.
const SECRET: &str = "secret-of-the-pool-51Hq7-do-not-push";

/// The API of one kind of server, with one repository.
#[derive(Clone)]
struct FakeForge {
    address: SocketAddr,
    kind: &'static str,
    /// Its pull requests: head and base.
    open: Arc<Mutex<Vec<(String, String)>>>,
    /// What was wrong with requests.
    faults: Arc<Mutex<Vec<String>>>,
    /// An answer instead of the usual one.
    instead: Arc<Mutex<Option<(u16, String)>>>,
}

/// A request, read as far as an API reads it.
struct ApiRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Value,
}

impl ApiRequest {
    fn header(&self, name: &str) -> Vec<&str> {
        let same = self.headers.iter().filter(|(header, _)| header == name);
        same.map(|(_, value)| value.as_str()).collect()
    }
}

impl FakeForge {
    fn start(kind: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let forge = Self {
            address: listener.local_addr().expect("an address"),
            kind,
            open: Arc::default(),
            faults: Arc::default(),
            instead: Arc::default(),
        };
        let own = forge.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                own.talk(stream);
            }
        });
        forge
    }

    fn open(&self) -> Vec<(String, String)> {
        self.open.lock().expect("no panic").clone()
    }

    fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("no panic").clone()
    }

    fn answer_instead(&self, answer: Option<(u16, &str)>) {
        *self.instead.lock().expect("no panic") =
            answer.map(|(code, text)| (code, text.to_owned()));
    }

    fn talk(&self, mut stream: TcpStream) -> Option<()> {
        let asked = read_request(&mut stream)?;
        let instead = self.instead.lock().expect("no panic").clone();
        let (status, body) = match (instead, self.check(&asked)) {
            (Some(answer), _) | (None, Ok(answer)) => answer,
            (None, Err(fault)) => {
                self.faults.lock().expect("no panic").push(fault);
                (400, json!({"message": "not the form"}).to_string())
            }
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).ok()
    }

    fn check(&self, asked: &ApiRequest) -> Result<(u16, String), String> {
        let expect = |what: &str, found: &[&str], wanted: &str| {
            (found == [wanted])
                .then_some(())
                .ok_or_else(|| format!("{what}: {found:?}, not {wanted:?}"))
        };
        let (header, value) = match self.kind {
            "github" => ("authorization", format!("Bearer {API_TOKEN}")),
            "gitlab" => ("private-token", API_TOKEN.to_owned()),
            _ => ("authorization", format!("token {API_TOKEN}")),
        };
        expect(header, &asked.header(header), &value)?;
        let accept = if self.kind == "github" {
            expect(
                "version",
                &asked.header("x-github-api-version"),
                "2022-11-28",
            )?;
            "application/vnd.github+json"
        } else {
            "application/json"
        };
        expect("accept", &asked.header("accept"), accept)?;
        if asked.header("user-agent").is_empty() {
            return Err("no user-agent, which GitHub refuses".to_owned());
        }
        let (collection, head, base, note) = match self.kind {
            "github" => ("/api/v3/repos/owner/repo/pulls", "head", "base", "body"),
            "gitlab" => (
                "/api/v4/projects/owner%2Frepo/merge_requests",
                "source_branch",
                "target_branch",
                "description",
            ),
            _ => ("/api/v1/repos/owner/repo/pulls", "head", "base", "body"),
        };
        match &*asked.method {
            "POST" => {
                expect("target", &[&asked.target], collection)?;
                expect(
                    "content-type",
                    &asked.header("content-type"),
                    "application/json",
                )?;
                let body = asked.body.as_object().ok_or("the body is no object")?;
                let mut keys: Vec<&str> = body.keys().map(String::as_str).collect();
                keys.sort_unstable();
                let mut wanted = [head, base, note, "title"];
                wanted.sort_unstable();
                if keys != wanted || !body.values().all(Value::is_string) {
                    return Err(format!("the body: {body:?}"));
                }
                Ok(self.create(text(&asked.body, head), text(&asked.body, base)))
            }
            "GET" => {
                let query = match self.kind {
                    "github" => "state=open&head=owner%3Amarshal%2F",
                    "gitlab" => "state=opened&source_branch=marshal%2F",
                    _ => "state=open&sort=recentupdate&limit=50",
                };
                let begin = format!("{collection}?{query}");
                if !asked.target.starts_with(&begin) {
                    return Err(format!("target: {}, not {begin}", asked.target));
                }
                let open = self.open();
                let all = open
                    .iter()
                    .enumerate()
                    .map(|(at, of)| self.describe(at, of));
                Ok((200, all.collect::<Value>().to_string()))
            }
            other => Err(format!("method: {other}")),
        }
    }

    fn create(&self, head: &str, base: &str) -> (u16, String) {
        let mut open = self.open.lock().expect("no panic");
        let new = (head.to_owned(), base.to_owned());
        if open.contains(&new) {
            return match self.kind {
                "github" => (
                    422,
                    json!({"message": "Validation Failed", "errors": [{"message": "A pull request already exists"}]}).to_string(),
                ),
                "gitlab" => (409, json!({"message": ["Another open merge request already exists"]}).to_string()),
                _ => (409, json!({"message": "pull request already exists"}).to_string()),
            };
        }
        open.push(new.clone());
        (201, self.describe(open.len() - 1, &new).to_string())
    }

    fn describe(&self, at: usize, (head, base): &(String, String)) -> Value {
        let number = at + 1;
        let address = format!("https://forge.example.com/owner/repo/{number}");
        match self.kind {
            "gitlab" => json!({
                "iid": number, "web_url": address, "source_branch": head, "target_branch": base,
            }),
            _ => json!({
                "number": number, "html_url": address, "head": {"ref": head}, "base": {"ref": base},
            }),
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<ApiRequest> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().expect("a length"));
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
        body.extend_from_slice(&chunk[..read]);
    }
    Some(ApiRequest {
        method: first.next()?.to_owned(),
        target: first.next()?.to_owned(),
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

struct Setting {
    dir: tempfile::TempDir,
    server: GitServer,
    forge: FakeForge,
    drill: Drill,
}

impl Setting {
    fn new(kind: &'static str, keys: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        // {"x-access-token:" + KEY} in base64.
        let authorization =
            "Basic eC1hY2Nlc3MtdG9rZW46Zm9yZ2UtZHJpbGwtMDEyMzQ1Njc4OWFiY2RlZi10aGUtcmVhbC1vbmU=";
        let server = GitServer::start(dir.path(), authorization);
        let forge = FakeForge::start(kind);
        let below = match kind {
            "github" => "/api/v3",
            "gitlab" => "/api/v4",
            _ => "/api/v1",
        };
        let drill = Drill::new(&format!(
            r#"
[pool.demo]
dialect   = "acp"
command   = ["marshal", "script-agent", "--dialect", "acp"]
policy    = "open"
workspace = {{ path = "project", mode = "worktree" }}
[pool.demo.env.set]
SECRET = "file:secret"
[policy.open]
file = "open.toml"
[route.forge]
kind         = "git"
upstream     = "http://{}"
repositories = ["owner/repo"]
user         = "x-access-token"
secret       = "file:key"
pull_request = "{kind}"
api          = "http://{}{below}"
api_secret   = "file:api-token"
{keys}
"#,
            server.address, forge.address
        ));
        let policy =
            "schema = 1\nname = \"open\"\nextends = [\"builtin:guard\"]\ndefault = \"allow\"\n";
        fs::write(drill.path("open.toml"), policy).expect("a policy");
        for (name, text) in [("key", KEY), ("api-token", API_TOKEN), ("secret", SECRET)] {
            let file = drill.path(name);
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("private");
        }
        let source = drill.workspace();
        super::worktrees::commit(&drill, &["-b", "main"]);
        fs::create_dir(dir.path().join("owner")).expect("created");
        let bare = dir.path().join("owner/repo.git");
        let (source, path) = (source.display().to_string(), bare.display().to_string());
        git(dir.path(), &["clone", "-q", "--bare", &source, &path]);
        Self {
            dir,
            server,
            forge,
            drill,
        }
    }

    fn bare(&self) -> std::path::PathBuf {
        self.dir.path().join("owner/repo.git")
    }

    fn run_task(&self, id: &str, prompt: &str) -> Value {
        let task = json!({"id": id, "prompt": prompt}).to_string();
        fs::write(self.drill.path("tasks.jsonl"), task).expect("tasks");
        let ran = self
            .drill
            .run(&["run", "--results", "r.jsonl", "tasks.jsonl"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        self.drill.results("r.jsonl").remove(0)
    }

    /// Lands with a pull request, and looks at whether a key is shown.
    fn land(&self, code: i32, args: &[&str]) -> Ran {
        let ran = self.drill.run(&[&["-v", "land", "--pr"], args].concat());
        assert_eq!(ran.code, Some(code), "{}", ran.all());
        for key in [KEY, API_TOKEN] {
            assert!(!ran.all().contains(key), "a key is shown: {}", ran.all());
        }
        ran
    }
}

fn contains(dir: &Path, text: &[u8]) -> bool {
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(bytes) = fs::read(&path)
                && bytes.windows(text.len()).any(|window| window == text)
            {
                return true;
            }
        }
    }
    false
}

/// A branch is pushed and its pull request opened once; a later one is named.
fn opens_one_pull_request(kind: &'static str) {
    let setting = Setting::new(kind, "");
    let result = setting.run_task("fix", "write made.txt hello");
    let branch = branch_of(&result).to_owned();
    let opened = setting.land(0, &["fix"]);
    let told = "is pushed; pull request 1 opened: https://forge.example.com/owner/repo/1";
    assert!(
        opened.stdout.contains(told),
        "{}\n{:?}",
        opened.all(),
        setting.forge.faults()
    );
    assert_eq!(
        git(&setting.bare(), &["show", &format!("{branch}:made.txt")]),
        "hello"
    );
    assert_eq!(setting.forge.open(), [(branch.clone(), "main".to_owned())]);
    // The source has no branch of it: only the server has.
    let local = git(
        &setting.drill.workspace(),
        &["for-each-ref", "refs/heads/marshal"],
    );
    assert_eq!(local, "");
    let pushes = |server: &GitServer| {
        let got = server.got();
        got.iter()
            .filter(|got| got.line.starts_with("POST"))
            .count()
    };
    let before = pushes(&setting.server);
    let again = setting.land(0, &[&branch]);
    assert!(
        again.stdout.contains("pull request 1 was there: https"),
        "{}",
        again.all()
    );
    assert_eq!(pushes(&setting.server), before, "there was nothing to push");
    assert_eq!(setting.forge.open().len(), 1);
    // Another base is another pull request.
    let other = setting.land(0, &["--base", "next", "fix"]);
    assert!(
        other.stdout.contains("pull request 2 opened"),
        "{}",
        other.all()
    );
    assert_eq!(setting.forge.faults(), Vec::<String>::new());
    assert!(setting.server.got().iter().all(|got| got.has_key));
    for key in [KEY, API_TOKEN] {
        assert!(
            !contains(&setting.drill.state(), key.as_bytes()),
            "a key is in the state"
        );
    }
    // What the server says is shown, without what acts on a terminal.
    setting
        .forge
        .answer_instead(Some((403, "{\"message\":\"no \\u001b[2Jrights\"}")));
    let refused = setting.land(1, &["fix"]);
    let told = "is pushed, but has no pull request: the server refused it (403)";
    assert!(refused.stdout.contains(told), "{}", refused.all());
    assert!(
        !refused.all().contains('\u{1b}') && refused.all().contains("rights"),
        "{}",
        refused.all()
    );
    let echo = format!("{{\"message\":\"{API_TOKEN}\"}}");
    setting.forge.answer_instead(Some((400, &echo)));
    let refused = setting.land(1, &["fix"]);
    assert!(
        refused.stdout.contains("contains the token"),
        "{}",
        refused.all()
    );
    setting.forge.answer_instead(Some((302, "")));
    let refused = setting.land(1, &["fix"]);
    assert!(
        refused.stdout.contains("no redirect is followed"),
        "{}",
        refused.all()
    );
}

#[test]
fn github_gets_one_pull_request() {
    opens_one_pull_request("github");
}

#[test]
fn gitlab_gets_one_merge_request() {
    opens_one_pull_request("gitlab");
}

#[test]
fn gitea_gets_one_pull_request() {
    opens_one_pull_request("gitea");
}

/// What an agent could not push by the route, `land --pr` does not push either.
#[test]
fn the_rules_of_the_route_hold_for_a_person_too() {
    let setting = Setting::new("gitea", "push_max = \"64K\"");
    let refs = || git(&setting.bare(), &["for-each-ref"]);
    let before = refs();
    let refused = |id: &str, args: &[&str], why: &str| {
        let ran = setting.land(1, &[args, &[id]].concat());
        assert!(ran.stdout.contains(why), "{why}: {}", ran.all());
        assert_eq!(refs(), before, "{why}");
        assert_eq!(setting.forge.open(), [], "{why}");
    };
    setting.run_task(
        "secret",
        &format!(
            "unasked printf %s%s {} {} > s.txt",
            &SECRET[..9],
            &SECRET[9..]
        ),
    );
    refused("secret", &[], "contains the secret");
    setting.run_task("large", "unasked head -c 300000 /dev/urandom > large.bin");
    refused("large", &[], "push_max");
    setting.run_task(
        "ci",
        "unasked mkdir -p .github/workflows && echo x > .github/workflows/x.yml",
    );
    refused("ci", &[], ".github/workflows/x.yml");
    setting.run_task("plain", "write a.txt x");
    refused(
        "plain",
        &["--into", "other"],
        "only to refs/heads/marshal/*",
    );
    let other = setting
        .drill
        .run(&["land", "--pr", "--repository", "owner/other", "plain"]);
    assert!(
        other.stdout.contains("has no repository owner/other"),
        "{}",
        other.all()
    );
    let other = setting
        .drill
        .run(&["land", "--pr", "--route", "nobody", "plain"]);
    assert!(
        other.stdout.contains("there is no route nobody"),
        "{}",
        other.all()
    );

    // A branch of the server that is not an ancestor is not overwritten.
    let taken = git(
        &setting.bare(),
        &["commit-tree", "-m", "theirs", "main^{tree}"],
    );
    git(
        &setting.bare(),
        &["update-ref", "refs/heads/marshal/taken", &taken],
    );
    let ran = setting.land(1, &["--into", "marshal/taken", "plain"]);
    assert!(ran.stdout.contains("not a fast-forward"), "{}", ran.all());
    assert_eq!(git(&setting.bare(), &["rev-parse", "marshal/taken"]), taken);
    assert_eq!(setting.forge.open(), []);
    // Allowed by name, what takes effect outside is pushed.
    setting.land(0, &["--allow", ".github/workflows/x.yml", "ci"]);
    assert_eq!(
        setting.forge.open().len(),
        1,
        "{:?}",
        setting.forge.faults()
    );
}
