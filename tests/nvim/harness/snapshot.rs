//! What Neovim looks like, and whether it still does.

use std::collections::BTreeMap;

use serde_json::Value;

/// Tab pages, windows with their views, folds, options and jump lists, buffers, registers,
/// mappings, mode: everything `T.snapshot` in `helper.lua` sees.
#[derive(Debug, Clone)]
pub struct Snapshot(pub Value);

impl Snapshot {
    /// The first difference as `where: before -> after`.
    pub fn diff(&self, after: &Snapshot) -> Option<String> {
        self.diff_ignoring(after, &[])
    }

    /// As [`Self::diff`], without the fields named (`"mode"`, `"jumps"`, `"view"`, an option's
    /// name, …).
    pub fn diff_ignoring(&self, after: &Snapshot, ignored: &[&str]) -> Option<String> {
        diff("", &self.0, &after.0, ignored)
    }

    /// Panics with the first difference.
    #[track_caller]
    pub fn assert_same(&self, after: &Snapshot, what: &str) {
        self.assert_same_ignoring(after, &[], what);
    }

    #[track_caller]
    pub fn assert_same_ignoring(&self, after: &Snapshot, ignored: &[&str], what: &str) {
        if let Some(difference) = self.diff_ignoring(after, ignored) {
            panic!("{what}: {difference}");
        }
    }
}

fn diff(path: &str, before: &Value, after: &Value, ignored: &[&str]) -> Option<String> {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> =
                a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))).collect();
            keys.sort_by_key(|key| (*key != "tabs", *key)); // what a user sees first comes first
            keys.into_iter().filter(|key| !ignored.contains(&key.as_str())).find_map(|key| {
                let (x, y) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                diff(
                    &if path.is_empty() { key.clone() } else { format!("{path}.{key}") },
                    x,
                    y,
                    ignored,
                )
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (x, y))| diff(&format!("{path}[{i}]"), x, y, ignored)),
        (Value::Array(a), Value::Array(b)) if a.iter().chain(b).all(Value::is_object) => {
            Some(format!("{path}: {} -> {}: {}", a.len(), b.len(), only_in_one(a, b)))
        }
        _ if before == after => None,
        _ => Some(format!(
            "{path}: {} -> {}",
            super::short(&before.to_string()),
            super::short(&after.to_string())
        )),
    }
}

/// Names the members, by `id` and `name`, that two lists do not share.
fn only_in_one(a: &[Value], b: &[Value]) -> String {
    let id = |v: &Value| (v["id"].clone(), v["name"].clone());
    let missing = |from: &[Value], other: &[Value]| -> Vec<String> {
        from.iter()
            .filter(|v| !other.iter().any(|o| id(o) == id(v)))
            .map(|v| format!("{} {}", v["id"], v["name"]))
            .collect()
    };
    format!("gone {:?}, new {:?}", missing(a, b), missing(b, a))
}

/// Numbers that must not grow: autocommands, buffers, windows, tabs, timers, namespaces, keymaps,
/// libuv handles, and the process's file descriptors (`fds`), threads and resident memory
/// (`rss_kib`), these three on Linux only.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts(pub BTreeMap<String, i64>);

impl Counts {
    pub fn get(&self, name: &str) -> i64 {
        *self.0.get(name).unwrap_or_else(|| panic!("nothing counts {name:?}: {:?}", self.0.keys()))
    }

    /// What has grown by more than `slack`, except memory. Threads may grow by five: libuv starts
    /// its pool of four and tokio its blocking threads when they are first needed.
    pub fn grown(&self, after: &Counts, slack: i64) -> Vec<String> {
        let grown = |(name, n): (&String, &i64)| {
            let now = after.get(name);
            let slack = if name == "threads" { slack.max(5) } else { slack };
            (name != "rss_kib" && now > n + slack).then(|| format!("{name}: {n} -> {now}"))
        };
        self.0.iter().filter_map(grown).collect()
    }
}
