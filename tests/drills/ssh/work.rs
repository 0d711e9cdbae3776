//! What works at a far end: both dialects, the enriched PATH, variables and secrets, checks.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::drill::{Drill, eventually};
use crate::ssh::ssh_host::{FAR_UID, SshHost};

#[test]
fn agents_of_both_dialects_work_at_a_far_end() {
    let far = SshHost::start();
    for dialect in ["acp", "scaiflux"] {
        let pool = far.pool(&far.keys(), "").replace("acp", dialect);
        let drill = Drill::new(&pool);
        let file = format!("{dialect}.txt");
        let ran = drill.run(&[
            "run",
            "--results",
            "r.jsonl",
            &format!("write {file} hello"),
        ]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert!(ran.stderr.contains("unsandboxed here"), "{}", ran.all());
        let made = far.work().join(&file);
        let text = fs::read_to_string(&made).expect("the file is at the far end");
        assert_eq!(text.trim_end(), "hello");
        assert_eq!(made.metadata().expect("metadata").uid(), FAR_UID);
        let result = &drill.results("r.jsonl")[0];
        assert_eq!(result["outcome"], "done");
    }
    // The far end sees a moment later that a client has gone.
    eventually(
        Duration::from_secs(20),
        "no connection outlives its child",
        || far.sessions().is_empty(),
    );
}

#[test]
fn a_far_agent_gets_its_variables_and_no_list_of_processes_shows_its_secrets() {
    let far = SshHost::start();
    let check = "check = ['sh', '-c', '''test \"$PLAIN\" = \"a b'c\\$x\" && test \"$API_KEY\" = s3cret-value \
        && test -z \"$SSH_AUTH_SOCK$TERM$LANG\" && test \"$PWD\" = \"$HOME/work\" && case $PATH in \"$HOME/.local/bin:\"*) ;; *) exit 9;; esac''']\n";
    let pool = far
        .pool(&far.keys(), "")
        .replace("launcher", &format!("{check}launcher"))
        .replace(
            "DRILL = \"MARK\"",
            "DRILL = \"MARK\", PLAIN = \"a b'c$x\", API_KEY = \"env:FAR_SECRET\"",
        );
    let drill = Drill::new(&pool);
    let mut command = drill.command(&["run", "sleep 5s"]);
    command
        .env("FAR_SECRET", "s3cret-value")
        .env("SSH_AUTH_SOCK", "/nonexistent/agent")
        .env("TERM", "xterm");
    let mut running = command
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(drill.path("stderr.log")).expect("a log"))
        .spawn()
        .expect("marshal");
    eventually(Duration::from_secs(60), "the agent runs", || {
        !drill.agents().is_empty()
    });
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        assert!(!line.contains("s3cret-value"), "{line}");
    }
    let status = running.wait().expect("ends");
    assert!(status.success(), "{}", drill.log("stderr.log"));
}

#[test]
fn with_marshal_at_the_far_end_an_agent_sees_nothing_but_its_workspace() {
    let far = SshHost::start();
    let home = far.path("home/agent-home").display().to_string();
    let keys = format!("{}\nmarshal = \"marshal\"\nhome = {home:?}", far.keys());
    let check = "check = ['sh', '-c', 'test \"$PWD\" = /workspace && test \"$HOME\" = /home/agent && ! ls /etc/shadow /root && sleep 8 && test -n \"$DRILL\"']\n";
    let pool = far
        .pool(&keys, "")
        .replace("launcher", &format!("{check}launcher"));
    let drill = Drill::new(&pool);
    let ran = drill.run(&["run", "write inside.txt hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let made = far.work().join("inside.txt");
    assert_eq!(made.metadata().expect("the far file").uid(), FAR_UID);
    assert!(
        far.path("home/agent-home")
            .read_dir()
            .expect("home")
            .next()
            .is_some()
    );
}
