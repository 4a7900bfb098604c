//! aivyx-coder's questions: request files become reviews, verdicts become response files.
//!
//! A state machine without a clock or a thread of its own: `aivyx::run` calls it on a blocking
//! thread when something has happened. The request file is the only sign of life there is: it is
//! there while aivyx asks, and gone once anybody has answered. Nothing is ever answered without
//! the user's word; what is pending when Neovim leaves is left to aivyx's own prompt.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::Tell;
use super::key::project_key;
use super::request::{Found, Question, Request, Stamp, look};
use crate::context::Root;
use crate::files;
use crate::review::desk::Desk;
use crate::review::{Owner, Proposal, ReviewId, Verdict, Withdrawal};

const REQUEST: &str = "-request.json";
const RESPONSE: &str = "-response.json";

/// How long a request may look half-written before it is called broken: this many looks.
const LOOKS: u32 = 12;
const LOOK_AGAIN: Duration = Duration::from_millis(60);

/// How long a response waits for aivyx after its request has ended.
const PICK_UP: Duration = Duration::from_secs(2);

/// aivyx reads no more of a response than it must; nor do we. In bytes.
const MAX_RESPONSE: u64 = 64 * 1024;

/// What aivyx understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Deny,
    AlwaysAllow,
}

#[derive(Serialize)]
struct Response<'a> {
    schema_version: u32,
    request_id: &'a str,
    decision: Decision,
}

/// The user has dealt with a review.
#[derive(Debug)]
pub(super) struct Decided {
    key: String,
    question: Question,
    /// `None`: closed without a word, so aivyx's prompt has it.
    decision: Option<Decision>,
}

struct Shown {
    question: Question,
    review: ReviewId,
}

struct Partial {
    stamp: Stamp,
    looks: u32,
    again: Instant,
}

struct Sent {
    question: Question,
    /// When the request was first seen to be over.
    over: Option<Instant>,
}

/// One project's pair of files.
#[derive(Default)]
struct Slot {
    root: PathBuf,
    /// The state of the request file that was dealt with.
    known: Option<Stamp>,
    partial: Option<Partial>,
    shown: Option<Shown>,
    /// What the user has dealt with; its file may stay for a while.
    done: Option<Question>,
    sent: Option<Sent>,
    /// What was logged last, so that it is said once.
    complaint: Option<String>,
}

/// Which file system object the watch is on.
type DirId = (u64, u64);

/// Request and response files of the roots.
pub(super) struct Approvals {
    dir: PathBuf,
    desk: Desk,
    owner: Owner,
    slots: BTreeMap<String, Slot>,
    verdicts: UnboundedSender<Decided>,
    /// Names of files that something happened to; an empty one stands for all.
    events: UnboundedSender<String>,
    watch: Option<(RecommendedWatcher, DirId)>,
    unwatched: bool,
    /// Set before our reviews are taken back: no verdict from then on is the user's.
    leaving: Arc<AtomicBool>,
    tell: Tell,
}

impl Approvals {
    /// `state`: aivyx's state directory.
    pub(super) fn new(
        state: &Path,
        desk: Desk,
        owner: Owner,
        verdicts: UnboundedSender<Decided>,
        events: UnboundedSender<String>,
        leaving: Arc<AtomicBool>,
        tell: Tell,
    ) -> Self {
        let dir = state.join("editor-approval");
        let slots = BTreeMap::new();
        let (watch, unwatched) = (None, false);
        Self { dir, desk, owner, slots, verdicts, events, watch, unwatched, leaving, tell }
    }

    /// Follows the roots. Returns true if there is a new one to look at.
    pub(super) fn set_roots(&mut self, roots: &[Root]) -> bool {
        let wanted: BTreeMap<String, &Path> =
            roots.iter().map(|root| (project_key(&root.real), root.real.as_path())).collect();
        let gone: Vec<String> =
            self.slots.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            if let Some(mut slot) = self.slots.remove(&key) {
                self.withdraw(&mut slot);
            }
        }
        let mut new = false;
        for (key, root) in wanted {
            self.slots.entry(key).or_insert_with(|| {
                new = true;
                Slot { root: root.to_path_buf(), ..Slot::default() }
            });
        }
        new
    }

    /// The slow poll: what the watch has missed, and the watch itself.
    pub(super) fn poll(&mut self, now: Instant) {
        self.watch_directory();
        for key in self.keys() {
            self.examine(&key, false, now);
        }
    }

    /// Something happened to the file `name`; empty: to any of them.
    pub(super) fn touched(&mut self, name: &str, now: Instant) {
        if name.is_empty() {
            for key in self.keys() {
                self.examine(&key, true, now);
            }
        } else if let Some(key) = name.strip_suffix(REQUEST) {
            if self.slots.contains_key(key) {
                self.examine(key, true, now);
            } else {
                tracing::debug!("{name} is a request from another project");
            }
        }
    }

    /// Half-written files that are due for another look, and responses nobody fetched.
    pub(super) fn due(&mut self, now: Instant) {
        for key in self.keys() {
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            if slot.partial.as_ref().is_some_and(|partial| partial.again <= now) {
                self.examine(&key, true, now);
            }
            self.tidy(&key, now);
        }
    }

    /// When `due` has something to do next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let slots = self.slots.values();
        let partial = slots.clone().filter_map(|slot| slot.partial.as_ref().map(|p| p.again));
        let over = slots.filter_map(|slot| Some(slot.sent.as_ref()?.over? + PICK_UP));
        partial.chain(over).min()
    }

    /// Writes the answer, if aivyx still asks this very question.
    pub(super) fn decided(&mut self, decided: Decided, now: Instant) {
        let Decided { key, question, decision } = decided;
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if slot.shown.as_ref().is_some_and(|shown| shown.question == question) {
            slot.shown = None;
        }
        slot.done = Some(question.clone());
        let Some(decision) = decision else { return };
        let id = &question.id;
        match look(&self.dir, &format!("{key}{REQUEST}"), &slot.root, None) {
            Found::Whole(_, found) if found.question == question => {}
            _ => {
                tracing::info!("aivyx-coder no longer asks {id}: nothing is answered");
                return;
            }
        }
        match self.respond(&key, id, decision) {
            Ok(()) => {
                tracing::info!("aivyx-coder's request {id}: {decision:?}");
                if let Some(slot) = self.slots.get_mut(&key) {
                    slot.sent = Some(Sent { question, over: None });
                }
            }
            Err(error) => {
                (self.tell)(format!(
                    "aivyx-coder gets no answer, answer it in its terminal: {error}"
                ));
            }
        }
        self.examine(&key, true, now);
    }

    /// The roots' state for `status()`: how many are watched, and whether events arrive.
    pub(super) fn watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Nothing is asked any more (the agent's directory is gone, or the plugin stops): takes back
    /// what is shown. Responses stay, aivyx may be about to fetch them.
    pub(super) fn stop(&mut self) {
        for key in self.keys() {
            if let Some(mut slot) = self.slots.remove(&key) {
                self.withdraw(&mut slot);
            }
        }
        self.watch = None;
    }

    fn keys(&self) -> Vec<String> {
        self.slots.keys().cloned().collect()
    }

    fn examine(&mut self, key: &str, force: bool, now: Instant) {
        let Some(mut slot) = self.slots.remove(key) else { return };
        let name = format!("{key}{REQUEST}");
        let known = slot.known.as_ref().filter(|_| !force && slot.partial.is_none());
        let found = look(&self.dir, &name, &slot.root, known);
        let (mut asks, mut over) = (None, true);
        match found {
            Found::Same => {
                self.slots.insert(key.to_owned(), slot);
                return;
            }
            Found::Nothing => {
                (slot.known, slot.partial, slot.complaint) = (None, None, None);
            }
            Found::Partial(stamp) => {
                // What is shown stays until it is known what comes.
                over = false;
                slot.partial = half_written(slot.partial.take(), stamp, now);
                if let Some(partial) = slot.partial.take_if(|partial| partial.looks > LOOKS) {
                    slot.known = Some(partial.stamp);
                    complain(&mut slot, &name, "it never became whole".to_owned());
                    over = true;
                }
            }
            Found::Refused(stamp, why) => {
                (slot.known, slot.partial) = (stamp, None);
                complain(&mut slot, &name, why);
            }
            Found::Whole(stamp, request) => {
                (slot.known, slot.partial, slot.complaint) = (Some(stamp), None, None);
                asks = Some(request);
            }
        }
        if let Some(request) = asks {
            let question = &request.question;
            if let Some(sent) = &mut slot.sent {
                sent.over = (sent.question != *question).then(|| sent.over.unwrap_or(now));
            }
            if slot.shown.as_ref().is_none_or(|shown| shown.question != *question) {
                let before = self.withdraw(&mut slot);
                if slot.done.as_ref() != Some(question) {
                    self.show(key, &mut slot, *request, before);
                }
            }
        } else if over {
            self.withdraw(&mut slot);
            if let Some(sent) = &mut slot.sent {
                sent.over.get_or_insert(now);
            }
        }
        self.slots.insert(key.to_owned(), slot);
    }

    /// `before`: what was shown until now.
    fn show(&self, key: &str, slot: &mut Slot, request: Request, before: Option<Shown>) {
        if self.leaving.load(Ordering::Acquire) {
            return;
        }
        let Request { question, kind, asked } = request;
        // A key may be about to decide the old text, which still stands there, by that id.
        let fresh = before.is_none_or(|before| before.question.id != question.id);
        let id = fresh.then(|| ReviewId(question.id.as_str().into()));
        let proposal = Proposal {
            owner: self.owner,
            origin: "aivyx-coder".into(),
            // Without a name: two of one name would make the desk reject the first, and nobody
            // but the user may do that.
            name: "".into(),
            id,
            kind,
            editable: false,
            can_always: true,
            asked,
        };
        let (verdicts, leaving) = (self.verdicts.clone(), Arc::clone(&self.leaving));
        let on_desk = Arc::new(AtomicBool::new(false));
        let users = Arc::clone(&on_desk);
        let (key, decided) = (key.to_owned(), question.clone());
        let answer = move |verdict| {
            // A desk that is closed rejects at once, and one that is being closed rejects
            // everything: that is not the user's word.
            if !users.load(Ordering::Acquire) || leaving.load(Ordering::Acquire) {
                return;
            }
            let decision = match verdict {
                Verdict::Accept { .. } => Some(Decision::Allow),
                Verdict::AlwaysAllow => Some(Decision::AlwaysAllow),
                Verdict::Reject => Some(Decision::Deny),
                Verdict::Dismissed => None,
                Verdict::Withdrawn(_) => return,
            };
            // Fails only when nobody is left to write the response.
            let _ = verdicts.send(Decided { key, question: decided, decision });
        };
        let review = self.desk.open(proposal, Box::new(answer));
        on_desk.store(true, Ordering::Release);
        if self.desk.get(&review.id).is_some() {
            slot.shown = Some(Shown { question, review: review.id.clone() });
        }
    }

    /// Takes back what is shown, and says what that was.
    fn withdraw(&self, slot: &mut Slot) -> Option<Shown> {
        let shown = slot.shown.take()?;
        self.desk.withdraw_one(self.owner, &shown.review, Withdrawal::Closed);
        Some(shown)
    }

    fn respond(&self, key: &str, request: &str, decision: Decision) -> std::io::Result<()> {
        let response = Response { schema_version: 1, request_id: request, decision };
        files::write_private(&self.response(key), &serde_json::to_vec(&response)?)
    }

    /// Removes our response if aivyx has not taken it though its request is over.
    fn tidy(&mut self, key: &str, now: Instant) {
        #[derive(Deserialize)]
        struct Id {
            request_id: String,
        }
        let path = self.response(key);
        let Some(slot) = self.slots.get_mut(key) else { return };
        let over = |sent: &mut Sent| sent.over.is_some_and(|over| over + PICK_UP <= now);
        let Some(sent) = slot.sent.take_if(over) else { return };
        let id = files::read_own(&path, MAX_RESPONSE).ok();
        let id = id.and_then(|bytes| serde_json::from_slice::<Id>(&bytes).ok());
        if id.is_some_and(|id| id.request_id == sent.question.id)
            && let Err(error) = std::fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }

    fn response(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}{RESPONSE}"))
    }

    /// Puts the watch on the directory, again if it was removed and made anew. Makes it if it is
    /// missing, so that aivyx's own umask does not decide who may write there.
    fn watch_directory(&mut self) {
        let id = match std::fs::symlink_metadata(&self.dir) {
            Ok(meta) => {
                if self.watch.as_ref().is_some_and(|(_, id)| *id == (meta.dev(), meta.ino())) {
                    return;
                }
                // What a generous umask made of it, before anything in it is believed. A
                // directory that all may write to was made so on purpose: it is left alone.
                if self.watch.is_none() && meta.mode() & 0o022 == 0o020 {
                    self.make_directory();
                }
                files::tidy(&self.dir);
                Some((meta.dev(), meta.ino()))
            }
            Err(_) => {
                self.make_directory();
                std::fs::symlink_metadata(&self.dir).ok().map(|meta| (meta.dev(), meta.ino()))
            }
        };
        self.watch = None;
        let Some(id) = id else { return };
        let events = self.events.clone();
        let watcher = notify::recommended_watcher(move |event| announce(event, &events)).and_then(
            |mut watcher| {
                watcher.watch(&self.dir, RecursiveMode::NonRecursive)?;
                Ok(watcher)
            },
        );
        match watcher {
            Ok(watcher) => {
                (self.watch, self.unwatched) = (Some((watcher, id)), false);
                // What happened while nobody watched.
                let _ = self.events.send(String::new());
            }
            Err(error) if !self.unwatched => {
                self.unwatched = true;
                tracing::warn!("{} is looked at now and then: {error}", self.dir.display());
            }
            Err(_) => {}
        }
    }

    fn make_directory(&self) {
        if let Err(error) = files::private_dir(&self.dir) {
            tracing::debug!("{error}");
        }
    }
}

/// Another look at a file that may still be written. A file that changes starts from the beginning.
fn half_written(before: Option<Partial>, stamp: Stamp, now: Instant) -> Option<Partial> {
    let looks = before.filter(|before| before.stamp == stamp).map_or(1, |before| before.looks + 1);
    Some(Partial { stamp, looks, again: now + LOOK_AGAIN })
}

fn complain(slot: &mut Slot, name: &str, why: String) {
    if slot.complaint.as_ref() != Some(&why) {
        tracing::warn!("aivyx-coder's request {name} is ignored: {why}");
        slot.complaint = Some(why);
    }
}

/// Passes on what can change a request, on the watcher's own thread. Reading a file gives events
/// too: those are left out, or each look would cause the next.
fn announce(event: notify::Result<notify::Event>, to: &UnboundedSender<String>) {
    let Ok(event) = event else {
        let _ = to.send(String::new());
        return;
    };
    let counts = match event.kind {
        EventKind::Any | EventKind::Create(_) | EventKind::Remove(_) => true,
        EventKind::Modify(kind) => !matches!(kind, ModifyKind::Metadata(_)),
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        EventKind::Other => false,
    };
    if event.need_rescan() {
        let _ = to.send(String::new());
    } else if counts {
        let names = event.paths.iter().filter_map(|path| path.file_name()?.to_str());
        for name in names.filter(|name| name.ends_with(REQUEST)) {
            let _ = to.send(name.to_owned());
        }
    }
}
