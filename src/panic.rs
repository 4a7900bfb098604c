//! The last line of defence: a panic anywhere in the plugin becomes a log entry and one message.
//!
//! Every door into our code (Lua functions, autocommand callbacks, drained jobs, tokio tasks) goes
//! through `catch`. Any thread. The hook belongs to this library's own copy of std, so other Rust
//! plugins are not affected and nothing is ever printed on the user's screen.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// What the hook saw on this thread last: message, place and backtrace.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs the hook; later calls do nothing.
pub fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let trace = Backtrace::force_capture();
            let what = payload_text(info.payload());
            LAST.with(|last| *last.borrow_mut() = Some(format!("{what} at {place}\n{trace}")));
            // A tokio task's panic has no door of ours on its stack; log it here, once for all.
            tracing::error!("panic: {what} at {place}\n{trace}");
        }));
    });
}

/// A panic that was caught: `what` names the door, for the user's one message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("internal error in {door}: {what} (details: :IdeLog)")]
pub struct Caught {
    pub door: &'static str,
    pub what: String,
}

/// Runs `f`; a panic in it is logged (by the hook, with backtrace) and returned.
pub fn catch<T>(door: &'static str, f: impl FnOnce() -> T) -> Result<T, Caught> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let what = payload_text(&*payload);
        tracing::error!("caught at {door}: {what}");
        Caught { door, what }
    })
}

/// What the hook recorded for this thread's last panic, with its backtrace.
#[must_use]
pub fn last() -> Option<String> {
    LAST.with(|last| last.borrow().clone())
}

fn payload_text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_with_its_message_and_place() {
        install_hook();
        let caught = catch("test", || -> () { panic!("boom {}", 1) }).unwrap_err();
        assert_eq!(caught.to_string(), "internal error in test: boom 1 (details: :IdeLog)");
        assert!(last().unwrap().contains("panic.rs"));
    }
}
