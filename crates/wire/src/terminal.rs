//! What the supervisor sends to `marshal terminal --frames` inside a sandbox: what is typed at a
//! terminal, and the terminal's size.
//!
//! A frame is one byte for its kind, two for the length (little-endian), then that many bytes. Both
//! ends are the same build, so an unknown frame is an error.

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub enum TerminalFrame {
    /// Bytes that are typed.
    Input(Vec<u8>),
    /// The size from now on.
    Size(TerminalSize),
}

/// A frame of an unknown kind or length.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame for a terminal has the unknown kind {0} or a wrong length")]
pub struct UnknownFrame(u8);

const HEADER_BYTES: usize = 3;
const INPUT: u8 = b'i';
const SIZE: u8 = b's';

/// Appends the frames for bytes that are typed.
pub fn encode_input(bytes: &[u8], to: &mut Vec<u8>) {
    for chunk in bytes.chunks(usize::from(u16::MAX)) {
        // A chunk is never longer than that.
        encode(INPUT, u16::try_from(chunk.len()).unwrap_or(u16::MAX), to);
        to.extend_from_slice(chunk);
    }
}

/// Appends the frame for a size.
pub fn encode_size(size: TerminalSize, to: &mut Vec<u8>) {
    encode(SIZE, 4, to);
    to.extend_from_slice(&size.rows.to_le_bytes());
    to.extend_from_slice(&size.columns.to_le_bytes());
}

fn encode(kind: u8, length: u16, to: &mut Vec<u8>) {
    to.push(kind);
    to.extend_from_slice(&length.to_le_bytes());
}

/// Takes the first whole frame out of a buffer, if one is there.
///
/// # Errors
/// [`UnknownFrame`]
pub fn take_frame(buffer: &mut Vec<u8>) -> Result<Option<TerminalFrame>, UnknownFrame> {
    let Some([kind, low, high]) = buffer.first_chunk::<HEADER_BYTES>().copied() else {
        return Ok(None);
    };
    let end = HEADER_BYTES + usize::from(u16::from_le_bytes([low, high]));
    let Some(body) = buffer.get(HEADER_BYTES..end) else {
        return Ok(None);
    };
    let frame = match (kind, body) {
        (INPUT, bytes) => TerminalFrame::Input(bytes.to_vec()),
        (SIZE, &[a, b, c, d]) => TerminalFrame::Size(TerminalSize {
            rows: u16::from_le_bytes([a, b]),
            columns: u16::from_le_bytes([c, d]),
        }),
        _ => return Err(UnknownFrame(kind)),
    };
    buffer.drain(..end);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_wherever_the_pieces_end() {
        let long = vec![b'x'; 70_000];
        let size = TerminalSize {
            rows: 300,
            columns: 7,
        };
        let mut bytes = Vec::new();
        encode_input(b"ls\r", &mut bytes);
        encode_size(size, &mut bytes);
        encode_input(&long, &mut bytes);
        encode_input(b"", &mut bytes);
        for step in [1, 2, 3, 1000, bytes.len()] {
            let (mut buffer, mut typed, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = take_frame(&mut buffer).expect("frames") {
                    match frame {
                        TerminalFrame::Input(bytes) => typed.extend(bytes),
                        TerminalFrame::Size(size) => sizes.push(size),
                    }
                }
            }
            assert!(buffer.is_empty());
            assert_eq!(sizes, [size]);
            assert_eq!(typed, [b"ls\r".as_slice(), &long].concat());
        }
    }

    #[test]
    fn other_frames_are_errors() {
        for bad in [b"x\0\0".as_slice(), b"s\x03\0abc", b"s\x05\0abcde"] {
            assert_eq!(take_frame(&mut bad.to_vec()), Err(UnknownFrame(bad[0])));
        }
    }
}
