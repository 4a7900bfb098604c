//! 'diffopt' and 'scrollopt' while there are reviews: they are global, and the user's.
//!
//! Neovim's thread. `:diffthis` changes 'scrollopt', which goes back with the last review. What takes
//! Neovim seconds for a large difference (marks within lines, lines aligned within a difference) is
//! off for as long as a review is there for which it would.

use std::cell::RefCell;
use std::sync::Arc;

use super::api::{Api, At, Result};
use crate::review::two_panes::TwoPanes;

#[derive(Default)]
pub(super) struct DiffOptions {
    /// Before the first review put windows into diff mode, and whether windows of the user's were.
    scrollopt: RefCell<Option<(String, bool)>>,
    /// Before the first review that is too large for some of it, and ours.
    diffopt: RefCell<Option<(String, String)>>,
}

impl DiffOptions {
    /// The first review is about to be shown.
    pub fn begin(&self, api: &Api) {
        let before = api.option("scrollopt", At::Global).ok();
        let diffs = api.any_diff().unwrap_or(false);
        *self.scrollopt.borrow_mut() = before.map(|before| (before, diffs));
    }

    /// The last review has gone. The user's own diffs keep what `:diffthis` set for them meanwhile.
    pub fn end(&self, api: &Api) {
        let before = self.scrollopt.borrow_mut().take();
        if let Some((before, diffs)) = before
            && (diffs || !api.any_diff().unwrap_or(true))
            && let Err(error) = api.set_option("scrollopt", before, At::Global)
        {
            tracing::warn!("cannot restore 'scrollopt': {error}");
        }
    }

    /// `shown` are all reviews there are, one that is about to be shown included.
    pub fn fit(&self, api: &Api, shown: &[Arc<TwoPanes>]) {
        if let Err(error) = self.try_fit(api, shown) {
            tracing::warn!("cannot change 'diffopt': {error}");
        }
    }

    fn try_fit(&self, api: &Api, shown: &[Arc<TwoPanes>]) -> Result<()> {
        let words = shown.iter().all(|panes| panes.words);
        let unaligned = shown.iter().filter_map(|panes| panes.unaligned).min();
        let changed = self.diffopt.borrow_mut().take();
        if changed.is_none() && words && unaligned.is_none() {
            return Ok(());
        }
        let now: String = api.option("diffopt", At::Global)?;
        let before = match changed {
            // The user's own change of it counts more.
            Some((before, ours)) if ours != now => {
                if !words || unaligned.is_some() {
                    *self.diffopt.borrow_mut() = Some((before, ours));
                }
                return Ok(());
            }
            Some((before, _)) => before,
            None => now.clone(),
        };
        let wanted = affordable(&before, words, unaligned);
        if wanted != before {
            *self.diffopt.borrow_mut() = Some((before, wanted.clone()));
        }
        if wanted == now { Ok(()) } else { api.set_option("diffopt", wanted, At::Global) }
    }
}

/// 'diffopt' without what takes too long: see `TwoPanes::words` and `TwoPanes::unaligned`.
fn affordable(diffopt: &str, words: bool, unaligned: Option<usize>) -> String {
    let fits = |item: &str| -> String {
        let lines = item.strip_prefix("linematch:").and_then(|n| n.parse::<usize>().ok());
        match (item, lines, unaligned) {
            ("inline:char" | "inline:word", ..) if !words => "inline:simple".into(),
            (_, Some(lines), Some(limit)) if lines >= limit => {
                format!("linematch:{}", limit.saturating_sub(1))
            }
            _ => item.to_owned(),
        }
    };
    diffopt.split(',').map(fits).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_too_long_is_taken_out() {
        let user = "internal,filler,inline:word,linematch:60,algorithm:patience";
        assert_eq!(affordable(user, true, None), user);
        assert_eq!(affordable(user, true, Some(61)), user);
        assert_eq!(
            affordable(user, false, Some(40)),
            "internal,filler,inline:simple,linematch:39,algorithm:patience"
        );
        assert_eq!(affordable("filler,inline:none", false, Some(0)), "filler,inline:none");
        assert_eq!(affordable("linematch:5", true, Some(0)), "linematch:0");
    }
}
