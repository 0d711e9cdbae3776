//! The configuration as a person meets it: what is shown of it, its secrets, and who may write it.
//!
//! Root is needed: files must belong to somebody else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{POOL, exits};
use crate::drill::{Drill, NOBODY, Ran};
use crate::programs::install;

const GOOD: &str = "[pool.demo]\nagent = \"script\"\n";

/// A directory with a `supervisor.toml`, and the program started in it.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        chmod(dir.path(), 0o755);
        let place = Self { dir };
        place.write("supervisor.toml", text);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
        chmod(&self.path(name), 0o644);
    }

    /// `config check` with these arguments before it.
    fn check(&self, args: &[&str]) -> Ran {
        run(self.dir.path(), &[args, &["config", "check"]].concat())
    }

    /// Refused with these words, whatever is done with it.
    #[track_caller]
    fn refused(&self, args: &[&str], part: &str) {
        exits(&self.check(args), 2, &[part]);
        exits(
            &run(self.dir.path(), &[args, &["run", "say hi"]].concat()),
            2,
            &[part],
        );
    }
}

fn run(dir: &Path, args: &[&str]) -> Ran {
    let began = std::time::Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .env(
            "XDG_STATE_HOME",
            dir.parent().expect("above").join("no-state"),
        )
        .stdin(Stdio::null())
        .output()
        .expect("marshal starts");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: began.elapsed(),
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn give_away(path: &Path) {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
}

#[test]
fn what_is_shown_is_read_again_as_the_same_and_hides_its_secrets() {
    let drill = Drill::new(&POOL.replace(
        "DRILL = \"MARK\"",
        "TOKEN = \"env:DRILL_TOKEN\", OPEN = \"1\"",
    ));
    let shown = drill.run(&["config", "show"]);
    exits(&shown, 0, &["supervisor.toml"]);
    let first = shown.stderr.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("using configuration: /"),
        "{}",
        shown.all()
    );
    assert!(
        shown.stdout.contains("env.set.TOKEN = \"‹secret›\"\n"),
        "{}",
        shown.all()
    );
    assert!(
        shown.stdout.contains("env.set.OPEN = \"1\"\n"),
        "{}",
        shown.all()
    );
    assert!(!shown.stdout.contains("DRILL_TOKEN"), "{}", shown.all());
    let state = format!("state_dir = \"{}\"", drill.state().display());
    assert!(shown.stdout.contains(&state), "{}", shown.all());
    fs::write(drill.config(), &shown.stdout).expect("written");
    let again = drill.run(&["config", "show"]);
    assert_eq!(again.stdout, shown.stdout);
    let json = drill.run(&["config", "show", "--json"]);
    exits(&json, 0, &["supervisor.toml"]);
    assert_eq!(json.stdout.lines().count(), 1);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["pool"]["demo"]["size"], 2);
    assert_eq!(json["pool"]["demo"]["env"]["set"]["TOKEN"], "‹secret›");
    let toml: toml::Table = shown.stdout.parse().expect("TOML");
    assert_eq!(json, serde_json::to_value(toml).expect("plain"));
}

#[test]
fn the_schema_is_printed_whatever_the_configuration() {
    let committed = include_str!("../../../docs/supervisor.schema.json");
    let place = Place::new("broken = \n");
    let schema = run(place.dir.path(), &["config", "schema"]);
    exits(&schema, 0, &[]);
    assert_eq!(schema.stdout, committed);
    let line = run(place.dir.path(), &["--json", "config", "schema"]).stdout;
    assert_eq!(line.lines().count(), 1);
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(value(&line), value(committed));
}

#[test]
fn a_secret_reaches_the_agent_and_no_output() {
    let secrets = "env = { set = { FROM_ENV = \"env:DRILL_ENV\", FROM_FILE = \"file:key\" } }\n\
         check = [\"sh\", \"-c\", \"test \\\"$FROM_ENV/$FROM_FILE\\\" = s3cr\\\"\\\"3t-one/s3cr\\\"\\\"3t-two\"]";
    let pool = POOL.replace("env = { set = { DRILL = \"MARK\" } }", secrets);
    let drill = Drill::new(&pool);
    let key = drill.path("key");
    let put = |text: &str, mode: u32| {
        fs::write(&key, text).expect("written");
        chmod(&key, mode);
    };
    let run = |args: &[&str], variable: Option<&str>| {
        let mut command = drill.command(args);
        if let Some(value) = variable {
            command.env("DRILL_ENV", value);
        }
        let output = command.output().expect("marshal starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    put("s3cr3t-two\n", 0o600);
    let (code, all) = run(&["-v", "run", "say hi"], Some("s3cr3t-one"));
    assert_eq!(code, Some(0), "{all}");
    assert!(!all.contains("s3cr3t"), "{all}");
    // The check is one that can fail.
    let (code, all) = run(&["run", "say hi"], Some("another"));
    assert_eq!(code, Some(1), "{all}");
    for (args, variable, mode, part) in [
        (
            &["run", "say hi"][..],
            None,
            0o600,
            "the variable DRILL_ENV is not set",
        ),
        (
            &["up"],
            Some("x"),
            0o644,
            "is readable by all users (mode 0644)",
        ),
        (
            &["config", "check"],
            Some("x"),
            0o606,
            "is writable by everybody (mode 0606)",
        ),
    ] {
        put("s3cr3t-two", mode);
        let (code, all) = run(args, variable);
        assert_eq!(code, Some(2), "{all}");
        assert!(all.contains(part), "{part}: {all}");
        assert!(!all.contains("s3cr3t"), "{all}");
    }
    // Whoever only asks a daemon needs none of them.
    let (code, all) = run(&["logs", "demo/0"], None);
    assert_eq!(code, Some(4), "{all}");
}

#[test]
fn a_discovered_file_may_not_weaken_the_sandbox() {
    let outside = TempDir::new().expect("a directory");
    fs::write(outside.path().join("key"), "x").expect("written");
    chmod(&outside.path().join("key"), 0o600);
    let outside = outside.path().display();
    for (keys, part) in [
        (
            "launcher = \"none\"".to_owned(),
            "may not use launcher = \"none\"",
        ),
        (
            "network = \"host\"".to_owned(),
            "may not use network = \"host\"",
        ),
        (
            "launcher = \"ssh\"\nssh = { host = \"h\", workspace = \"/srv\" }".to_owned(),
            "may not use launcher = \"ssh\"",
        ),
        (
            format!("workspace.path = \"{outside}\""),
            "may not use a workspace outside its own directory",
        ),
        (
            format!("[workspace.site]\npath = \"{outside}\""),
            "may not use a workspace outside its own directory",
        ),
        (
            format!("home_files.x = \"{outside}/key\""),
            "may take files only from",
        ),
        (
            "env.set.X = \"env:PATH\"".to_owned(),
            "may not use secrets, found \"env:\"",
        ),
        (
            format!("env.set.X = \"file:{outside}/key\""),
            "may not use secrets, found \"file:\"",
        ),
        (
            "[hook.x]\ncommand = [\"/bin/true\"]".to_owned(),
            "may not use hooks",
        ),
        (
            "env.pass = [\"API_KEY\"]".to_owned(),
            "may not pass secrets",
        ),
    ] {
        let place = Place::new(&format!("{GOOD}{keys}\n"));
        place.refused(&[], part);
        exits(&place.check(&["--config", "supervisor.toml"]), 0, &[]);
    }
    // What this version does not have is refused in any file.
    let place = Place::new(&format!("{GOOD}[remote]\n"));
    place.refused(&[], "not supported by this version");
}

#[test]
fn a_file_that_somebody_else_could_have_written_is_not_used() {
    let place = Place::new(GOOD);
    let file = place.path("supervisor.toml");
    exits(&place.check(&[]), 0, &[]);
    chmod(&file, 0o666);
    place.refused(&[], "supervisor.toml is writable by everybody (mode 0666)");
    chmod(&file, 0o664);
    give_away(&file);
    place.refused(&[], "supervisor.toml belongs to user 65534");
    chown(&file, Some(0), Some(0)).expect("chown");
    chmod(&file, 0o644);
    give_away(place.dir.path());
    place.refused(&[], "belongs to user 65534");
    chown(place.dir.path(), Some(0), Some(0)).expect("chown");
    chmod(place.dir.path(), 0o777);
    place.refused(&[], "is writable by everybody (mode 0777)");
    chmod(place.dir.path(), 0o1777);
    place.refused(&[], "move it into a directory of your own");
    chmod(place.dir.path(), 0o755);
    exits(&place.check(&[]), 0, &[]);
}

#[test]
fn a_file_whose_way_leads_through_foreign_hands_is_not_used() {
    let place = Place::new(GOOD);
    let above = place.path("above");
    fs::create_dir_all(above.join("own")).expect("directories");
    place.write("above/own/x.toml", GOOD);
    let file = place.path("above/own/x.toml").display().to_string();
    let named = ["--config", file.as_str()];
    exits(&place.check(&named), 0, &[]);
    give_away(&above);
    place.refused(&named, "above belongs to user 65534");
    chown(&above, Some(0), Some(0)).expect("chown");
    chmod(&above, 0o777);
    place.refused(&named, "above is writable by everybody");
    // A link is followed, and its own way counts too.
    chmod(&above, 0o1777);
    symlink(place.path("above/own"), above.join("link")).expect("link");
    let link = above.join("link/x.toml").display().to_string();
    let by_link = ["--config", link.as_str()];
    exits(&place.check(&by_link), 0, &[]);
    let status = Command::new("chown")
        .args(["-h", "65534"])
        .arg(above.join("link"))
        .status();
    assert!(status.expect("chown").success());
    place.refused(&by_link, "above/link belongs to user 65534");
    // The target of a link is checked, not only its place.
    symlink(&file, place.path("to.toml")).expect("link");
    chmod(Path::new(&file), 0o666);
    place.refused(&["--config", "to.toml"], "is writable by everybody");
}

#[test]
fn a_binary_with_borrowed_rights_refuses_to_run() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let place = Place::new(GOOD);
    let copy = place.path("marshal");
    install(
        &copy,
        fs::File::open(env!("CARGO_BIN_EXE_marshal")).expect("the program"),
    );
    let by_nobody = || {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(["config", "schema"])
            .current_dir("/")
            .output()
            .expect("setpriv starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(by_nobody().0, Some(0), "{:?}", by_nobody());
    for mode in [0o4755, 0o2755] {
        chmod(&copy, mode);
        let (code, stderr) = by_nobody();
        assert_eq!(code, Some(5), "{mode:o}: {stderr}");
        assert!(
            stderr.contains("refuses to run set-uid or set-gid"),
            "{stderr}"
        );
    }
    chmod(&copy, 0o755);
    let setcap = Command::new("setcap")
        .arg("cap_net_raw+ep")
        .arg(&copy)
        .status();
    assert!(
        setcap
            .expect("setcap (Debian package libcap2-bin)")
            .success()
    );
    let (code, stderr) = by_nobody();
    assert_eq!(code, Some(5), "{stderr}");
    assert!(
        stderr.contains("refuses to run with file capabilities"),
        "{stderr}"
    );
}

#[test]
fn a_policy_setting_that_has_no_effect_is_a_warning_of_the_check() {
    let drill = Drill::new(&format!(
        "{POOL}policy = \"mine\"\n[policy.mine]\nfile = \"mine.toml\"\n"
    ));
    let policy = |redirect: &str| {
        let text = format!(
            "schema = 1\nname = \"mine\"\ndefault = \"ask\"\nextends = [\"builtin:developer\"]\n\
             [shell]\nredirect = {{ write_outside = \"{redirect}\" }}\n"
        );
        fs::write(drill.path("mine.toml"), text).expect("written");
        let ran = drill.run(&["config", "check"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        ran.stderr
    };
    let warning = "warning: policy mine: `shell.redirect.write_outside = \"allow\"` has no effect";
    let shown = policy("allow");
    assert!(shown.contains(warning), "{shown}");
    let shown = policy("deny");
    assert!(!shown.contains("warning: policy"), "{shown}");
}
