//! A whole pool whose workspaces are overlays: `run` with the script agent, then its results, `diff`,
//! `apply` and `discard`.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::overlay::OverlayHost;

impl OverlayHost {
    fn run(&self, prompt: &str) -> Value {
        std::thread::sleep(Duration::from_millis(20));
        let _ = fs::remove_file(self.at("r.jsonl"));
        let results = self.at("r.jsonl");
        let output =
            self.run_unless_busy(&["run", "--results", &results.to_string_lossy(), prompt]);
        assert_eq!(output.code, Some(0), "{}\n{}", output.out, output.err);
        let text = fs::read_to_string(results).unwrap();
        serde_json::from_str(text.lines().next().unwrap()).unwrap()
    }
}

fn git(over: &OverlayHost, args: &[&str]) {
    let done = std::process::Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t"])
        .args(args)
        .current_dir(over.at("project"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", over.at("home"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_task_works_in_an_overlay_is_checked_there_and_its_changes_are_applied() {
    let over = OverlayHost::new();
    over.config("check = [\"grep\", \"-q\", \"new\", \"README.md\"]");
    over.put("README.md", "old\n");
    over.put("src/a", "a\n");
    git(&over, &["init", "-q"]);
    git(&over, &["add", "."]);
    git(&over, &["commit", "-q", "-m", "one"]);
    let before = over.tree();
    let result =
        over.run("write README.md new\nwrite src/b b\nrun git status --short\nread README.md");
    assert_eq!(result["outcome"], "done", "{result}");
    let mut changes: Vec<String> = result["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| {
            format!(
                "{} {}",
                change["kind"].as_str().unwrap(),
                change["path"].as_str().unwrap()
            )
        })
        .filter(|change| !change.contains(".git/"))
        .collect();
    changes.sort();
    assert_eq!(changes, ["added src/b", "modified README.md"], "{result}");
    assert_eq!(over.tree(), before);
    let session = result["session"].as_str().unwrap();
    let upper = over.at(&format!("state/overlays/{session}/upper"));
    assert_eq!(result["workspace"], upper.to_string_lossy().into_owned());
    assert!(over.at(&format!("state/overlays/{session},ended")).exists());
    let output = over.run_unless_busy(&["diff", session]);
    assert!(
        output.out.contains("-old\n+new\n"),
        "{}{}",
        output.out,
        output.err
    );
    // Git refreshes its index where it may write; that is .git, and never taken over.
    let refused = over.run_unless_busy(&["apply", session]);
    if refused.code == Some(1) {
        assert!(refused.err.contains(".git/index"), "{}", refused.err);
        assert_eq!(over.tree(), before);
        let result = over.run("write README.md new\nwrite src/b b");
        let session = result["session"].as_str().unwrap();
        let output = over.run_unless_busy(&["apply", session]);
        assert_eq!(output.code, Some(0), "{}", output.err);
    }
    assert_eq!(
        (over.read("README.md"), over.read("src/b")),
        ("new\n".into(), "b\n".into())
    );
    let output = over.run_unless_busy(&["discard", session]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(!upper.exists());
}

#[test]
fn a_denied_write_is_judged_in_the_view_of_the_agent() {
    let over = OverlayHost::new();
    over.put("README.md", "old\n");
    // A link that the agent makes itself leads the later write out; the policy follows it there.
    let result = over.run("run ln -s /etc/ssl out\nwrite out/x y\nsay end");
    assert_eq!(result["requests"]["denied"], 1, "{result}");
}
