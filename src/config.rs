//! The settings: typed, validated, with defaults.
//!
//! Pure, any thread. `lua/gangway/config.lua` holds the same defaults for readers and types;
//! a test compares the two. Every complaint names the full path of the field and what it takes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A value as Lua gave it. Functions and userdata are `Other` and never valid here.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
    /// The Lua type's name.
    Other(&'static str),
}

impl Value {
    fn kind(&self) -> String {
        match self {
            Value::Bool(b) => format!("{b}"),
            Value::Number(n) if n.abs() < 1e15 => format!("the number {n}"),
            Value::Number(n) => format!("the number {n:e}"),
            Value::Text(s) => format!("{:?}", s.chars().take(40).collect::<String>()),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a table".into(),
            Value::Other(name) => format!("a {name}"),
        }
    }
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Full path, `review.keys.accept`.
    pub path: String,
    pub problem: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoStart {
    /// When a UI is attached.
    WithUi,
    /// Also headless.
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// Only where the agent's own directory exists.
    Auto,
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// A review comes into view when the user is idle.
    Auto,
    /// It is only announced.
    Never,
    /// It comes into view without waiting for a pause.
    Always,
}

/// A key in the panes; `None` when the user switched it off.
pub type Key = Option<String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    pub accept: Key,
    pub reject: Key,
    pub always: Key,
    pub drop_hunk: Key,
}

/// Keys of insert mode while a suggestion stands at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuggestionKeys {
    pub take: Key,
    pub next: Key,
    pub dismiss: Key,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub auto_start: AutoStart,
    pub pi: bool,
    pub claude: bool,
    /// False leaves `openDiff` out of Claude Code's tools: its own prompt is used instead.
    pub claude_diffs: bool,
    pub aivyx: Enabled,
    pub aivyx_approvals: bool,
    pub rivumi: Enabled,
    pub rivumi_url: Option<String>,
    pub gemini: Enabled,
    pub qwen: Enabled,
    pub copilot: Enabled,
    pub amp: Enabled,
    /// Off unless asked for: its socket is shared with other programs.
    pub codex: bool,
    pub context: bool,
    pub debounce: Duration,
    pub max_wait: Duration,
    /// `None`: the built-in patterns.
    pub exclude: Option<Vec<String>>,
    /// A fixed workspace root instead of the ones Neovim works in.
    pub root: Option<String>,
    pub focus: Focus,
    pub keys: Keys,
    pub bell: bool,
    pub suggestion: SuggestionKeys,
    pub log_level: String,
}

impl Default for Settings {
    fn default() -> Self {
        let key = |s: &str| Some(s.to_owned());
        Self {
            auto_start: AutoStart::WithUi,
            pi: true,
            claude: true,
            claude_diffs: true,
            aivyx: Enabled::Auto,
            aivyx_approvals: true,
            rivumi: Enabled::Auto,
            rivumi_url: None,
            gemini: Enabled::Auto,
            qwen: Enabled::Auto,
            copilot: Enabled::Auto,
            amp: Enabled::Auto,
            codex: false,
            context: true,
            debounce: Duration::from_millis(100),
            max_wait: Duration::from_millis(300),
            exclude: None,
            root: None,
            focus: Focus::Auto,
            keys: Keys {
                accept: key("<localleader>a"),
                reject: key("<localleader>r"),
                always: key("<localleader>A"),
                drop_hunk: key("<localleader>x"),
            },
            bell: false,
            suggestion: SuggestionKeys {
                take: key("<Tab>"),
                next: key("<M-]>"),
                dismiss: key("<C-]>"),
            },
            log_level: "info".into(),
        }
    }
}

/// Reads what the user wrote. Wrong fields keep their default and are complained about, so that
/// one typo never takes the whole plugin away; unknown fields are complained about too.
#[must_use]
pub fn read(value: &Value) -> (Settings, Vec<Complaint>) {
    let mut settings = Settings::default();
    let mut root = Reader { path: String::new(), complaints: Vec::new() };
    root.table(value, &mut |r, name, value| {
        let s = &mut settings;
        match name {
            "auto_start" => r.one_of(
                value,
                &mut s.auto_start,
                &[
                    ("true", AutoStart::WithUi),
                    ("false", AutoStart::Never),
                    ("always", AutoStart::Always),
                ],
            ),
            "agents" => r.table(value, &mut |r, name, value| agents(r, s, name, value)),
            "context" => r.table(value, &mut |r, name, value| context(r, s, name, value)),
            "review" => r.table(value, &mut |r, name, value| review(r, s, name, value)),
            "suggestion" => r.table(value, &mut |r, name, value| suggestion(r, s, name, value)),
            "log_level" => {
                r.one_of(value, &mut s.log_level, &crate::log::LEVELS.map(|l| (l, l.to_owned())))
            }
            _ => return false,
        }
        true
    });
    root.complaints.extend(settings.keys.part());
    (settings, root.complaints)
}

impl Keys {
    /// No key means two things; of two it is the less consequential one.
    fn part(&mut self) -> Vec<Complaint> {
        let mut keys = [
            ("reject", &mut self.reject),
            ("drop_hunk", &mut self.drop_hunk),
            ("accept", &mut self.accept),
            ("always", &mut self.always),
        ];
        let mut complaints = Vec::new();
        for at in 1..keys.len() {
            let (before, rest) = keys.split_at_mut(at);
            let (name, key) = &mut rest[0];
            let taken = before.iter().find(|(_, other)| other.is_some() && **other == **key);
            if let Some((other, _)) = taken {
                complaints.push(Complaint {
                    path: format!("review.keys.{name}"),
                    problem: format!("is the key of review.keys.{other}, and left without one"),
                });
                **key = None;
            }
        }
        complaints
    }
}

const ENABLED: [(&str, Enabled); 3] =
    [("true", Enabled::On), ("false", Enabled::Off), ("auto", Enabled::Auto)];

fn agents(r: &mut Reader, s: &mut Settings, name: &str, value: &Value) -> bool {
    match name {
        "pi" => r.table(value, &mut |r, name, value| match name {
            "enabled" => r.boolean(value, &mut s.pi),
            _ => false,
        }),
        "claude" => r.table(value, &mut |r, name, value| match name {
            "enabled" => r.boolean(value, &mut s.claude),
            "diffs" => r.boolean(value, &mut s.claude_diffs),
            _ => false,
        }),
        "aivyx" => r.table(value, &mut |r, name, value| match name {
            "enabled" => {
                r.one_of(value, &mut s.aivyx, &ENABLED);
                true
            }
            "approvals" => r.boolean(value, &mut s.aivyx_approvals),
            _ => false,
        }),
        "rivumi" => r.table(value, &mut |r, name, value| match name {
            "enabled" => {
                r.one_of(value, &mut s.rivumi, &ENABLED);
                true
            }
            "websocket_url" => r.text(value, &mut s.rivumi_url),
            _ => false,
        }),
        "gemini" => r.switch(value, &mut s.gemini),
        "qwen" => r.switch(value, &mut s.qwen),
        "copilot" => r.switch(value, &mut s.copilot),
        "amp" => r.switch(value, &mut s.amp),
        "codex" => r.table(value, &mut |r, name, value| match name {
            "enabled" => r.boolean(value, &mut s.codex),
            _ => false,
        }),
        _ => return false,
    }
    true
}

fn context(r: &mut Reader, s: &mut Settings, name: &str, value: &Value) -> bool {
    match name {
        "enabled" => r.boolean(value, &mut s.context),
        "debounce_ms" => r.millis(value, &mut s.debounce),
        "max_wait_ms" => r.millis(value, &mut s.max_wait),
        "exclude" => r.texts(value, &mut s.exclude),
        // A function stays in Lua, where `editor/watch` calls it.
        "root" if *value == Value::Other("function") => true,
        "root" => r.text(value, &mut s.root),
        _ => false,
    }
}

fn review(r: &mut Reader, s: &mut Settings, name: &str, value: &Value) -> bool {
    match name {
        "focus" => {
            let words = [("auto", Focus::Auto), ("never", Focus::Never), ("always", Focus::Always)];
            r.one_of(value, &mut s.focus, &words);
            true
        }
        "layout" => {
            let mut only = ();
            r.one_of(value, &mut only, &[("tab", ())]);
            true
        }
        "bell" => r.boolean(value, &mut s.bell),
        "keys" => {
            r.table(value, &mut |r, name, value| match name {
                "accept" => r.key(value, &mut s.keys.accept),
                "reject" => r.key(value, &mut s.keys.reject),
                "always" => r.key(value, &mut s.keys.always),
                "drop_hunk" => r.key(value, &mut s.keys.drop_hunk),
                _ => false,
            });
            true
        }
        _ => false,
    }
}

fn suggestion(r: &mut Reader, s: &mut Settings, name: &str, value: &Value) -> bool {
    match name {
        "keys" => {
            r.table(value, &mut |r, name, value| match name {
                "take" => r.key(value, &mut s.suggestion.take),
                "next" => r.key(value, &mut s.suggestion.next),
                "dismiss" => r.key(value, &mut s.suggestion.dismiss),
                _ => false,
            });
            true
        }
        _ => false,
    }
}

/// Walks the table, keeps the path of where it is and collects complaints.
struct Reader {
    path: String,
    complaints: Vec<Complaint>,
}

impl Reader {
    fn complain(&mut self, problem: impl Into<String>) {
        let path = if self.path.is_empty() { "setup()".to_owned() } else { self.path.clone() };
        self.complaints.push(Complaint { path, problem: problem.into() });
    }

    fn wants(&mut self, what: &str, got: &Value) {
        self.complain(format!("wants {what}, got {}", got.kind()));
    }

    /// Calls `field` for each entry; it returns false for a name it does not know.
    fn table(&mut self, value: &Value, field: &mut dyn FnMut(&mut Self, &str, &Value) -> bool) {
        let map = match value {
            Value::Map(map) => map,
            // An empty Lua table is a list and a map.
            Value::List(list) if list.is_empty() => return,
            other => return self.wants("a table", other),
        };
        for (name, value) in map {
            let before = self.path.len();
            if before > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            if !field(self, name, value) {
                self.complain("no such option (see :help gangway-config)");
            }
            self.path.truncate(before);
        }
    }

    /// The table of an agent that has nothing to set but whether it is served.
    fn switch(&mut self, value: &Value, out: &mut Enabled) {
        self.table(value, &mut |r, name, value| {
            let known = name == "enabled";
            if known {
                r.one_of(value, out, &ENABLED);
            }
            known
        });
    }

    fn one_of<T: Clone>(&mut self, value: &Value, out: &mut T, words: &[(&str, T)]) {
        let word = match value {
            Value::Bool(b) => b.to_string(),
            Value::Text(s) if s != "true" && s != "false" => s.clone(),
            other => other.kind(),
        };
        if let Some((_, found)) = words.iter().find(|(w, _)| *w == word) {
            *out = found.clone();
        } else {
            let quoted = |w: &str| {
                if matches!(w, "true" | "false") { w.to_owned() } else { format!("{w:?}") }
            };
            let names: Vec<String> = words.iter().map(|(w, _)| quoted(w)).collect();
            let names = match names.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            };
            self.wants(&names, value);
        }
    }

    fn boolean(&mut self, value: &Value, out: &mut bool) -> bool {
        match value {
            Value::Bool(b) => *out = *b,
            other => self.wants("true or false", other),
        }
        true
    }

    fn millis(&mut self, value: &Value, out: &mut Duration) -> bool {
        match value {
            Value::Number(n) if *n >= 0.0 && *n <= 60_000.0 => {
                *out = Duration::from_secs_f64(*n / 1000.0);
            }
            other => self.wants("milliseconds between 0 and 60000", other),
        }
        true
    }

    fn text(&mut self, value: &Value, out: &mut Option<String>) -> bool {
        match value {
            Value::Text(s) if !s.is_empty() => *out = Some(s.clone()),
            other => self.wants("a string", other),
        }
        true
    }

    fn texts(&mut self, value: &Value, out: &mut Option<Vec<String>>) -> bool {
        let list = match value {
            Value::List(list) => list,
            other => {
                self.wants("a list of strings", other);
                return true;
            }
        };
        let mut texts = Vec::new();
        for item in list {
            match item {
                Value::Text(s) => texts.push(s.clone()),
                other => {
                    self.wants("a list of strings", other);
                    return true;
                }
            }
        }
        *out = Some(texts);
        true
    }

    fn key(&mut self, value: &Value, out: &mut Key) -> bool {
        match value {
            Value::Bool(false) => *out = None,
            Value::Text(s) if !s.is_empty() => *out = Some(s.clone()),
            other => self.wants("a key such as \"<localleader>a\", or false", other),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        assert_eq!(read(&Value::List(vec![])), (Settings::default(), vec![]));
    }

    #[test]
    fn a_wrong_field_is_named_by_its_full_path_and_keeps_its_default() {
        let keys = map(&[("accept", Value::Number(5.0)), ("reject", Value::Bool(false))]);
        let (settings, complaints) = read(&map(&[("review", map(&[("keys", keys)]))]));
        assert_eq!(settings.keys.reject, None);
        assert_eq!(settings.keys.accept, Settings::default().keys.accept);
        let all: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            [
                "review.keys.accept: wants a key such as \"<localleader>a\", or false, got the number 5"
            ]
        );
    }

    #[test]
    fn a_key_with_two_meanings_keeps_the_harmless_one() {
        let same = || Value::Text("<localleader>r".into());
        let keys = map(&[("accept", same()), ("always", same())]);
        let (settings, complaints) = read(&map(&[("review", map(&[("keys", keys)]))]));
        let keys = settings.keys;
        assert_eq!((keys.accept, keys.always), (None, None));
        assert_eq!(keys.reject.as_deref(), Some("<localleader>r"));
        assert_eq!(
            complaints[0].to_string(),
            "review.keys.accept: is the key of review.keys.reject, and left without one"
        );
        assert_eq!(complaints.len(), 2);
        let none = map(&[("accept", Value::Bool(false)), ("reject", Value::Bool(false))]);
        assert!(read(&map(&[("review", map(&[("keys", none)]))])).1.is_empty());
    }

    #[test]
    fn unknown_fields_are_reported() {
        let (_, complaints) = read(&map(&[("contxt", Value::Bool(true))]));
        assert_eq!(complaints[0].to_string(), "contxt: no such option (see :help gangway-config)");
        let (_, complaints) = read(&Value::Number(5.0));
        assert_eq!(complaints[0].to_string(), "setup(): wants a table, got the number 5");
    }

    #[test]
    fn switches_take_words_and_booleans() {
        let (s, c) = read(&map(&[
            ("auto_start", Value::Text("always".into())),
            ("log_level", Value::Text("loud".into())),
        ]));
        assert_eq!(s.auto_start, AutoStart::Always);
        assert!(c[0].to_string().starts_with("log_level: wants \"off\", \"error\""), "{}", c[0]);
    }
}
