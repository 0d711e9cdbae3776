//! Sixty and more files of secrets, as people have them in their repositories: no agent reads one, in
//! any workspace mode, and no command of `sandbox exec`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::drill::{Drill, NOBODY};

/// Each with its content; `SECRET` is what nobody may read.
const SECRETS: &[(&str, &str)] = &[
    (".env", "KEY=SECRET"),
    (".env.local", "KEY=SECRET"),
    ("config/.env.production", "KEY=SECRET"),
    ("a/b/.ENV", "KEY=SECRET"),
    ("server.pem", "-----BEGIN PRIVATE KEY-----\nSECRET"),
    ("tls/Server.PEM", "SECRET"),
    ("tls/server.key", "SECRET"),
    ("tls/client.p12", "SECRET"),
    ("tls/client.pfx", "SECRET"),
    ("android/release.jks", "SECRET"),
    ("android/release.keystore", "SECRET"),
    ("keys/id_rsa", "SECRET"),
    ("keys/id_rsa.old", "SECRET"),
    ("keys/id_dsa", "SECRET"),
    ("keys/id_ecdsa", "SECRET"),
    ("keys/id_ed25519", "SECRET"),
    ("keys/deploy.ppk", "SECRET"),
    ("keys/AuthKey_2X9R4HXF34.p8", "SECRET"),
    ("keys/vault.kdbx", "SECRET"),
    ("keys/secring.gpg", "SECRET"),
    ("vpn/office.ovpn", "SECRET"),
    (".ssh/config", "SECRET"),
    (".ssh/github", "SECRET"),
    (".gnupg/private-keys-v1.d/5F2A.key", "SECRET"),
    (".netrc", "machine x password SECRET"),
    ("win/_netrc", "machine x password SECRET"),
    (".npmrc", "//registry.npmjs.org/:_authToken=SECRET"),
    ("web/.npmrc", "_auth = SECRET"),
    ("web/.yarnrc.yml", "npmAuthToken: SECRET"),
    (".pypirc", "password = SECRET"),
    (
        "pip.conf",
        "[global]\nindex-url = https://u:SECRET@pypi.example/simple",
    ),
    (".git-credentials", "https://u:SECRET@github.com"),
    (".htpasswd", "u:SECRET"),
    (".pgpass", "h:5432:d:u:SECRET"),
    (".my.cnf", "password=SECRET"),
    (".s3cfg", "secret_key = SECRET"),
    (".boto", "aws_secret_access_key = SECRET"),
    (".dockercfg", "{\"auth\": \"SECRET\"}"),
    (".docker/config.json", "{\"auth\": \"SECRET\"}"),
    (".vault-token", "SECRET"),
    ("infra/terraform.tfstate", "{\"password\": \"SECRET\"}"),
    (
        "infra/terraform.tfstate.backup",
        "{\"password\": \"SECRET\"}",
    ),
    (".terraformrc", "token = \"SECRET\""),
    (
        ".terraform.d/credentials.tfrc.json",
        "{\"token\": \"SECRET\"}",
    ),
    ("kubeconfig", "token: SECRET"),
    ("deploy/kubeconfig.yaml", "token: SECRET"),
    (".aws/credentials", "aws_secret_access_key = SECRET"),
    (".azure/accessTokens.json", "SECRET"),
    (".azure/msal_token_cache.json", "SECRET"),
    (".config/gcloud/credentials.db", "SECRET"),
    (".config/gh/hosts.yml", "oauth_token: SECRET"),
    ("gcp/application_default_credentials.json", "SECRET"),
    ("gcp/service-account.json", "{\"private_key\": \"SECRET\"}"),
    (
        "gcp/service_account-prod.json",
        "{\"private_key\": \"SECRET\"}",
    ),
    ("app/my-app-firebase-adminsdk-x1.json", "SECRET"),
    (
        "app/client_secret_1.apps.googleusercontent.com.json",
        "SECRET",
    ),
    ("credentials.json", "SECRET"),
    ("composer/auth.json", "{\"github-oauth\": \"SECRET\"}"),
    (".cargo/credentials.toml", "token = \"SECRET\""),
    (".gem/credentials", ":rubygems_api_key: SECRET"),
    ("rclone.conf", "pass = SECRET"),
    (".sentryclirc", "token=SECRET"),
    ("functions/local.settings.json", "SECRET"),
    (".streamlit/secrets.toml", "SECRET"),
    (".claude/.credentials.json", "SECRET"),
];

/// Files that look like them and stay.
const SHOWN: &[&str] = &[
    ".env.example",
    "b/.npmrc",
    "b/pip.conf",
    "certs/cacert.pem",
    "settings.json",
];

/// Prints what can be read of the secrets, by a search and by name, and how many of the others are
/// there.
const SCRIPT: &str = r#"
echo "searched: [$(grep -rlsI "SEC[R]ET" . | sort | tr '\n' ' ')]"
while read -r name; do
    if cat "$name" 2>/dev/null | grep -q "SEC[R]ET"; then echo "read: $name"; fi
    if tar -cf - "$name" 2>/dev/null | grep -q "SEC[R]ET"; then echo "packed: $name"; fi
done < names
while read -r name; do [ -s "$name" ] && echo "shown: $name"; done < shown
"#;

/// A repository of an ordinary user with all of it committed.
fn drill(mode: &str, more: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "developer"
workspace = {{ path = "project", mode = "{mode}"{more} }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    ));
    let top = drill.workspace();
    let put = |name: &str, text: &str| {
        let path = top.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    for (name, text) in SECRETS {
        put(name, text);
    }
    for name in SHOWN {
        put(name, "registry = https://registry.example\n");
    }
    let names: Vec<&str> = SECRETS.iter().map(|(name, _)| *name).collect();
    put("names", &format!("{}\n.git/config\n", names.join("\n")));
    put("shown", &format!("{}\n", SHOWN.join("\n")));
    put("read.sh", SCRIPT);
    fs::set_permissions(
        drill.path(""),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("chmod");
    let script = "git init -q -b main . && git add -f . && \
                  git -c user.name=o -c user.email=o@x commit -qm first && \
                  git remote add origin https://u:SECRET@github.com/o/r.git && \
                  git config http.extraHeader 'Authorization: basic SECRET'";
    let owner = format!("{NOBODY}:{NOBODY}");
    let chown = Command::new("chown")
        .args(["-R", &owner])
        .arg(&top)
        .status();
    assert!(chown.expect("chown").success());
    let made = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .args(["--clear-groups", "sh", "-c", script])
        .current_dir(&top)
        .env("HOME", "/nonexistent")
        .status();
    assert!(made.expect("sh").success());
    drill
}

fn assert_hidden(mode: &str, said: &str) {
    assert!(said.contains("searched: []"), "{mode}: {said}");
    assert!(
        !said.contains("read: ") && !said.contains("packed: "),
        "{mode}: {said}"
    );
    for name in SHOWN {
        assert!(
            said.contains(&format!("shown: {name}")),
            "{mode}: {name}: {said}"
        );
    }
}

fn check(mode: &str) {
    let drill = drill(mode, "");
    let before = fs::read(drill.workspace().join(".git/config")).expect("a file");
    let ran = drill.run(&["run", "unasked sh read.sh"]);
    assert_eq!(ran.code, Some(0), "{mode}: {}", ran.all());
    let events = drill.run(&["events", "--json", "--since", "1h"]).stdout;
    let result = events.lines().find(|line| line.contains("searched: "));
    let result: serde_json::Value =
        serde_json::from_str(result.expect("the script's output")).expect("JSON");
    assert_hidden(mode, &result.to_string().replace("\\n", "\n"));
    let after = fs::read(drill.workspace().join(".git/config")).expect("a file");
    assert_eq!(
        before, after,
        "{mode}: the repository's own configuration stays"
    );
}

/// Without a mask the same script reads all of them.
#[test]
fn without_a_mask_they_are_read() {
    let drill = drill("ro", ", mask = []");
    let ran = drill.run(&["run", "unasked sh read.sh"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let events = drill.run(&["events", "--json", "--since", "1h"]).stdout;
    for (name, _) in SECRETS {
        assert!(
            events.contains(&format!("read: {name}\\n")),
            "{name}: {events}"
        );
    }
    assert!(events.contains("read: .git/config"), "{events}");
}

#[test]
fn in_a_copy() {
    check("copy");
}

#[test]
fn in_a_read_only_workspace() {
    check("ro");
}

#[test]
fn in_a_writable_workspace() {
    check("rw");
}

#[test]
fn in_an_overlay() {
    check("overlay");
}

/// They are committed, and the clone borrows the objects; but nothing checks them out, and what the
/// session leaves does not delete them.
#[test]
fn in_a_worktree() {
    check("worktree");
    let drill = drill("worktree", "");
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        "write new.txt x\nwrite .env.example y",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let session = drill.results("r.jsonl")[0]["session"]
        .as_str()
        .expect("a session")
        .to_owned();
    let shown = drill.run(&["diff", &session]).stdout;
    assert!(
        shown.contains("b/new.txt") && shown.contains("b/.env.example"),
        "{shown}"
    );
    assert!(!shown.contains("deleted file"), "{shown}");
}

#[test]
fn of_a_command_in_a_sandbox() {
    let drill = drill("copy", "");
    let workspace = drill.workspace();
    for mode in ["copy", "ro", "rw"] {
        let args = ["sandbox", "exec", "--mode", mode, "--workspace"];
        let words = ["--", "sh", "read.sh"];
        let workspace = workspace.to_str().expect("UTF-8");
        let ran = drill.run(&[&args as &[&str], &[workspace], &words].concat());
        assert_eq!(ran.code, Some(0), "{mode}: {}", ran.all());
        assert_hidden(mode, &ran.stdout);
    }
    assert!(Path::new(&workspace).join(".env").exists());
}

#[test]
fn there_are_sixty_kinds() {
    assert!(SECRETS.len() >= 60);
}
