//! The sizes and views of the user's windows, and how they come back.
//!
//! Neovim's thread. The tab line comes with our first tab page and goes with the last; Neovim takes
//! its row from some window and gives it back to another, so that windows squeezed to a line each
//! do not come back alone; and a window whose cursor was in its first row scrolls for it.

use nvim_oxi::mlua::{Table, Value};

use super::api::{Api, Buf, Result, Tab, Win};

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
    views: Vec<Scrolled>,
}

/// Where a window is scrolled to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scrolled {
    win: Win,
    buf: Buf,
    changedtick: i64,
    cursor: (i64, i64),
    /// 1-based.
    topline: i64,
}

impl Scrolled {
    fn of(api: &Api, win: Win) -> Result<Self> {
        let buf = api.win_buf(win)?;
        let (changedtick, cursor) = (api.changedtick(buf)?, api.cursor(win)?);
        Ok(Self { win, buf, changedtick, cursor, topline: topline(api, win)? })
    }

    /// Nobody has moved or changed anything since `before`. With the cursor in the first row Neovim
    /// scrolls by itself when the tab line takes a row.
    fn is_still(&self, before: &Self) -> bool {
        let scrolls = before.topline == before.cursor.0;
        let topline = if scrolls { before.topline } else { self.topline };
        *before == Self { topline, ..*self }
    }

    fn restore(&self, api: &Api) -> Result<()> {
        if !api.win_valid(self.win) || topline(api, self.win)? == self.topline {
            return Ok(());
        }
        let view = api.opts([("topline", Value::Integer(self.topline))])?;
        api.in_win(self.win, move |api| api.func("winrestview", view))
    }
}

fn topline(api: &Api, win: Win) -> Result<i64> {
    let info: Vec<Table> = api.func("getwininfo", win)?;
    info.first().map_or(Ok(1), |info| info.get("topline"))
}

impl Kept {
    /// Opens what changes the room for the user's windows.
    pub fn around<T>(api: &Api, open: impl FnOnce() -> T) -> (T, Option<Self>) {
        let before = api.current_tab().and_then(|tab| {
            let before = Sizes::of(api, tab)?;
            let views = before.wins.iter().map(|(win, ..)| Scrolled::of(api, *win));
            let views = views.collect::<Result<Vec<_>>>()?;
            Ok((tab, before, views))
        });
        let opened = open();
        let kept = before.and_then(|(tab, before, views)| {
            let since = Sizes::of(api, tab)?;
            Ok(Self { tab, before, since, views })
        });
        (opened, kept.ok())
    }

    /// What nobody has changed meanwhile; `None` if somebody has changed the sizes.
    pub fn untouched(&self, api: &Api) -> Option<Untouched<'_>> {
        let now = Sizes::of(api, self.tab).ok()?;
        let same =
            |view: &&Scrolled| Scrolled::of(api, view.win).is_ok_and(|now| now.is_still(view));
        let views = self.views.iter().filter(same);
        (now == self.before || now == self.since)
            .then(|| Untouched { kept: self, views: views.collect() })
    }

    fn restore(&self, api: &Api, views: &[&Scrolled]) -> Result<()> {
        let _quiet = api.quiet()?;
        // A change of one window takes from its neighbour, which has its turn after it.
        for _ in 0..3 {
            let now = Sizes::of(api, self.tab)?;
            let wins = |sizes: &Sizes| sizes.wins.iter().map(|(win, ..)| *win).collect::<Vec<_>>();
            if now.rows != self.before.rows || wins(&now) != wins(&self.before) {
                return Ok(());
            }
            if now == self.before {
                break;
            }
            for (win, height, width) in &self.before.wins {
                api.call::<()>("nvim_win_set_height", (*win, *height))?;
                api.call::<()>("nvim_win_set_width", (*win, *width))?;
            }
        }
        views.iter().try_for_each(|view| view.restore(api))
    }
}

/// Taken before a review's windows go.
pub(super) struct Untouched<'a> {
    kept: &'a Kept,
    views: Vec<&'a Scrolled>,
}

impl Untouched<'_> {
    /// Brings all back, once there is the same room for the same windows.
    pub fn restore(&self, api: &Api) -> Result<()> {
        self.kept.restore(api, &self.views)
    }
}
