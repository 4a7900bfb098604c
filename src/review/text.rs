//! A file's text as the lines of a pane, and back, without losing a byte.
//!
//! Pure, any thread. A pane shows lines without their ends: CRLF files show no `^M`, a byte order
//! mark that both sides have is not shown. What was hidden is remembered line by line, so that an
//! untouched pane gives back the very bytes and an edited one keeps the ends of the lines that
//! stayed.

use std::sync::Arc;

use super::hunks;

/// How much of a binary file is kept for display, in bytes.
pub const BINARY_HEAD: usize = 4096;

const BOM: char = '\u{feff}';

/// What is on disk before the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OldText {
    /// There is no such file yet (also: a symbolic link that leads nowhere).
    Missing,
    Text {
        text: Arc<str>,
        /// The bytes are not UTF-8; `text` was decoded from this encoding (as Neovim names it).
        decoded_from: Option<Arc<str>>,
    },
    /// Not text in any of the encodings tried.
    Binary {
        /// The first `BINARY_HEAD` bytes.
        head: Arc<[u8]>,
        /// Length of the whole file in bytes.
        length: u64,
    },
}

impl OldText {
    #[must_use]
    pub fn new(text: &str) -> Self {
        OldText::Text { text: text.into(), decoded_from: None }
    }

    /// Decodes a file's bytes: UTF-8 if they are that, else by a byte order mark, else by the
    /// first of `encodings` (Neovim's names, most likely first) that fits without an error. Bytes
    /// that hold NUL and are in none of these are binary.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, encodings: &[String]) -> Self {
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => return OldText::Text { text: text.into(), decoded_from: None },
            Err(error) => error.into_bytes(),
        };
        if let Some((encoding, skip)) = encoding_rs::Encoding::for_bom(&bytes)
            && let Some(text) =
                encoding.decode_without_bom_handling_and_without_replacement(&bytes[skip..])
        {
            let name = encoding.name().to_ascii_lowercase();
            return OldText::Text { text: text.into(), decoded_from: Some(name.into()) };
        }
        for name in encodings {
            if let Some(text) = decode(&bytes, name) {
                return OldText::Text {
                    text: text.into(),
                    decoded_from: Some(name.as_str().into()),
                };
            }
        }
        let head = &bytes[..bytes.len().min(BINARY_HEAD)];
        OldText::Binary { head: head.into(), length: bytes.len() as u64 }
    }

    /// False only when the bytes were looked at and are text in UTF-8 (or absent).
    #[must_use]
    pub fn needs_encoding(bytes: &[u8]) -> bool {
        std::str::from_utf8(bytes).is_err()
    }
}

/// Decodes with the encoding Neovim calls `name`; `None` when the bytes do not fit or the name
/// says nothing about bytes (`utf-8`, `ucs-bom`, `default`).
fn decode(bytes: &[u8], name: &str) -> Option<String> {
    let name = name.trim().to_ascii_lowercase();
    let name = name.trim_start_matches("8bit-").trim_start_matches("2byte-");
    if matches!(name, "" | "utf-8" | "utf8" | "ucs-bom" | "default") {
        return None;
    }
    // A NUL in a byte encoding is no text; in UTF-16 every other byte is one.
    let wide = name.starts_with("utf-16") || name.starts_with("utf16") || name.starts_with("ucs-2");
    if !wide && bytes.contains(&0) {
        return None;
    }
    if matches!(name, "latin1" | "iso-8859-1" | "latin-1" | "iso_8859-1") {
        return Some(bytes.iter().map(|byte| char::from(*byte)).collect());
    }
    let label = match name {
        "utf-16" | "utf16" | "utf-16be" | "ucs-2" | "ucs-2be" => "utf-16be",
        "utf-16le" | "utf16le" | "ucs-2le" => "utf-16le",
        "cp932" | "sjis" | "japan" => "shift_jis",
        "cp936" | "prc" | "chinese" | "euc-cn" => "gbk",
        "cp949" | "korea" => "euc-kr",
        "cp950" | "taiwan" | "euc-tw" => "big5",
        other => match other.strip_prefix("cp") {
            Some(page) if page.starts_with("12") => {
                return decode_as(bytes, &format!("windows-{page}"));
            }
            Some(page) => return decode_as(bytes, &format!("ibm{page}")),
            None => other,
        },
    };
    decode_as(bytes, label)
}

fn decode_as(bytes: &[u8], label: &str) -> Option<String> {
    let encoding = encoding_rs::Encoding::for_label(label.as_bytes())?;
    encoding.decode_without_bom_handling_and_without_replacement(bytes).map(Into::into)
}

/// How the lines of one side end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endings {
    /// Every line ends with `\n`, or there is no line end at all.
    Lf,
    /// Every line ends with `\r\n`.
    CrLf,
    /// One flag a line, in order: true for `\r\n`. The last line has a flag only if it has an end.
    Mixed(Vec<bool>),
}

/// One side of a review as a pane shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pane {
    /// The lines joined by `\n`, without a final one: exactly the buffer's lines.
    pub body: String,
    pub endings: Endings,
    /// The text starts with a byte order mark that is not shown.
    pub bom_hidden: bool,
    /// The last line has an end. False for an empty text.
    pub final_newline: bool,
    /// The text itself, to give back when nothing was edited.
    text: Arc<str>,
}

impl Pane {
    /// `hide_bom`: a leading byte order mark is not shown (the other side has one too).
    #[must_use]
    pub fn new(text: &Arc<str>, hide_bom: bool) -> Self {
        let shown = match text.strip_prefix(BOM) {
            Some(rest) if hide_bom => rest,
            _ => text,
        };
        let bom_hidden = shown.len() != text.len();
        let final_newline = shown.ends_with('\n');
        let mut body = shown.strip_suffix('\n').unwrap_or(shown);
        // The usual text has none, and is large now and then.
        let carriage_return = memchr::memchr(b'\r', shown.as_bytes());
        let crlf = carriage_return.map_or(0, |first| shown[first..].matches("\r\n").count());
        let ends = if crlf == 0 { 0 } else { shown.matches('\n').count() };
        let (body, endings) = if crlf == 0 {
            (body.to_owned(), Endings::Lf)
        } else {
            let endings = if crlf == ends {
                Endings::CrLf
            } else {
                let flags = shown.split_inclusive('\n').filter(|l| l.ends_with('\n'));
                Endings::Mixed(flags.map(|l| l.ends_with("\r\n")).collect())
            };
            if final_newline {
                body = body.strip_suffix('\r').unwrap_or(body);
            }
            (body.replace("\r\n", "\n"), endings)
        };
        Self { body, endings, bom_hidden, final_newline, text: Arc::clone(text) }
    }

    /// Both sides of a change. A byte order mark is hidden only if both have one; else the one
    /// there is stays visible as a change of the first line.
    #[must_use]
    pub fn pair(old: &Arc<str>, new: &Arc<str>) -> (Self, Self) {
        let both = old.starts_with(BOM) && new.starts_with(BOM);
        (Self::new(old, both), Self::new(new, both))
    }

    /// The text the pane was made from.
    #[must_use]
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    #[must_use]
    pub fn line_count(&self) -> usize {
        self.body.matches('\n').count() + 1
    }

    /// 0-based lines whose end differs from the pane's usual one, for a mark beside them.
    #[must_use]
    pub fn odd_line_ends(&self) -> Vec<u32> {
        let Endings::Mixed(flags) = &self.endings else { return Vec::new() };
        let usual = usual(flags);
        flags
            .iter()
            .enumerate()
            .filter(|(_, crlf)| **crlf != usual)
            .filter_map(|(line, _)| u32::try_from(line).ok())
            .collect()
    }

    /// "CRLF", "LF" or "mixed line ends"; `None` for a text without any line end.
    #[must_use]
    pub fn endings_name(&self) -> Option<&'static str> {
        match &self.endings {
            Endings::CrLf => Some("CRLF"),
            Endings::Mixed(_) => Some("mixed line ends"),
            Endings::Lf if self.final_newline || self.body.contains('\n') => Some("LF"),
            Endings::Lf => None,
        }
    }

    /// The usual end of a line of this pane is `\r\n`.
    #[must_use]
    pub fn usual_is_crlf(&self) -> bool {
        match &self.endings {
            Endings::Lf => false,
            Endings::CrLf => true,
            Endings::Mixed(flags) => usual(flags),
        }
    }

    /// The whole text after the user's edits; `edited` is the buffer's lines joined by `\n`. The
    /// same body gives back the same text, byte for byte; lines that stayed keep their ends, new
    /// ones get the usual end; the end of the file is as it was in the proposal (a proposal that
    /// was empty and no longer is gets a final newline).
    #[must_use]
    pub fn rejoin(&self, edited: &str) -> Arc<str> {
        if edited == self.body {
            return Arc::clone(&self.text);
        }
        let was_empty = self.text.is_empty() || (self.bom_hidden && self.body.is_empty());
        let final_newline = self.final_newline || (was_empty && !edited.is_empty());
        let mut out = String::with_capacity(edited.len() + edited.len() / 16 + 8);
        if self.bom_hidden {
            out.push(BOM);
        }
        match &self.endings {
            Endings::Lf => {
                out.push_str(edited);
                if final_newline {
                    out.push('\n');
                }
            }
            Endings::CrLf => {
                out.push_str(&edited.replace('\n', "\r\n"));
                if final_newline {
                    out.push_str("\r\n");
                }
            }
            Endings::Mixed(flags) => {
                let usual = usual(flags);
                let kept = hunks::kept_lines(&self.body, edited);
                let lines = edited.split('\n').count();
                for (index, line) in edited.split('\n').enumerate() {
                    out.push_str(line);
                    if index + 1 < lines || final_newline {
                        let from = kept.get(index).copied().flatten();
                        let crlf = from.and_then(|l| flags.get(l as usize)).unwrap_or(&usual);
                        out.push_str(if *crlf { "\r\n" } else { "\n" });
                    }
                }
            }
        }
        // An edited text that was emptied is empty: a lone line end would be a line.
        if edited.is_empty() && !self.body.is_empty() {
            out.truncate(if self.bom_hidden { BOM.len_utf8() } else { 0 });
        }
        out.into()
    }
}

/// The more frequent of the two kinds of line end.
fn usual(flags: &[bool]) -> bool {
    flags.iter().filter(|crlf| **crlf).count() * 2 > flags.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pane(text: &str) -> Pane {
        Pane::new(&Arc::from(text), false)
    }

    #[test]
    fn crlf_text_shows_lines_without_carriage_returns() {
        let pane = pane("a\r\nb\r\n");
        assert_eq!((pane.body.as_str(), &pane.endings), ("a\nb", &Endings::CrLf));
        assert_eq!(&*pane.rejoin("a\nB"), "a\r\nB\r\n");
    }

    #[test]
    fn edited_lines_of_a_mixed_file_keep_the_ends_of_their_neighbours() {
        let pane = pane("a\r\nb\nc\r\nd\r\n");
        assert_eq!(pane.odd_line_ends(), vec![1]);
        assert_eq!(&*pane.rejoin("new\na\nb\nc\nd"), "new\r\na\r\nb\nc\r\nd\r\n");
    }

    #[test]
    fn a_lone_carriage_return_stays_in_its_line() {
        let pane = pane("a\rb\n");
        assert_eq!(pane.body, "a\rb");
        assert_eq!(&*pane.rejoin("a\rc"), "a\rc\n");
    }

    #[test]
    fn the_end_of_the_file_stays_as_proposed_when_edited() {
        assert_eq!(&*pane("a\nb").rejoin("a1\nb"), "a1\nb");
        assert_eq!(&*pane("a\nb\n").rejoin("a1\nb"), "a1\nb\n");
        assert_eq!(&*pane("").rejoin("a"), "a\n");
        assert_eq!(&*pane("a\n").rejoin(""), "");
        assert_eq!(&*pane("\n").rejoin(""), "\n", "untouched");
    }

    #[test]
    fn a_byte_order_mark_is_hidden_only_when_both_sides_have_one() {
        let (old, new) = (Arc::from("\u{feff}a\n"), Arc::from("\u{feff}b\n"));
        let (left, right) = Pane::pair(&old, &new);
        assert_eq!((left.body.as_str(), right.body.as_str()), ("a", "b"));
        assert_eq!(&*right.rejoin("c"), "\u{feff}c\n");
        let (left, right) = Pane::pair(&old, &Arc::from("a\n"));
        assert_eq!((left.body.as_str(), right.body.as_str()), ("\u{feff}a", "a"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_decoded_as_the_editor_would() {
        let old = OldText::from_bytes(b"caf\xe9\n".to_vec(), &["utf-8".into(), "latin1".into()]);
        let OldText::Text { text, decoded_from } = old else { panic!("{old:?}") };
        assert_eq!((&*text, decoded_from.as_deref()), ("café\n", Some("latin1")));
        let sjis = OldText::from_bytes(b"\x93\xfa\x96\x7b\n".to_vec(), &["cp932".into()]);
        assert!(matches!(sjis, OldText::Text { text, .. } if &*text == "日本\n"));
        let wide = OldText::from_bytes(b"\xff\xfeh\0\xe9\0".to_vec(), &[]);
        assert!(matches!(wide, OldText::Text { text, .. } if &*text == "hé"));
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\r".to_vec();
        assert!(matches!(
            OldText::from_bytes(png, &["latin1".into()]),
            OldText::Binary { length: 12, .. }
        ));
    }

    proptest! {
        #[test]
        fn any_text_survives_an_untouched_pane(parts in proptest::collection::vec(
            prop_oneof!["[a-z\u{0}é\u{feff}\u{2028}\u{85}]{0,4}", Just("\r".into()), Just("\n".into()), Just("\r\n".into())], 0..24), hide: bool) {
            let text: Arc<str> = parts.concat().into();
            let pane = Pane::new(&text, hide);
            let body = pane.body.clone();
            prop_assert_eq!(pane.rejoin(&body), text);
        }

        #[test]
        fn appending_a_line_changes_nothing_else(lines in proptest::collection::vec("[a-c]{0,2}(\r\n|\n)", 1..12)) {
            let text: Arc<str> = lines.concat().into();
            let pane = Pane::new(&text, false);
            let edited = format!("{}\nzz", pane.body);
            let out = pane.rejoin(&edited);
            prop_assert!(out.starts_with(&*text), "{:?} -> {:?}", text, out);
        }
    }

    #[test]
    fn fuzz_text_an_untouched_pane_gives_it_back_and_an_edited_one_its_lines() {
        crate::fuzz::run("text", |bytes| {
            // What is on disk, the proposal, and the user's edit of it.
            let mut parts = bytes.splitn(3, |byte| *byte == 0x1f);
            let mut part = || parts.next().unwrap_or_default().to_vec();
            let encodings = ["utf-16le", "cp932", "latin1", "no-such-one"].map(str::to_owned);
            let old: Arc<str> = match OldText::from_bytes(part(), &encodings) {
                OldText::Text { text, .. } => text,
                _ => "".into(),
            };
            let new: Arc<str> = String::from_utf8_lossy(&part()).into();
            let edited = String::from_utf8_lossy(&part()).replace('\r', "");
            let (left, right) = Pane::pair(&old, &new);
            for (pane, text) in [(&left, &old), (&right, &new)] {
                prop_assert_eq!(&pane.rejoin(&pane.body), text);
                let lines = u32::try_from(pane.line_count()).unwrap_or(0);
                prop_assert!(pane.odd_line_ends().iter().all(|line| *line < lines));
            }
            if edited == right.body {
                return Ok(());
            }
            let out = right.rejoin(&edited);
            let shown = out.strip_prefix(BOM).filter(|_| right.bom_hidden).unwrap_or(&out);
            let plain = shown.replace("\r\n", "\n");
            let body = match plain.strip_suffix('\n') {
                Some(body) if right.final_newline || new.is_empty() || right.body.is_empty() => {
                    body
                }
                _ => &plain,
            };
            prop_assert_eq!(body, edited);
            Ok(())
        });
    }
}
