//! The HTTP server: answered requests, and streams of events.

use std::time::Duration;

use crate::labels::{HttpCode, HttpMethod, StreamEnd, StreamKind};
use crate::meters::{counter, gauge, histogram};
use crate::names;

/// A request was answered. Not logged: its handler logs what matters.
#[derive(Debug)]
pub struct RequestAnswered<'a> {
    /// The path in the router's syntax, or a word for all unknown ones.
    pub endpoint: &'a str,
    /// The method.
    pub method: HttpMethod,
    /// The class of the status code.
    pub code: HttpCode,
    /// From the request's head until the response's.
    pub took: Duration,
}

impl RequestAnswered<'_> {
    /// Counts and observes.
    pub fn emit(self) {
        let (method, code) = (self.method.as_str(), self.code.as_str());
        counter(&names::HTTP_REQUESTS, &[self.endpoint, method, code]).increment(1);
        histogram(&names::HTTP_SECONDS, &[method]).record(self.took);
    }
}

/// A stream of events; counted as open until it is dropped.
#[derive(Debug)]
pub struct OpenStream {
    kind: StreamKind,
    end: StreamEnd,
}

impl OpenStream {
    /// Counts a stream as open.
    #[must_use]
    pub fn new(kind: StreamKind) -> Self {
        gauge(&names::STREAMS, &[kind.as_str()]).increment(1.0);
        // A stream that is dropped has no client any more.
        let end = StreamEnd::Gone;
        Self { kind, end }
    }

    /// Counts the stream as ended for this reason.
    pub fn end(mut self, end: StreamEnd) {
        self.end = end;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let kind = self.kind.as_str();
        gauge(&names::STREAMS, &[kind]).decrement(1.0);
        counter(&names::STREAMS_ENDED, &[kind, self.end.as_str()]).increment(1);
    }
}
