//! The desk: every question that is pending, and the promise of one verdict each.
//!
//! `Desk` is the shared handle (cheap to clone, any thread); agents open and withdraw, the editor
//! lists and decides. The verdict goes to the answer callback that came with the proposal, exactly
//! once, whoever is faster: whatever takes the review out of the ledger owns its answer. Callbacks
//! and the listener run without the lock, on the thread that caused them, and must not block.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Owner, Proposal, Review, ReviewId, Verdict, Withdrawal};

/// Receives the verdict. Called once, without any lock held; must not block.
pub type Answer = Box<dyn FnOnce(Verdict) + Send>;

/// What the editor hears of. Taken in order with `Desk::take_events`.
#[derive(Debug, Clone)]
pub enum Event {
    Opened(Arc<Review>),
    /// The review has its verdict; close its view.
    Closed(Arc<Review>, Verdict),
}

/// Which review a user means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Decide this one: it was seen.
    Seen,
    /// It was never shown: show it instead of deciding.
    Unseen,
}

struct Entry {
    review: Arc<Review>,
    answer: Answer,
    seen: bool,
}

#[derive(Default)]
struct Ledger {
    /// By arrival; the key is the order in which reviews came.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    next_id: u64,
    events: VecDeque<Event>,
    closed_for_good: bool,
}

type Listener = Arc<dyn Fn() + Send + Sync>;

/// Shared handle to all that is pending.
#[derive(Clone, Default)]
pub struct Desk {
    ledger: Arc<Mutex<Ledger>>,
    listener: Arc<Mutex<Option<Listener>>>,
}

/// Taken out of the ledger under the lock, answered after it.
type Ended = (Entry, Verdict);

impl Ledger {
    fn take(&mut self, key: u64, verdict: Verdict) -> Option<Ended> {
        let entry = self.entries.remove(&key)?;
        self.events.push_back(Event::Closed(Arc::clone(&entry.review), verdict.clone()));
        Some((entry, verdict))
    }

    fn take_where(&mut self, verdict: &Verdict, which: impl Fn(&Review) -> bool) -> Vec<Ended> {
        let keys: Vec<u64> =
            self.entries.iter().filter(|(_, e)| which(&e.review)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.take(key, verdict.clone())).collect()
    }

    fn key_of(&self, id: &ReviewId) -> Option<u64> {
        self.entries.iter().find(|(_, e)| e.review.id == *id).map(|(key, _)| *key)
    }

    fn fresh_id(&mut self, wanted: Option<ReviewId>) -> ReviewId {
        if let Some(id) = wanted.filter(|id| self.key_of(id).is_none()) {
            return id;
        }
        loop {
            self.next_id += 1;
            let id = ReviewId(self.next_id.to_string().into());
            if self.key_of(&id).is_none() {
                return id;
            }
        }
    }
}

impl Desk {
    /// Is called after every change, on the changing thread; the editor uses it to wake itself.
    pub fn listen(&self, listener: impl Fn() + Send + Sync + 'static) {
        *lock(&self.listener) = Some(Arc::new(listener));
    }

    /// Puts a question on the desk. One of the same owner and name that is still pending is
    /// rejected and replaced. After `shutdown` the answer is `Reject` at once.
    pub fn open(&self, proposal: Proposal, answer: Answer) -> Arc<Review> {
        let mut ledger = lock(&self.ledger);
        let replaced = if proposal.name.is_empty() {
            Vec::new()
        } else {
            ledger.take_where(&Verdict::Reject, |r| {
                r.owner == proposal.owner && r.name == proposal.name
            })
        };
        let id = ledger.fresh_id(proposal.id.clone());
        let review = Arc::new(Review { id, proposal });
        if ledger.closed_for_good {
            drop(ledger);
            self.finish(replaced);
            answer(Verdict::Reject);
            return review;
        }
        let key = ledger.next;
        ledger.next += 1;
        ledger.entries.insert(key, Entry { review: Arc::clone(&review), answer, seen: false });
        ledger.events.push_back(Event::Opened(Arc::clone(&review)));
        drop(ledger);
        self.finish(replaced);
        review
    }

    /// The user's verdict. False when the review had its answer already.
    pub fn decide(&self, id: &ReviewId, verdict: Verdict) -> bool {
        let ended = {
            let mut ledger = lock(&self.ledger);
            ledger.key_of(id).and_then(|key| ledger.take(key, verdict))
        };
        let found = ended.is_some();
        self.finish(ended);
        found
    }

    /// The owner takes back the questions it gave this name. Returns how many those were.
    pub fn withdraw(&self, owner: Owner, name: &str, why: Withdrawal) -> usize {
        self.end(&Verdict::Withdrawn(why), |r| r.owner == owner && &*r.name == name)
    }

    /// One review, taken back by its owner (a cancelled call, a request file that vanished).
    pub fn withdraw_one(&self, owner: Owner, id: &ReviewId, why: Withdrawal) -> bool {
        self.end(&Verdict::Withdrawn(why), |r| r.owner == owner && r.id == *id) > 0
    }

    /// Everything this owner asked. Returns how many those were.
    pub fn withdraw_all(&self, owner: Owner, why: Withdrawal) -> usize {
        self.end(&Verdict::Withdrawn(why), |r| r.owner == owner)
    }

    /// Rejects whatever is pending and, from now on, whatever comes: Neovim leaves, or the
    /// server stops.
    pub fn shutdown(&self) -> usize {
        lock(&self.ledger).closed_for_good = true;
        self.end(&Verdict::Reject, |_| true)
    }

    /// Takes questions again after `shutdown` (`:IdeStop`, `:IdeStart`).
    pub fn reopen(&self) {
        lock(&self.ledger).closed_for_good = false;
    }

    /// The user has had this review before their eyes.
    pub fn mark_seen(&self, id: &ReviewId) {
        let mut ledger = lock(&self.ledger);
        if let Some(key) = ledger.key_of(id)
            && let Some(entry) = ledger.entries.get_mut(&key)
        {
            entry.seen = true;
        }
    }

    /// What a verdict without an id means: the visible review, else the oldest seen one, else the
    /// oldest, which is then to be shown and not decided.
    #[must_use]
    pub fn target(&self, visible: Option<&ReviewId>) -> Option<(Arc<Review>, Target)> {
        let ledger = lock(&self.ledger);
        let of = |e: &Entry, target| (Arc::clone(&e.review), target);
        let visible = visible.and_then(|id| ledger.entries.values().find(|e| e.review.id == *id));
        visible
            .or_else(|| ledger.entries.values().find(|e| e.seen))
            .map(|e| of(e, Target::Seen))
            .or_else(|| ledger.entries.values().next().map(|e| of(e, Target::Unseen)))
    }

    /// All that is pending, oldest first, each with whether it was seen.
    #[must_use]
    pub fn pending(&self) -> Vec<(Arc<Review>, bool)> {
        lock(&self.ledger).entries.values().map(|e| (Arc::clone(&e.review), e.seen)).collect()
    }

    #[must_use]
    pub fn get(&self, id: &ReviewId) -> Option<Arc<Review>> {
        let ledger = lock(&self.ledger);
        let key = ledger.key_of(id)?;
        ledger.entries.get(&key).map(|e| Arc::clone(&e.review))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.ledger).entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        lock(&self.ledger).events.drain(..).collect()
    }

    fn end(&self, verdict: &Verdict, which: impl Fn(&Review) -> bool) -> usize {
        let ended = lock(&self.ledger).take_where(verdict, which);
        let count = ended.len();
        self.finish(ended);
        count
    }

    /// Answers what was taken out and wakes the listener, with no lock held.
    fn finish(&self, ended: impl IntoIterator<Item = Ended>) {
        for (entry, verdict) in ended {
            (entry.answer)(verdict);
        }
        let listener = lock(&self.listener).clone();
        if let Some(listener) = listener {
            listener();
        }
    }
}

/// A panic while the lock was held leaves a consistent ledger (every change is one step), so
/// poisoning is not a reason to lose the other reviews.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::Kind;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    fn proposal(owner: u64, name: &str) -> Proposal {
        Proposal {
            owner: Owner(owner),
            origin: "Pi".into(),
            name: name.into(),
            id: None,
            kind: Kind::Tool { target: "t".into(), description: String::new() },
            editable: false,
            can_always: false,
            asked: SystemTime::UNIX_EPOCH,
        }
    }

    /// A desk whose answers are kept, in order of arrival.
    #[derive(Default)]
    struct Asked {
        desk: Desk,
        answers: Vec<Arc<Mutex<Vec<Verdict>>>>,
        reviews: Vec<Arc<Review>>,
    }

    impl Asked {
        fn ask(&mut self, proposal: Proposal) -> ReviewId {
            let heard: Arc<Mutex<Vec<Verdict>>> = Arc::default();
            let answer = Arc::clone(&heard);
            let review = self.desk.open(proposal, Box::new(move |v| lock(&answer).push(v)));
            self.answers.push(heard);
            self.reviews.push(Arc::clone(&review));
            review.id.clone()
        }

        fn answer(&self, index: usize) -> Vec<Verdict> {
            lock(&self.answers[index]).clone()
        }
    }

    #[test]
    fn the_same_name_from_one_owner_rejects_the_first_only() {
        let mut asked = Asked::default();
        asked.ask(proposal(1, "a"));
        asked.ask(proposal(2, "a"));
        let third = asked.ask(proposal(1, "a"));
        assert_eq!(asked.answer(0), [Verdict::Reject]);
        assert!(asked.answer(1).is_empty() && asked.answer(2).is_empty());
        assert!(asked.desk.decide(&third, Verdict::AlwaysAllow));
        assert!(!asked.desk.decide(&third, Verdict::Reject), "decided twice");
        assert_eq!(asked.answer(2), [Verdict::AlwaysAllow]);
    }

    #[test]
    fn names_that_are_empty_never_collide() {
        let mut asked = Asked::default();
        asked.ask(proposal(1, ""));
        asked.ask(proposal(1, ""));
        assert_eq!(asked.desk.len(), 2);
    }

    #[test]
    fn an_owner_withdraws_only_what_it_asked() {
        let mut asked = Asked::default();
        asked.ask(proposal(1, "a"));
        let other = asked.ask(proposal(2, "a"));
        assert_eq!(asked.desk.withdraw(Owner(1), "a", Withdrawal::Closed), 1);
        assert!(!asked.desk.withdraw_one(Owner(1), &other, Withdrawal::Cancelled));
        assert_eq!(asked.answer(0), [Verdict::Withdrawn(Withdrawal::Closed)]);
        assert!(asked.answer(1).is_empty());
    }

    #[test]
    fn without_an_id_the_visible_then_the_oldest_seen_then_the_oldest_is_meant() {
        let mut asked = Asked::default();
        let (a, b, c) =
            (asked.ask(proposal(1, "a")), asked.ask(proposal(1, "b")), asked.ask(proposal(1, "c")));
        let target = |visible| asked.desk.target(visible).map(|(r, t)| (r.id.clone(), t));
        assert_eq!(target(None), Some((a.clone(), Target::Unseen)));
        asked.desk.mark_seen(&b);
        assert_eq!(target(None), Some((b, Target::Seen)));
        assert_eq!(target(Some(&c)), Some((c, Target::Seen)));
        assert_eq!(asked.desk.shutdown(), 3);
        assert_eq!(asked.desk.target(Some(&a)).map(|_| ()), None);
    }

    #[test]
    fn after_shutdown_a_question_is_rejected_at_once() {
        let mut asked = Asked::default();
        asked.desk.shutdown();
        asked.ask(proposal(1, "a"));
        assert_eq!(asked.answer(0), [Verdict::Reject]);
        asked.desk.reopen();
        asked.ask(proposal(1, "a"));
        assert!(asked.answer(1).is_empty());
    }

    #[test]
    fn an_answer_may_use_the_desk_again() {
        let desk = Desk::default();
        let again = desk.clone();
        let count = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&count);
        let review = desk.open(
            proposal(1, "a"),
            Box::new(move |_| {
                heard.fetch_add(again.len() + 1, Ordering::Relaxed);
            }),
        );
        desk.decide(&review.id, Verdict::Reject);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Open(u64, u8),
        Decide(usize, bool),
        Withdraw(u64, u8),
        WithdrawOne(usize),
        OwnerLost(u64),
        Shutdown,
        Reopen,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3u64, 0..3u8).prop_map(|(o, n)| Step::Open(o, n)),
            4 => (0..40usize, any::<bool>()).prop_map(|(i, yes)| Step::Decide(i, yes)),
            1 => (0..3u64, 0..3u8).prop_map(|(o, n)| Step::Withdraw(o, n)),
            1 => (0..40usize).prop_map(Step::WithdrawOne),
            1 => (0..3u64).prop_map(Step::OwnerLost),
            1 => Just(Step::Shutdown),
            1 => Just(Step::Reopen),
        ]
    }

    proptest! {
        #[test]
        fn every_question_gets_exactly_one_verdict_in_any_order(steps in prop::collection::vec(step(), 0..60)) {
            let mut asked = Asked::default();
            let name = |n: u8| ["", "x", "x "][usize::from(n)].to_owned();
            for step in steps {
                match step {
                    Step::Open(owner, n) => { asked.ask(proposal(owner, &name(n))); }
                    Step::Decide(i, yes) => if let Some(review) = asked.reviews.get(i) {
                        let verdict = if yes { Verdict::AlwaysAllow } else { Verdict::Dismissed };
                        let pending = asked.answer(i).is_empty();
                        let hit = asked.desk.decide(&review.id, verdict.clone());
                        prop_assert_eq!(hit, pending, "a decision counts exactly while it is pending");
                        if hit { prop_assert_eq!(asked.answer(i), vec![verdict]); }
                    },
                    Step::Withdraw(owner, n) => { asked.desk.withdraw(Owner(owner), &name(n), Withdrawal::Closed); }
                    Step::WithdrawOne(i) => if let Some(review) = asked.reviews.get(i) {
                        asked.desk.withdraw_one(review.owner, &review.id, Withdrawal::Cancelled);
                    },
                    Step::OwnerLost(owner) => {
                        asked.desk.withdraw_all(Owner(owner), Withdrawal::OwnerLost);
                        for (i, review) in asked.reviews.iter().enumerate() {
                            if review.owner == Owner(owner) { prop_assert_eq!(asked.answer(i).len(), 1); }
                        }
                    }
                    Step::Shutdown => { asked.desk.shutdown(); prop_assert!(asked.desk.is_empty()); }
                    Step::Reopen => asked.desk.reopen(),
                }
                for i in 0..asked.answers.len() {
                    let answers = asked.answer(i).len();
                    let pending = asked.desk.get(&asked.reviews[i].id)
                        .is_some_and(|r| Arc::ptr_eq(&r, &asked.reviews[i]));
                    prop_assert_eq!(answers, usize::from(!pending), "review {}", i);
                }
            }
            asked.desk.shutdown();
            for i in 0..asked.answers.len() { prop_assert_eq!(asked.answer(i).len(), 1); }
            // The editor hears of every opening and closing, in order.
            let mut open = std::collections::BTreeSet::new();
            for event in asked.desk.take_events() {
                match event {
                    Event::Opened(r) => prop_assert!(open.insert(Arc::as_ptr(&r))),
                    Event::Closed(r, _) => prop_assert!(open.remove(&Arc::as_ptr(&r))),
                }
            }
            prop_assert!(open.is_empty());
        }
    }
}
