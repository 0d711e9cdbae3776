//! Reads the forms and queries of the pages.

use std::collections::BTreeMap;

use axum::body::{Body, to_bytes};
use marshal_model::limits;
use percent_encoding::percent_decode_str;

/// The fields of a form or a query.
pub(crate) type Fields = BTreeMap<String, String>;

/// Parses `a=b&c=d`; of a field that is given twice, the first counts.
pub(crate) fn fields(text: &str) -> Fields {
    let mut fields = Fields::new();
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    for piece in text.split('&').filter(|piece| !piece.is_empty()) {
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        fields.entry(decode(key)).or_insert_with(|| decode(value));
    }
    fields
}

/// Reads the form in a body; nothing if it does not arrive in time, or is too large.
pub(crate) async fn form(body: Body) -> Fields {
    let most = usize::try_from(limits::HTTP_BODY_BYTES).unwrap_or(usize::MAX);
    let read = tokio::time::timeout(limits::HTTP_BODY_TIMEOUT, to_bytes(body, most));
    let bytes = read.await.ok().and_then(Result::ok).unwrap_or_default();
    fields(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_the_first_counts() {
        let read = fields("a=1+2&b=%C3%A4%26&a=3&c&%zz=%ff");
        assert_eq!(read["a"], "1 2");
        assert_eq!(read["b"], "ä&");
        assert_eq!(read["c"], "");
        assert_eq!(read["%zz"], "\u{fffd}");
    }
}
