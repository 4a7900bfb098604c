//! The sizes of the user's windows, and how they come back.
//!
//! Neovim's thread. The tab line comes with our first tab page and goes with the last; Neovim takes
//! its row from some window and gives it back to another, so that windows squeezed to a line each
//! do not come back alone.

use super::api::{Api, Result, Tab, Win};

#[derive(Debug, PartialEq, Eq)]
struct Sizes {
    /// Rows and columns of each window that is part of the layout.
    wins: Vec<(Win, i64, i64)>,
    /// Rows from the first window's first to the last one's last.
    rows: i64,
}

impl Sizes {
    fn of(api: &Api, tab: Tab) -> Result<Self> {
        let all: Vec<Win> = api.call("nvim_tabpage_list_wins", tab)?;
        let mut wins = Vec::new();
        let (mut top, mut bottom) = (i64::MAX, 0);
        for win in all {
            if api.is_floating(win)? {
                continue;
            }
            let [row, _]: [i64; 2] = api.call("nvim_win_get_position", win)?;
            let height: i64 = api.call("nvim_win_get_height", win)?;
            wins.push((win, height, api.call("nvim_win_get_width", win)?));
            (top, bottom) = (top.min(row), bottom.max(row + height));
        }
        Ok(Self { wins, rows: bottom.saturating_sub(top) })
    }
}

/// The tab page the user was in when the first review opened.
pub(super) struct Kept {
    tab: Tab,
    before: Sizes,
    /// After it had opened.
    since: Sizes,
}

impl Kept {
    /// Opens what changes the room for the user's windows.
    pub fn around<T>(api: &Api, open: impl FnOnce() -> T) -> (T, Option<Self>) {
        let before = api.current_tab().and_then(|tab| Ok((tab, Sizes::of(api, tab)?)));
        let opened = open();
        let kept = before.and_then(|(tab, before)| {
            let since = Sizes::of(api, tab)?;
            Ok(Self { tab, before, since })
        });
        (opened, kept.ok())
    }

    /// Nobody has changed them meanwhile.
    pub fn untouched(&self, api: &Api) -> bool {
        Sizes::of(api, self.tab).is_ok_and(|now| now == self.before || now == self.since)
    }

    /// Brings them back, once there is the same room for the same windows.
    pub fn restore(&self, api: &Api) -> Result<()> {
        let _quiet = api.quiet()?;
        // A change of one window takes from its neighbour, which has its turn after it.
        for _ in 0..3 {
            let now = Sizes::of(api, self.tab)?;
            let wins = |sizes: &Sizes| sizes.wins.iter().map(|(win, ..)| *win).collect::<Vec<_>>();
            if now == self.before
                || now.rows != self.before.rows
                || wins(&now) != wins(&self.before)
            {
                return Ok(());
            }
            for (win, height, width) in &self.before.wins {
                api.call::<()>("nvim_win_set_height", (*win, *height))?;
                api.call::<()>("nvim_win_set_width", (*win, *width))?;
            }
        }
        Ok(())
    }
}
