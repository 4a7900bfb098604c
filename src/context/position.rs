//! Columns of one line, from bytes to UTF-16 units to characters and back.
//!
//! A line is bytes, not `str`: a buffer may hold anything. Each byte that is no part of a valid
//! UTF-8 sequence counts as one character and one unit, which is how many U+FFFD `lossy` puts in
//! its place, so columns and the text sent beside them always agree. Columns are 0-based; one
//! beyond the line's end is taken as the end, one inside a character as that character's start.

use std::borrow::Cow;
use std::fmt::Write as _;

/// One character of a line: how many bytes it takes there, and how many UTF-16 units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    bytes: usize,
    units: u32,
}

/// The characters of `line` in order.
fn steps(line: &[u8]) -> impl Iterator<Item = Step> + '_ {
    line.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(|character| Step {
            bytes: character.len_utf8(),
            units: u32::try_from(character.len_utf16()).unwrap_or(1),
        });
        valid.chain(chunk.invalid().iter().map(|_| Step { bytes: 1, units: 1 }))
    })
}

/// The UTF-16 column of the byte column `byte`.
#[must_use]
pub fn utf16_from_byte(line: &[u8], byte: usize) -> u32 {
    let head = &line[..byte.min(line.len())];
    if head.is_ascii() {
        return u32::try_from(head.len()).unwrap_or(u32::MAX);
    }
    let mut at = 0;
    let mut units = 0_u32;
    for step in steps(line) {
        if at + step.bytes > byte {
            break;
        }
        at += step.bytes;
        units = units.saturating_add(step.units);
    }
    units
}

/// The byte column of the UTF-16 column `unit`; inside a surrogate pair, the pair's start.
#[must_use]
pub fn byte_from_utf16(line: &[u8], unit: u32) -> usize {
    let mut at = 0;
    let mut units = 0_u32;
    for step in steps(line) {
        if units.saturating_add(step.units) > unit {
            break;
        }
        at += step.bytes;
        units += step.units;
    }
    at
}

/// The column counted in characters (code points) of the byte column `byte`.
#[must_use]
pub fn char_from_byte(line: &[u8], byte: usize) -> u32 {
    let mut at = 0;
    let mut characters = 0_u32;
    for step in steps(line) {
        if at + step.bytes > byte {
            break;
        }
        at += step.bytes;
        characters = characters.saturating_add(1);
    }
    characters
}

/// The byte column of the column `character`, counted in characters (code points).
#[must_use]
pub fn byte_from_char(line: &[u8], character: u32) -> usize {
    let count = usize::try_from(character).unwrap_or(usize::MAX);
    steps(line).take(count).map(|step| step.bytes).sum()
}

/// The line's length in UTF-16 units.
#[must_use]
pub fn utf16_len(line: &[u8]) -> u32 {
    utf16_from_byte(line, line.len())
}

/// The text of `bytes`, with U+FFFD for each byte that is not UTF-8. Unlike the standard library's
/// `from_utf8_lossy`, which may put one mark for two or three bytes, this keeps columns countable.
#[must_use]
pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for _ in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = text.write_char(char::REPLACEMENT_CHARACTER);
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        byte_from_char, byte_from_utf16, char_from_byte, lossy, utf16_from_byte, utf16_len,
    };

    #[test]
    fn columns_of_a_line_with_every_width_of_character() {
        let line = "aé€😀z".as_bytes();
        for (byte, units, characters) in
            [(0, 0, 0), (1, 1, 1), (3, 2, 2), (6, 3, 3), (10, 5, 4), (11, 6, 5)]
        {
            assert_eq!(utf16_from_byte(line, byte), units);
            assert_eq!(char_from_byte(line, byte), characters);
            assert_eq!(byte_from_utf16(line, units), byte);
            assert_eq!(byte_from_char(line, characters), byte);
        }
        assert_eq!(utf16_len(line), 6);
    }

    #[test]
    fn a_column_inside_a_character_means_its_start() {
        let line = "a😀b".as_bytes();
        assert_eq!(utf16_from_byte(line, 3), 1);
        assert_eq!(char_from_byte(line, 4), 1);
        assert_eq!(byte_from_utf16(line, 2), 1);
    }

    #[test]
    fn a_column_beyond_the_line_means_its_end() {
        assert_eq!(utf16_from_byte(b"abc", 99), 3);
        assert_eq!(byte_from_utf16(b"abc", 99), 3);
        assert_eq!(byte_from_char(b"abc", 99), 3);
        assert_eq!(utf16_from_byte(b"", 5), 0);
    }

    #[test]
    fn each_invalid_byte_is_one_unit_and_one_replacement_character() {
        // A lone continuation byte, a cut-off four-byte sequence, 0xFF.
        let line = b"a\x80b\xF0\x9F\x98c\xFF";
        assert_eq!(utf16_len(line), 8);
        assert_eq!(lossy(line).encode_utf16().count(), 8);
        assert_eq!(utf16_from_byte(line, 6), 6);
    }

    /// Bytes that are mostly text, with sequences cut in the middle now and then.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => "[ -~]{0,4}".prop_map(String::into_bytes),
            4 => "\\PC{0,3}".prop_map(String::into_bytes),
            1 => Just("e\u{301}".as_bytes().to_vec()),
            1 => Just("👩‍👩‍👧".as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..3),
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn bytes_to_units_and_back_is_the_same_character_start(line in line(), at in 0_usize..64) {
            let units = utf16_from_byte(&line, at);
            let byte = byte_from_utf16(&line, units);
            prop_assert!(byte <= at.min(line.len()));
            prop_assert!(at.min(line.len()) - byte < 4);
            prop_assert_eq!(utf16_from_byte(&line, byte), units);
            let characters = char_from_byte(&line, at);
            prop_assert_eq!(byte_from_char(&line, characters), byte);
        }

        #[test]
        fn columns_agree_with_the_text_that_is_sent(line in line(), at in 0_usize..64) {
            let byte = byte_from_utf16(&line, utf16_from_byte(&line, at));
            let head = lossy(&line[..byte]).into_owned();
            prop_assert_eq!(head.encode_utf16().count(), utf16_from_byte(&line, at) as usize);
            prop_assert!(lossy(&line).starts_with(head.as_str()));
            prop_assert_eq!(lossy(&line).encode_utf16().count(), utf16_len(&line) as usize);
        }
    }
}
