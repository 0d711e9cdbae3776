//! The written form of a conversation: lines of the agent, and between them, each on a line that
//! begins with `@`, what we do.
//!
//! ```text
//! @open 5            which opening (`parties.rs`); only the first line
//! {"type":"ready"}   the agent's
//! @part {"ty         the agent's, without a newline
//! @@text             the agent's line "@text"
//! @prompt TEXT       @slash NAME   @cancel   @goodbye   @eof   @mode NAME
//! @allow 0           answers the last request; 1: the one before
//! @deny 0            @done 0   @refuse 0
//! @wait 250          milliseconds pass
//! ```
//!
//! Whatever else begins with `@` is the agent's, so that every text is a conversation.

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    Prompt(String),
    Slash(String),
    Mode(String),
    Cancel,
    Goodbye,
    Eof,
    /// The request, counted from the last, and whether it is allowed.
    Answer(usize, bool),
    /// The same, of a request to the client.
    Done(usize, bool),
    Wait(u64),
}

/// Steps of one conversation; what comes after them is not looked at.
const STEPS: usize = 4096;
/// The longest wait, in milliseconds.
const LONGEST_WAIT: u64 = 600_000;

/// Reads a conversation: its opening and its steps.
pub(crate) fn read(input: &[u8]) -> (u8, Vec<Step>) {
    let mut opening = 0;
    let mut steps = Vec::new();
    let ends = input.ends_with(b"\n") || input.is_empty();
    let text = if ends {
        &input[..input.len().saturating_sub(1)]
    } else {
        input
    };
    for (at, line) in text.split(|byte| *byte == b'\n').take(STEPS).enumerate() {
        if let Some(number) = line.strip_prefix(b"@open ").filter(|_| at == 0) {
            opening = u8::try_from(count(number) % 256).unwrap_or(0);
            continue;
        }
        let step = line.strip_prefix(b"@").and_then(ours);
        // Adjacent bytes are one step: how they are cut is chosen elsewhere.
        match step.unwrap_or_else(|| Step::Bytes([line, b"\n"].concat())) {
            Step::Bytes(bytes) => match steps.last_mut() {
                Some(Step::Bytes(before)) => before.extend(bytes),
                _ => steps.push(Step::Bytes(bytes)),
            },
            step => steps.push(step),
        }
    }
    (opening, steps)
}

fn count(digits: &[u8]) -> u64 {
    let digits = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .take(9);
    digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}

fn ours(line: &[u8]) -> Option<Step> {
    if line.starts_with(b"@") {
        return Some(Step::Bytes([line, b"\n"].concat()));
    }
    let at = line
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(line.len());
    let (word, rest) = (&line[..at], line.get(at + 1..).unwrap_or_default());
    let text = || String::from_utf8_lossy(rest).into_owned();
    let which = || usize::try_from(count(rest)).unwrap_or(0);
    Some(match word {
        b"part" => Step::Bytes(rest.to_vec()),
        b"prompt" => Step::Prompt(text()),
        b"slash" => Step::Slash(text()),
        b"mode" => Step::Mode(text()),
        b"cancel" => Step::Cancel,
        b"goodbye" => Step::Goodbye,
        b"eof" => Step::Eof,
        b"allow" => Step::Answer(which(), true),
        b"deny" => Step::Answer(which(), false),
        b"done" => Step::Done(which(), true),
        b"refuse" => Step::Done(which(), false),
        b"wait" => Step::Wait(count(rest).min(LONGEST_WAIT)),
        _ => return None,
    })
}
