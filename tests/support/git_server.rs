//! A git server on the loopback: `git http-backend` behind HTTP that wants a key.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request as received, without its body.
#[derive(Debug, Clone)]
pub(crate) struct GitGot {
    pub(crate) line: String,
    pub(crate) has_key: bool,
    pub(crate) is_gzip: bool,
}

/// The server. It listens as long as the test process lives.
#[derive(Debug, Clone)]
pub(crate) struct GitServer {
    pub(crate) address: SocketAddr,
    root: PathBuf,
    authorization: String,
    got: Arc<Mutex<Vec<GitGot>>>,
}

impl GitServer {
    /// Serves the repositories below `root` to whoever sends this header. Those below `/moved` are
    /// elsewhere.
    pub(crate) fn start(root: &Path, authorization: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Self {
            address: listener.local_addr().expect("an address"),
            root: root.to_owned(),
            authorization: authorization.to_owned(),
            got: Arc::default(),
        };
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || own.talk(stream));
            }
        });
        server
    }

    /// All requests so far.
    pub(crate) fn got(&self) -> Vec<GitGot> {
        self.got.lock().expect("no panic").clone()
    }

    fn talk(&self, mut stream: TcpStream) -> Option<()> {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 65536];
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
            bytes.extend_from_slice(&chunk[..read]);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let header = |wanted: &str| {
            head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(wanted)
                    .then(|| value.trim().to_owned())
            })
        };
        let length: usize =
            header("content-length").map_or(0, |length| length.parse().expect("a length"));
        let mut body = bytes.split_off(end);
        while body.len() < length {
            let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
            body.extend_from_slice(&chunk[..read]);
        }
        let line = head.lines().next()?.to_owned();
        let has_key = header("authorization").as_ref() == Some(&self.authorization);
        self.got.lock().expect("no panic").push(GitGot {
            line: line.clone(),
            has_key,
            is_gzip: header("content-encoding").is_some_and(|encoding| encoding == "gzip"),
        });
        let target = line.split(' ').nth(1)?;
        let answer = if !has_key {
            b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()
        } else if let Some(path) = target.strip_prefix("/moved") {
            format!("HTTP/1.1 302 Found\r\nlocation: /owner{path}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
        } else {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let method = line.split(' ').next()?;
            let env = [
                ("REQUEST_METHOD", method.to_owned()),
                ("PATH_INFO", path.to_owned()),
                ("QUERY_STRING", query.to_owned()),
                ("CONTENT_TYPE", header("content-type").unwrap_or_default()),
                ("CONTENT_LENGTH", body.len().to_string()),
                (
                    "HTTP_CONTENT_ENCODING",
                    header("content-encoding").unwrap_or_default(),
                ),
                ("GIT_PROTOCOL", header("git-protocol").unwrap_or_default()),
            ];
            self.backend(&body, env)
        };
        stream.write_all(&answer).ok()
    }

    fn backend(&self, body: &[u8], env: [(&str, String); 7]) -> Vec<u8> {
        let mut child = Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REMOTE_USER", "agent")
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "safe.directory")
            .env("GIT_CONFIG_VALUE_0", "*")
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("git");
        let mut stdin = child.stdin.take().expect("piped");
        let body = body.to_vec();
        let writing = thread::spawn(move || {
            let _ = stdin.write_all(&body);
        });
        let output = child.wait_with_output().expect("its end");
        writing.join().expect("no panic");
        let mut printed = output.stdout;
        let end = printed.windows(4).position(|four| four == b"\r\n\r\n");
        let content = printed.split_off(end.expect("a head") + 4);
        let head = String::from_utf8_lossy(&printed).into_owned();
        let status = head.lines().find_map(|line| line.strip_prefix("Status: "));
        let mut answer = format!("HTTP/1.1 {}\r\n", status.unwrap_or("200 OK")).into_bytes();
        for line in head
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("Status:"))
        {
            answer.extend_from_slice(format!("{line}\r\n").as_bytes());
        }
        let end = format!(
            "content-length: {}\r\nconnection: close\r\n\r\n",
            content.len()
        );
        answer.extend_from_slice(end.as_bytes());
        answer.extend_from_slice(&content);
        answer
    }
}
