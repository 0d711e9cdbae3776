//! The labelled requests that a policy is tested with whenever it is read: `test_dir`.
//!
//! A policy with a wrong decision is not used. Must not know the format of a case
//! (`policy/cases.rs`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::policies::read_policy;
use super::trust::display_path;
use marshal_fleet::LoadedPolicy;
use marshal_model::AgentClaims;
use marshal_model::limits::{POLICY_TEST_CASES, POLICY_TEST_FILES};
use marshal_model::untrusted::escape_for_display;
use marshal_policy::cases::{Case, FixtureFs};

/// Columns shown of a name.
const NAME: usize = 80;

/// Evaluates every case in the directory's `*.jsonl` files that names this policy or none. The
/// files must be as trusted as the policy.
///
/// # Errors
/// The directory or a case cannot be read, there is no case, or the decision on a case is wrong.
pub(super) fn check_cases(
    loaded: &LoadedPolicy,
    dir: &Path,
    seen: &RefCell<BTreeSet<PathBuf>>,
) -> Result<(), String> {
    seen.borrow_mut().insert(dir.to_owned());
    let ground = FixtureFs::default();
    let at = ground.fs_context();
    let mut judged = 0;
    for file in files(dir)? {
        seen.borrow_mut().insert(file.clone());
        let text = read_policy(&file)?;
        let lines = text.lines().enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let at_line = || format!("{}:{}", display_path(&file), number + 1);
            let case = Case::parse(line).map_err(|why| format!("{}: {why}", at_line()))?;
            if !case.policy.is_empty() && case.policy != loaded.policy.name() {
                continue;
            }
            judged += 1;
            if judged > POLICY_TEST_CASES {
                let dir = display_path(dir);
                return Err(format!("{dir} has more than {POLICY_TEST_CASES} cases"));
            }
            let (request, occasion) = (&case.request, case.evaluation_context());
            let claimed = AgentClaims::default();
            let got = loaded
                .policy
                .decide_in_context(request, &claimed, &at, &occasion);
            let grade = case.grade(&got);
            if grade.is_miss() {
                return Err(format!(
                    "policy {} fails its own test case {} ({}): expected {}, got {}: {}",
                    escape_for_display(loaded.policy.name(), NAME),
                    escape_for_display(&case.id, NAME),
                    at_line(),
                    case.expect,
                    got.decision,
                    got.reason
                ));
            }
        }
    }
    if judged == 0 {
        let name = escape_for_display(loaded.policy.name(), NAME);
        return Err(format!(
            "{} has no case for policy {name}; name a directory with cases in *.jsonl files",
            display_path(dir)
        ));
    }
    Ok(())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("test_dir {}: {error}", display_path(dir));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            paths.push(path);
        }
        if paths.len() > POLICY_TEST_FILES {
            return Err(format!(
                "test_dir {} has more than {POLICY_TEST_FILES} files",
                display_path(dir)
            ));
        }
    }
    paths.sort();
    Ok(paths)
}
