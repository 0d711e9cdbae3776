//! Files of settings that hold a secret only if somebody wrote one into them: with a secret they are
//! hidden like a file whose name says so. Git's own configuration is shown without it, because git
//! needs the rest.
//!
//! Must not know how a file is hidden.

use std::io::Read as _;

use rustix::fs::{OFlags, ResolveFlags};

use super::tree::Root;
use super::{GitDir, TreeError, file_list};
use crate::open::open_within;

/// Names of such files, and what is in one that holds a secret.
const FILES: [(&str, &[&str]); 7] = [
    (".npmrc", &["_authToken", "_auth=", "_auth =", "_password"]),
    (".yarnrc", &["_authToken", "_password"]),
    (".yarnrc.yml", &["npmAuthToken", "npmAuthIdent"]),
    (".pip.conf", &["://"]),
    ("pip.conf", &["://"]),
    ("pip.ini", &["://"]),
    (".condarc", &["://", "/t/"]),
];

/// A file of settings is not longer. A longer one counts as one with a secret.
const BYTES: u64 = 1 << 20;

/// Whether a file holds a secret, by its name and its content; also if it cannot be read.
pub(super) fn has_secret(root: &Root, path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let is_nested_config = name == b"config" && path.ends_with(b"/.git/config");
    let signs = FILES
        .iter()
        .find(|(file, _)| name.eq_ignore_ascii_case(file.as_bytes()))
        .map(|(_, signs)| *signs);
    if signs.is_none() && !is_nested_config {
        return false;
    }
    let Ok(Some(text)) = read(root, path) else {
        return true;
    };
    match signs {
        Some(["://", more @ ..]) => {
            without_credentials(&text) != text || more.iter().any(|sign| text.contains(sign))
        }
        Some(signs) => signs.iter().any(|sign| text.contains(sign)),
        None => without_credentials(&text) != text,
    }
}

/// The configuration of the workspace's repository without its credentials; `None` if it has none.
///
/// # Errors
/// If there is a repository whose configuration cannot be read.
pub fn clean_git_config(root: &Root) -> Result<Option<String>, TreeError> {
    if file_list::git_dir(root)? != GitDir::Dir {
        return Ok(None);
    }
    let unreadable = |why: &str| {
        TreeError::at(
            "read, to show it without credentials,",
            b".git/config",
            std::io::Error::other(why.to_owned()),
        )
    };
    let Some(text) = read(root, b".git/config").map_err(|error| unreadable(&error.to_string()))?
    else {
        return Err(unreadable("it is too long, or not UTF-8 text"));
    };
    let clean = without_credentials(&text);
    Ok((clean != text).then_some(clean))
}

/// The text of a regular file; empty if there is none, `None` if it is too long or not UTF-8.
fn read(root: &Root, path: &[u8]) -> std::io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match open_within(root, path, flags, resolve) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(Some(String::new())),
        Err(errno) => return Err(errno.into()),
    };
    let mut bytes = Vec::new();
    file.take(BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES {
        return Ok(None);
    }
    Ok(String::from_utf8(bytes).ok())
}

/// The text without the credentials of its URLs, and without lines that send one with each request.
fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let lower = line.to_ascii_lowercase();
        let is_header = lower.trim_start().starts_with("extraheader") && lower.contains('=');
        if is_header
            && ["authorization", "token", "cookie"]
                .iter()
                .any(|it| lower.contains(it))
        {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("://") {
            let (before, after) = rest.split_at(at + 3);
            out.push_str(before);
            let end = after
                .find(|c: char| c == '/' || c == '"' || c.is_whitespace())
                .unwrap_or(after.len());
            let login = after[..end].rfind('@').map_or(0, |at| at + 1);
            // A user alone is no secret with ssh, and often a token with https.
            let is_ssh = before.ends_with("ssh://") && !after[..login].contains(':');
            rest = if is_ssh { after } else { &after[login..] };
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
    use super::*;

    #[test]
    fn credentials_go_and_everything_else_stays() {
        let check = |text: &str, clean: &str| assert_eq!(without_credentials(text), clean);
        check(
            "[remote \"o\"]\n\turl = https://u:ghp_x@github.com/a/b.git\n\tfetch = +r:r\n",
            "[remote \"o\"]\n\turl = https://github.com/a/b.git\n\tfetch = +r:r\n",
        );
        check("url = https://ghp_x@h/a", "url = https://h/a");
        check(
            "url = \"https://a:p@w@h\" # x@y",
            "url = \"https://h\" # x@y",
        );
        check("url = ssh://git@h/a\n", "url = ssh://git@h/a\n");
        check("url = git@github.com:a/b\n", "url = git@github.com:a/b\n");
        check(
            "[http \"https://h/\"]\n\textraheader = AUTHORIZATION: basic eA==\n[x]\n",
            "[http \"https://h/\"]\n[x]\n",
        );
        check("http://a:b@c http://d:e@f\n", "http://c http://f\n");
    }

    #[test]
    fn a_file_of_settings_is_hidden_only_with_a_secret() {
        let dir = scratch();
        let root = Root::open(dir.path()).unwrap();
        let check = |name: &str, text: &str, hidden: bool| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            assert_eq!(has_secret(&root, name.as_bytes()), hidden, "{name}: {text}");
        };
        check(".npmrc", "save-exact=true\n", false);
        check("a/.npmrc", "//registry.npmjs.org/:_authToken=npm_x\n", true);
        check("a/.NPMRC", "_auth = eA==\n", true);
        check(".yarnrc.yml", "npmAuthToken: x\n", true);
        check(".yarnrc.yml", "nodeLinker: node-modules\n", false);
        check(
            "pip.conf",
            "index-url = https://u:p@pypi.example/simple\n",
            true,
        );
        check(
            "pip.conf",
            "index-url = https://pypi.example/simple\n",
            false,
        );
        check("sub/.git/config", "url = https://t@h/x\n", true);
        check("sub/.git/config", "url = https://h/x\n", false);
        check("other", "_authToken=x\n", false);
        std::fs::write(dir.path().join(".npmrc"), [0xff, 0xfe]).unwrap();
        assert!(
            has_secret(&root, b".npmrc"),
            "what cannot be read is hidden"
        );
    }
}
