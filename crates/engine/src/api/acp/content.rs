//! Converts the blocks of a prompt to one text, which every agent dialect supports.
//!
//! Must not know which agent receives it.

use std::path::{Path, PathBuf};

use super::RpcError;
use super::incoming::Block;
use crate::api::task_rules;
use marshal_model::UntrustedText;
use marshal_model::untrusted::escape_for_display;

/// Returns the text of a prompt. A link into `directory`, where the editor works, becomes a path
/// relative to it, because the agent works in that directory too.
///
/// # Errors
/// [`RpcError::INVALID_PARAMS`] for a block that cannot become text, and for a text that is not a
/// valid prompt.
pub fn prompt_text(blocks: &[Block], directory: &Path) -> Result<UntrustedText, RpcError> {
    let mut text = String::new();
    for block in blocks {
        let piece = block_text(block, directory)?;
        // A link continues the sentence before it; a resource is a paragraph of its own.
        if block.kind == "resource" && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&piece);
    }
    task_rules::check_prompt(&text)
        .map_err(|why| RpcError::invalid_params(format!("the prompt {why}")))?;
    Ok(UntrustedText::new(text))
}

fn block_text(block: &Block, directory: &Path) -> Result<String, RpcError> {
    let missing =
        |what: &str| RpcError::invalid_params(format!("a {what} block lacks its content"));
    match block.kind.as_str() {
        "text" => block.text.clone().ok_or_else(|| missing("text")),
        "resource_link" => {
            let uri = block
                .uri
                .as_deref()
                .ok_or_else(|| missing("resource_link"))?;
            let place = display_uri(uri, directory);
            let name = block.name.as_deref().filter(|name| !name.is_empty());
            Ok(format!("[{}]({place})", name.unwrap_or(&place)))
        }
        "resource" => {
            let resource = block.resource.as_ref().ok_or_else(|| missing("resource"))?;
            let text = resource.text.as_deref().ok_or_else(|| {
                RpcError::invalid_params(
                    "a binary resource cannot be passed to the agent: send a resource with text",
                )
            })?;
            let place = display_uri(&resource.uri, directory);
            Ok(format!("<context ref=\"{place}\">\n{text}\n</context>\n"))
        }
        other => Err(RpcError::invalid_params(format!(
            "a block of type {} is not supported: send text, resource_link or resource",
            escape_for_display(other, 40)
        ))),
    }
}

/// Returns the path relative to the editor's directory, or the URI if it points elsewhere.
fn display_uri(uri: &str, directory: &Path) -> String {
    let path = uri.strip_prefix("file://").and_then(percent_decode);
    let below = path.as_deref().and_then(|path| {
        let below = path.strip_prefix(directory).ok()?;
        below.to_str().map(str::to_owned)
    });
    match below {
        Some(below) if below.is_empty() => ".".to_owned(),
        Some(below) => below,
        None => uri.to_owned(),
    }
}

/// Decodes the percent escapes of a path (RFC 3986); `#`, `?` and what follows them are not part of
/// it.
fn percent_decode(text: &str) -> Option<PathBuf> {
    let text = text.split(['#', '?']).next()?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let value = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: &str) -> Result<String, String> {
        let blocks: Vec<Block> = serde_json::from_str(blocks).expect(blocks);
        let text = prompt_text(&blocks, Path::new("/srv/my project"));
        text.map(UntrustedText::into_raw)
            .map_err(|error| error.message)
    }

    #[test]
    fn blocks_become_one_text_and_links_lead_into_the_workspace() {
        let blocks = r#"[
            {"type":"text","text":"look at "},
            {"type":"resource_link","uri":"file:///srv/my%20project/src/a.rs#L3","name":"a.rs"},
            {"type":"text","text":" and at"},
            {"type":"resource","resource":{"uri":"file:///etc/passwd","text":"x"}},
            {"type":"resource_link","uri":"https://example.com/x","name":""}
        ]"#;
        assert_eq!(
            of(blocks).expect("text"),
            "look at [a.rs](src/a.rs) and at\n<context ref=\"file:///etc/passwd\">\nx\n</context>\n\
             [https://example.com/x](https://example.com/x)"
        );
    }

    #[test]
    fn what_no_text_can_be_made_of_is_refused() {
        for (blocks, part) in [
            ("[]", "is empty"),
            (r#"[{"type":"text","text":" "}]"#, "is empty"),
            (r#"[{"type":"text"}]"#, "lacks its content"),
            (r#"[{"type":"image","data":"x"}]"#, "type image"),
            (
                r#"[{"type":"resource","resource":{"uri":"x","blob":"y"}}]"#,
                "binary",
            ),
        ] {
            let error = of(blocks).expect_err(blocks);
            assert!(error.contains(part), "{blocks}: {error}");
        }
        let long = format!(
            "[{{\"type\":\"text\",\"text\":\"{}\"}}]",
            "x".repeat(marshal_model::limits::PROMPT_BYTES + 1)
        );
        assert!(of(&long).expect_err("too long").contains("the limit is"));
    }
}
