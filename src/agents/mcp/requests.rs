//! What one connection has asked and not been answered, and what is known of each of its diffs.
//!
//! A diff is asked for long before it is on the desk (its file is read first), and may be taken
//! back in between; here both meet. Pure state behind one lock, for any thread; `session` owns it
//! and does what follows from it.

use std::sync::Mutex;

use serde_json::Value;

use super::lock;
use super::rpc::Id;
use crate::review::{ReviewId, Withdrawal};

/// Open diffs of one client; real agents have one to five.
const MAX_DIFFS: usize = 256;
/// Proposed text in all open diffs of one client, in bytes.
const MAX_DIFF_BYTES: usize = 256 << 20;

/// An unanswered `tools/call`.
pub(super) struct Request {
    seq: u64,
    pub id: Id,
    /// The peer took it back: no response.
    pub cancelled: bool,
    diff: Option<Diff>,
}

/// An `openDiff` on its way to the desk, or there.
struct Diff {
    name: String,
    bytes: usize,
    /// Taken back before it reached the desk.
    early: Option<Withdrawal>,
    review: Option<ReviewId>,
}

impl Diff {
    fn is_on_its_way(&self) -> bool {
        self.review.is_none() && self.early.is_none()
    }
}

#[derive(Default)]
struct Open {
    last: u64,
    requests: Vec<Request>,
}

impl Open {
    fn diffs(&self) -> impl Iterator<Item = &Diff> {
        self.requests.iter().filter_map(|request| request.diff.as_ref())
    }

    fn find(&mut self, seq: u64) -> Option<&mut Request> {
        self.requests.iter_mut().find(|request| request.seq == seq)
    }

    fn withdraw(&mut self, why: Withdrawal, which: impl Fn(&Diff) -> bool) -> usize {
        let diffs = self.requests.iter_mut().filter_map(|request| request.diff.as_mut());
        let mut count = 0;
        for diff in diffs.filter(|diff| diff.is_on_its_way() && which(diff)) {
            diff.early = Some(why);
            count += 1;
        }
        count
    }
}

/// Each call has a number of its own here: a peer may use one id twice.
#[derive(Default)]
pub(super) struct Requests(Mutex<Open>);

impl Requests {
    /// Notes a call; returns its number.
    pub fn begin(&self, id: Id) -> u64 {
        let mut open = lock(&self.0);
        open.last += 1;
        let seq = open.last;
        open.requests.push(Request { seq, id, cancelled: false, diff: None });
        seq
    }

    /// Whoever takes a call answers it; nobody else can.
    pub fn take(&self, seq: u64) -> Option<Request> {
        let mut open = lock(&self.0);
        let at = open.requests.iter().position(|request| request.seq == seq)?;
        Some(open.requests.swap_remove(at))
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.0).requests.is_empty()
    }

    /// How many of the calls are diffs.
    pub fn diffs(&self) -> usize {
        lock(&self.0).diffs().count()
    }

    /// The name of a call's diff, if it is one.
    pub fn diff_name(&self, seq: u64) -> Option<String> {
        lock(&self.0).find(seq)?.diff.as_ref().map(|diff| diff.name.clone())
    }

    /// The call is a diff of that name, with `bytes` of proposed text, and `early` if it is taken
    /// back already. One of the same name that is still on its way is refused, as the desk does
    /// with one that is there. False if there is no room for it, given that the user is asked
    /// `owed` questions.
    pub fn book(
        &self,
        seq: u64,
        name: &str,
        bytes: usize,
        owed: usize,
        early: Option<Withdrawal>,
    ) -> bool {
        let mut open = lock(&self.0);
        let waiting = open.diffs().map(|diff| diff.bytes).sum::<usize>();
        if !name.is_empty() {
            open.withdraw(Withdrawal::Closed, |diff| diff.name == name);
        }
        if let Some(request) = open.find(seq) {
            request.diff = Some(Diff { name: name.to_owned(), bytes, early, review: None });
        }
        owed <= MAX_DIFFS && waiting + bytes <= MAX_DIFF_BYTES
    }

    /// An earlier diff of this connection is still on its way to the desk.
    pub fn is_behind(&self, seq: u64) -> bool {
        let open = lock(&self.0);
        let mut earlier = open.requests.iter().filter(|request| request.seq < seq);
        earlier.any(|request| request.diff.as_ref().is_some_and(Diff::is_on_its_way))
    }

    /// Why the diff was taken back before it reached the desk, if it was.
    pub fn withdrawn(&self, seq: u64) -> Option<Withdrawal> {
        lock(&self.0).find(seq)?.diff.as_ref()?.early
    }

    /// The diff is on the desk; why it was taken back in that moment, if it was.
    pub fn opened(&self, seq: u64, id: &ReviewId) -> Option<Withdrawal> {
        let mut open = lock(&self.0);
        let diff = open.find(seq)?.diff.as_mut()?;
        diff.review = Some(id.clone());
        diff.early
    }

    /// Takes back what is on its way, all or of one name. Returns how many those were.
    pub fn withdraw(&self, name: Option<&str>, why: Withdrawal) -> usize {
        lock(&self.0).withdraw(why, |diff| name.is_none_or(|name| diff.name == name))
    }

    /// The peer took back every call of this id. Returns those reviews of it that are on the desk.
    pub fn cancel(&self, id: &Value) -> Vec<ReviewId> {
        let mut reviews = Vec::new();
        for request in &mut lock(&self.0).requests {
            if request.id.value().as_ref() != Some(id) {
                continue;
            }
            request.cancelled = true;
            if let Some(diff) = &mut request.diff {
                diff.early = diff.early.or(Some(Withdrawal::Cancelled));
                reviews.extend(diff.review.clone());
            }
        }
        reviews
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_that_was_taken_back_is_booked_and_never_on_its_way() {
        let requests = Requests::default();
        let seq = requests.begin(Id::null());
        assert!(requests.book(seq, "t", 1, 0, Some(Withdrawal::Closed)));
        assert_eq!(requests.withdrawn(seq), Some(Withdrawal::Closed));
        assert_eq!(requests.withdraw(None, Withdrawal::OwnerLost), 0);
        assert_eq!((requests.diffs(), requests.diff_name(seq).as_deref()), (1, Some("t")));
    }

    #[test]
    fn a_second_diff_of_a_name_refuses_the_first_and_waits_for_no_other() {
        let requests = Requests::default();
        let [first, second, other] = [(); 3].map(|()| requests.begin(Id::null()));
        assert!(requests.book(first, "t", 1, 0, None));
        assert!(requests.book(other, "u", 1, 0, None));
        assert!(requests.is_behind(second));
        assert!(requests.book(second, "t", 1, 0, None));
        assert_eq!(requests.withdrawn(first), Some(Withdrawal::Closed));
        assert!(!requests.is_behind(second), "the first one will not come");
        assert!(requests.is_behind(other));
    }

    #[test]
    fn there_is_an_end_to_what_a_client_may_have_open() {
        let requests = Requests::default();
        let book = |bytes, owed| requests.book(requests.begin(Id::null()), "", bytes, owed, None);
        assert!(book(MAX_DIFF_BYTES, MAX_DIFFS));
        assert!(!book(1, 0));
        assert!(!book(0, MAX_DIFFS + 1));
    }
}
