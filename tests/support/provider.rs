//! A model provider on the loopback, which records requests and answers as a test defines.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Writes the answer to the n-th request, from 0.
pub(crate) type Answer = dyn Fn(usize, &Got, &mut dyn Write) + Send + Sync;

/// The stream of a connection.
pub(crate) trait Talk: Read + Write + Send {}
impl<T: Read + Write + Send> Talk for T {}

/// Wraps a connection: in TLS, or not at all.
pub(crate) type Wrap = dyn Fn(TcpStream) -> Option<Box<dyn Talk>> + Send + Sync;

/// The provider. It listens as long as the test process lives.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Provider {
    pub(crate) fn start(
        answer: impl Fn(usize, &Got, &mut dyn Write) + Send + Sync + 'static,
    ) -> Self {
        Self::wrapped(answer, |stream| Some(Box::new(stream)))
    }

    pub(crate) fn wrapped(
        answer: impl Fn(usize, &Got, &mut dyn Write) + Send + Sync + 'static,
        wrap: impl Fn(TcpStream) -> Option<Box<dyn Talk>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let got = Arc::default();
        let provider = Self { address, got };
        let (answer, wrap): (Arc<Answer>, Arc<Wrap>) = (Arc::new(answer), Arc::new(wrap));
        let own = provider.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (own, answer, wrap) = (own.clone(), Arc::clone(&answer), Arc::clone(&wrap));
                thread::spawn(move || {
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
                    if let Some(stream) = wrap(stream) {
                        own.talk(stream, &*answer);
                    }
                });
            }
        });
        provider
    }

    /// All requests so far.
    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().expect("no panic").clone()
    }

    /// Serves one request on a connection, then closes it.
    fn talk(&self, mut stream: Box<dyn Talk>, answer: &Answer) {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 65536];
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
                Err(error) if is_interrupted(&error) => {}
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        while bytes.len() < end + length.unwrap_or(0) {
            match stream.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
                Err(error) if is_interrupted(&error) => {}
                _ => return,
            }
        }
        let body = String::from_utf8_lossy(&bytes[end..]).into_owned();
        let got = Got { head, body };
        let number = {
            let mut all = self.got.lock().expect("no panic");
            all.push(got.clone());
            all.len() - 1
        };
        answer(number, &got, &mut *stream);
        let _ = stream.flush();
    }
}

/// Whether a read with a timeout was interrupted and must be retried. This happens when the child
/// of another thread ends while that thread starts the next one.
fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// A complete response with these headers, one a line.
pub(crate) fn whole(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Answers with an Anthropic message.
pub(crate) fn message(_: usize, _: &Got, to: &mut dyn Write) {
    const MESSAGE: &str = r#"{"type":"message","content":[{"type":"text","text":"hello"}],"usage":{"input_tokens":11,"output_tokens":7,"cache_read_input_tokens":5}}"#;
    let _ = to.write_all(whole("200 OK", "content-type: application/json\r\n", MESSAGE).as_bytes());
}
