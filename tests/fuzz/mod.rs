//! Fuzzing on stable Rust: seeds from `tests/fuzz/<target>/`, mutated and mixed by proptest, which
//! also cuts a finding down to its smallest form.
//!
//! `make test` runs each target's seeds and a fixed set of mutations. `make fuzz` goes on for
//! `FUZZ_SECONDS` with a printed seed; `FUZZ_SEED` repeats it. A finding that was fixed becomes a
//! file among the seeds.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Mutated inputs of a run that has no time limit.
const BRIEF: u32 = 400;
/// Inputs between two looks at the clock.
const BATCH: u32 = 200;
/// Longer inputs say nothing new, in bytes.
const LONGEST: usize = 1 << 16;

/// What parsers trip over.
const TOKENS: [&[u8]; 40] = [
    b"\0",
    b"\n",
    b"\r",
    b"\r\n",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\\udc00",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xc3",
    b"\xe2\x80\xa8",
    "é".as_bytes(),
    "😀".as_bytes(),
    "e\u{301}".as_bytes(),
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b"-0",
    b"1e999",
    b"9223372036854775808",
    b"18446744073709551616",
    b"0.1",
    b"file://",
    b"%00",
    b"%2f",
    b"%zz",
    b"/..",
    b"#",
    b"?",
    b"\x81\x80",
    b"\x00\xff\xff\xff\xff",
];

#[derive(Clone)]
pub struct Input(pub Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Token(Index, usize),
    Cut(Index, Index),
    Double(Index, Index, usize),
    /// Goes on as another seed does.
    Cross(Index, Index, Index),
    End(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        1 => (at(), 0_u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (at(), proptest::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, b)| Change::Insert(at, b)),
        4 => (at(), 0..TOKENS.len()).prop_map(|(at, token)| Change::Token(at, token)),
        2 => (at(), at()).prop_map(|(from, to)| Change::Cut(from, to)),
        1 => (at(), at(), 1_usize..64).prop_map(|(from, to, n)| Change::Double(from, to, n)),
        2 => (at(), at(), at()).prop_map(|(at, seed, from)| Change::Cross(at, seed, from)),
        1 => at().prop_map(Change::End),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change, seeds: &[Vec<u8>]) {
    let place = |bytes: &[u8], at: &Index| at.index(bytes.len() + 1);
    let span = |bytes: &[u8], from: &Index, to: &Index| {
        let (a, b) = (place(bytes, from), place(bytes, to));
        // Mostly short ones.
        a.min(b)..if b % 4 == 0 { a.max(b) } else { a.max(b).min(a.min(b) + 8) }
    };
    match change {
        Change::Flip(at, bit) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Change::Set(at, byte) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Flip(..) | Change::Set(..) => {}
        Change::Insert(at, new) => {
            let at = place(bytes, at);
            bytes.splice(at..at, new.iter().copied());
        }
        Change::Token(at, token) => {
            let at = place(bytes, at);
            bytes.splice(at..at, TOKENS[*token].iter().copied());
        }
        Change::Cut(from, to) => drop(bytes.drain(span(bytes, from, to))),
        Change::Double(from, to, times) => {
            let span = span(bytes, from, to);
            let part = bytes[span.clone()].repeat(*times);
            bytes.splice(span.end..span.end, part);
        }
        Change::Cross(at, seed, from) => {
            let other = &seeds[seed.index(seeds.len())];
            bytes.truncate(place(bytes, at));
            bytes.extend(&other[place(other, from)..]);
        }
        Change::End(at) => bytes.truncate(place(bytes, at)),
    }
    bytes.truncate(LONGEST);
}

fn inputs(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Input> {
    let changes = proptest::collection::vec(change(), 0..12);
    (any::<Index>(), changes).prop_map(move |(seed, changes)| {
        let mut bytes = seeds[seed.index(seeds.len())].clone();
        changes.iter().for_each(|change| apply(&mut bytes, change, &seeds));
        Input(bytes)
    })
}

fn read_seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", dir.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|value| value.parse().ok())
}

/// Gives `check` every seed of the target as it is, and then mutations of them. A panic in it is a
/// finding, as is an error.
#[track_caller]
pub fn run(target: &str, check: impl Fn(&[u8]) -> Result<(), TestCaseError>) {
    let seeds = read_seeds(target);
    for seed in &seeds {
        if let Err(why) = check(seed) {
            panic!("{target}: {why}; a seed: {:?}", Input(seed.clone()));
        }
    }
    let limit = number("FUZZ_SECONDS").map(Duration::from_secs);
    let first =
        number("FUZZ_SEED").unwrap_or_else(|| limit.map_or(0, |_| rand::random::<u32>().into()));
    let strategy = inputs(seeds);
    let (begun, mut seed, mut count) = (Instant::now(), first, 0_u64);
    loop {
        let cases = if limit.is_some() { BATCH } else { BRIEF };
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let ran =
            TestRunner::new_with_rng(config, rng).run(&strategy, |Input(bytes)| check(&bytes));
        match ran {
            Ok(()) => count += u64::from(cases),
            Err(TestError::Fail(why, input)) => {
                panic!("{target}: {why}\ninput: {input:?}\nagain with FUZZ_SEED={seed}")
            }
            Err(TestError::Abort(why)) => panic!("{target}: {why}"),
        }
        let time = begun.elapsed();
        if limit.is_none_or(|limit| time >= limit) {
            if limit.is_some() {
                println!(
                    "{target}: {count} inputs in {} s from FUZZ_SEED={first}, no finding",
                    time.as_secs()
                );
            }
            return;
        }
        seed += 1;
    }
}
