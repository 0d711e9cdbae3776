//! Here-documents whose bodies the shell leaves as they are.
//!
//! The body begins on the line after its operator, so nothing there may hide that line's end.

use super::{NotPlain, Reader};

/// A here-document whose body has not been read.
pub(super) struct Pending {
    delimiter: String,
    /// Whether the delimiter is quoted, so that nothing in the body is expanded.
    is_literal: bool,
}

impl Reader<'_> {
    /// `<<'NAME'`, `<<"NAME"` or `<<NAME`, of the only here-document of its line and outside of
    /// compound commands.
    pub(super) fn here_document(&mut self) -> Result<(), NotPlain> {
        if !self.has_control_flow {
            return Err(self.not_plain("a here-document"));
        }
        let has_number = self.at > 0 && self.text[self.at - 1].is_ascii_digit();
        let is_odd = matches!(self.peek(2), Some(b'<' | b'-'));
        if has_number || is_odd || self.pending.is_some() || !self.open.is_empty() {
            return Err(self.not_plain("an unusual here-document"));
        }
        let start = self.at + 2;
        let rest = &self.text[start..];
        let blanks = rest
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t'))
            .count();
        let rest = &rest[blanks..];
        let quote = rest.first().copied().filter(|b| matches!(b, b'\'' | b'"'));
        let name_start = usize::from(quote.is_some());
        let length = rest[name_start..]
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
            .count();
        let name_end = name_start + length;
        let is_closed = quote.is_none() || rest.get(name_end).copied() == quote;
        let end = name_end + usize::from(quote.is_some());
        let ends = matches!(
            rest.get(end),
            Some(b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'>')
        );
        if length == 0 || !is_closed || !ends {
            return Err(self.not_plain("an unusual here-document"));
        }
        self.pending = Some(Pending {
            delimiter: String::from_utf8_lossy(&rest[name_start..name_end]).into_owned(),
            is_literal: quote.is_some(),
        });
        self.current.stdin.push(self.texts.len());
        self.at = start + blanks + end;
        Ok(())
    }

    /// Reads the body that begins here, behind a line's end, if one does.
    pub(super) fn read_body(&mut self) -> Result<(), NotPlain> {
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let start = self.at;
        loop {
            let rest = &self.text[self.at..];
            if rest.is_empty() {
                return Err(self.not_plain("a here-document that is never closed"));
            }
            let length = rest.iter().take_while(|b| **b != b'\n').count();
            let is_last = &rest[..length] == pending.delimiter.as_bytes();
            let end = self.at;
            self.at = (end + length + 1).min(self.text.len());
            if is_last {
                let body = &self.text[start..end];
                let is_expanded = |b: &u8| matches!(b, b'$' | b'`' | b'\\');
                if !pending.is_literal && body.iter().any(is_expanded) {
                    return Err(self.not_plain("a here-document that the shell expands"));
                }
                self.texts.push(String::from_utf8_lossy(body).into_owned());
                return Ok(());
            }
        }
    }
}
