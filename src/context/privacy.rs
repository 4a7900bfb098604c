//! The one filter between what the user sees and what any agent may learn.
//!
//! Owns the exclude patterns and the sharing switches. Every `Snapshot` goes through `filter` once,
//! before it reaches the `watch` channel, so that no agent can forget it; mentions and tools ask
//! `allows`. Where a path's symbolic links lead is asked by the caller, who may have to wait for it;
//! a file of which that is not known is private.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::Snapshot;

/// What is private unless the user says otherwise. Later patterns win over earlier ones, so a
/// public key is no secret unless it lies in `.ssh`.
pub const DEFAULT_EXCLUDE: &[&str] = &[
    // Private keys by OpenSSH's names, with what people append (`id_rsa_work`, `id_rsa.old`).
    "id_{rsa,dsa,ecdsa,ed25519}*",
    "!*.pub",
    ".ssh/**",
    // Environment files: `.env`, `.env.local`, `.envrc`.
    ".env*",
    "*.env",
    // Keys and key stores by their formats.
    "*.{pem,key,p8,p12,pfx,ppk,jks,keystore,keytab,kdbx,kdb,gpg,age}",
    ".gnupg/**",
    // Passwords and tokens of programs.
    "{.,_}netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".vault-token",
    ".aws/credentials",
    ".cargo/credentials{,.toml}",
    ".gem/credentials",
    ".docker/config.json",
    ".kube/config",
    ".config/gh/hosts.yml",
    ".config/gcloud/**",
    ".password-store/**",
    // Where pass and gopass let people edit a secret.
    "/dev/shm/{pass,gopass}*/**",
    "credentials.json",
    "{secret,secrets}.{json,toml,yml,yaml}",
    "*.tfvars",
    "*.tfstate",
    "/etc/{shadow,gshadow,sudoers}*",
];

/// Names the pattern that cannot be used and says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?}: {reason}")]
pub struct PatternError {
    /// As the user wrote it.
    pub pattern: String,
    pub reason: String,
}

/// The sharing switch (`:IdeShare`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Share {
    #[default]
    On,
    Off,
}

/// What was said of folders, by their real paths.
pub type Switches = BTreeMap<PathBuf, Share>;

/// What was said of `path` or of the nearest folder above it; `On` where nothing was.
#[must_use]
pub fn nearest(switches: &Switches, path: &Path) -> Share {
    path.ancestors().find_map(|dir| switches.get(dir).copied()).unwrap_or_default()
}

/// Exclude patterns and the sharing switches. Cheap to clone.
///
/// A pattern is a glob: `*` and `?` stay within one name, `**` crosses directories, `{a,b}` and
/// `[a-z]` as usual. It is compared without regard to case with the file's absolute path and with
/// the path its symbolic links lead to; either is enough. A pattern that does not start with `/`
/// matches at any depth (`**/` is implied), `~/` is the home directory, and one that matches a
/// directory covers everything in it. `!pattern` takes back what earlier patterns matched. A folder
/// that an absolute pattern names is meant by all its names: Neovim resolves the one it works in.
#[derive(Debug, Clone)]
pub struct Privacy {
    exclude: GlobSet,
    /// One for each glob of `exclude`: true if it takes back.
    negated: Vec<bool>,
    /// Of the project the user is in: off stops everything.
    pub sharing: Share,
    /// Of all projects: the files of one that is off are private wherever the user is.
    pub switches: Switches,
}

impl Default for Privacy {
    fn default() -> Self {
        Self {
            exclude: GlobSet::empty(),
            negated: Vec::new(),
            sharing: Share::On,
            switches: Switches::new(),
        }
    }
}

impl Privacy {
    /// `home` is what `~/` stands for; without one, patterns that start with it are refused. `real`
    /// tells where a path's symbolic links lead (`paths::real_path`), `None` where that is unknown.
    pub fn new<P: AsRef<str>>(
        patterns: &[P],
        home: Option<&Path>,
        sharing: Share,
        real: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Result<Self, PatternError> {
        let mut set = GlobSetBuilder::new();
        let mut negated = Vec::new();
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let refuse = |reason: String| PatternError { pattern: pattern.to_owned(), reason };
            let (glob, takes_back) = spell_out(pattern, home).map_err(refuse)?;
            let elsewhere = other_spelling(&glob, &real);
            for glob in elsewhere.into_iter().chain([glob]) {
                for glob in [format!("{glob}/**"), glob] {
                    let glob = GlobBuilder::new(&glob)
                        .literal_separator(true)
                        .case_insensitive(true)
                        .backslash_escape(true)
                        .empty_alternates(true)
                        .build()
                        .map_err(|error| refuse(error.kind().to_string()))?;
                    set.add(glob);
                    negated.push(takes_back);
                }
            }
        }
        let exclude = set.build().map_err(|error| PatternError {
            pattern: error.glob().unwrap_or_default().to_owned(),
            reason: error.kind().to_string(),
        })?;
        Ok(Self { exclude, negated, sharing, switches: Switches::new() })
    }

    /// A pattern or a project that is not shared covers this file, by its own path or by where its
    /// symbolic links lead (`real`); or where they lead is not known.
    #[must_use]
    pub fn excludes(&self, path: &Path, real: Option<&Path>) -> bool {
        !(self.exclude.is_empty() && self.switches.is_empty())
            && (self.matches(path) || real.is_none_or(|real| real != path && self.matches(real)))
    }

    /// The file may be told to agents now: sharing is on and no pattern covers it.
    #[must_use]
    pub fn allows(&self, path: &Path, real: Option<&Path>) -> bool {
        self.sharing == Share::On && !self.excludes(path, real)
    }

    /// What agents may learn of `snapshot`. With sharing off that is the folders (they are in our
    /// lock files anyway) and nothing else. An excluded file is in none of the parts: if it is the
    /// active one, there is no active file. `real` tells where a path's symbolic links lead.
    #[must_use]
    pub fn filter(&self, snapshot: &Snapshot, real: impl Fn(&Path) -> Option<PathBuf>) -> Snapshot {
        if self.sharing == Share::Off || !snapshot.sharing {
            return Snapshot {
                sharing: false,
                roots: snapshot.roots.clone(),
                focused: snapshot.focused,
                ..Snapshot::default()
            };
        }
        let open = |path: &PathBuf| !self.excludes(path, real(path).as_deref());
        Snapshot {
            sharing: true,
            active: snapshot.active.clone().filter(|file| open(&file.path)),
            files: snapshot.files.iter().filter(|file| open(&file.path)).cloned().collect(),
            diagnostics: snapshot
                .diagnostics
                .iter()
                .filter(|(path, _)| open(path))
                .map(|(path, list)| (path.clone(), list.clone()))
                .collect(),
            roots: snapshot.roots.clone(),
            focused: snapshot.focused,
        }
    }

    fn matches(&self, path: &Path) -> bool {
        if nearest(&self.switches, path) == Share::Off {
            return true;
        }
        let last = self.exclude.matches(path).last().copied();
        last.is_some_and(|index| self.negated.get(index) == Some(&false))
    }
}

/// The glob for absolute paths that a user's pattern means, and whether it takes back.
fn spell_out(pattern: &str, home: Option<&Path>) -> Result<(String, bool), String> {
    let (body, takes_back) = match pattern.strip_prefix('!') {
        Some(rest) => (rest, true),
        None => (pattern, false),
    };
    let body = body.strip_suffix('/').unwrap_or(body);
    if body.trim().is_empty() || body == "~" {
        return Err("names no file".to_owned());
    }
    let glob = if let Some(rest) = body.strip_prefix("~/") {
        let home = home.and_then(Path::to_str).ok_or("the home directory is not known")?;
        format!("{}/{rest}", globset::escape(home.trim_end_matches('/')))
    } else if body.starts_with('/') || body.starts_with("**/") || Path::new(body).is_absolute() {
        body.to_owned()
    } else {
        format!("**/{body}")
    };
    Ok((glob, takes_back))
}

/// The same glob with the folders it names replaced by where their symbolic links lead, if that is
/// elsewhere.
fn other_spelling(glob: &str, real: impl Fn(&Path) -> Option<PathBuf>) -> Option<String> {
    const SPECIAL: [char; 7] = ['*', '?', '[', ']', '{', '}', '!'];
    let mut named = PathBuf::new();
    let mut rest = Path::new(glob).components();
    let mut left = rest.as_path();
    while let Some(part) = rest.next() {
        match part {
            Component::RootDir => named.push("/"),
            Component::Normal(name) => match name.to_str() {
                Some(name) if !name.contains(SPECIAL) && !name.contains('\\') => named.push(name),
                _ => break,
            },
            _ => break,
        }
        left = rest.as_path();
    }
    if !named.is_absolute() {
        return None;
    }
    let real = real(&named).filter(|real| *real != named)?;
    let mut glob = globset::escape(real.to_str()?.trim_end_matches('/'));
    if !left.as_os_str().is_empty() {
        glob.push('/');
        glob.push_str(left.to_str()?);
    }
    Some(glob)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::context::paths;
    use crate::context::{ActiveFile, Diagnostic, OpenFile, Position, Range, Root, Severity};

    fn excludes(privacy: &Privacy, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        privacy.excludes(path, paths::real_path(path).as_deref())
    }

    fn defaults() -> Privacy {
        Privacy::new(DEFAULT_EXCLUDE, Some(Path::new("/home/u")), Share::On, paths::real_path)
            .unwrap()
    }

    #[test]
    fn secrets_are_private_by_default_and_sources_are_not() {
        let privacy = defaults();
        for path in [
            "/p/.env",
            "/p/.env.local",
            "/p/.envrc",
            "/p/.ENV",
            "/p/prod.env",
            "/p/.env.d/x",
            "/home/u/.ssh/config",
            "/home/u/.ssh/id_rsa.pub",
            "/p/id_rsa",
            "/p/id_ed25519_work",
            "/p/tls/server.pem",
            "/p/tls/server.KEY",
            "/home/u/.netrc",
            "/home/u/_netrc",
            "/home/u/.aws/credentials",
            "/home/u/.cargo/credentials",
            "/home/u/.cargo/credentials.toml",
            "/home/u/.npmrc",
            "/home/u/.pypirc",
            "/home/u/.git-credentials",
            "/home/u/pw.kdbx",
            "/p/config/secrets.yml",
            "/etc/shadow",
            "/dev/shm/pass.a1b2/c3-mail.txt",
        ] {
            assert!(excludes(&privacy, path), "{path} leaks");
        }
        for path in [
            "/p/environment.rs",
            "/p/src/env.rs",
            "/p/id_rsa.pub",
            "/p/src/key.rs",
            "/p/keys.md",
            "/p/credentials.rs",
            "/p/.config/x.toml",
            "/p/secrets.rs",
        ] {
            assert!(!excludes(&privacy, path), "{path} is hidden");
        }
    }

    #[test]
    fn patterns_match_at_any_depth_unless_they_are_absolute() {
        let privacy = Privacy::new(
            &["private/", "docs/*.md", "/srv/x", "~/notes", "*.log", "!keep.log"],
            Some(Path::new("/home/[u]")),
            Share::On,
            paths::real_path,
        )
        .unwrap();
        for path in [
            "/p/private/deep/a.txt",
            "/p/docs/a.md",
            "/srv/x",
            "/srv/x/y",
            "/home/[u]/notes/n.txt",
            "/a.log",
        ] {
            assert!(excludes(&privacy, path), "{path}");
        }
        for path in
            ["/p/docs/sub/a.md", "/p/srv/x", "/p/notes/n.txt", "/p/keep.log", "/p/privately.txt"]
        {
            assert!(!excludes(&privacy, path), "{path}");
        }
    }

    #[test]
    fn a_bad_pattern_is_named() {
        for bad in ["a[", "", "  ", "!", "{a", "~"] {
            let error = Privacy::new(&["ok", bad], None, Share::On, paths::real_path).unwrap_err();
            assert_eq!(error.pattern, bad);
            assert!(!error.reason.is_empty());
        }
        let error = Privacy::new(&["~/x"], None, Share::On, paths::real_path).unwrap_err();
        assert_eq!(error.to_string(), "\"~/x\": the home directory is not known");
    }

    #[test]
    fn every_name_of_a_secret_is_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(root.join(to), root.join(name)).unwrap();
        };
        std::fs::create_dir_all(root.join("secrets/deep")).unwrap();
        std::fs::create_dir(root.join("open")).unwrap();
        for name in [".env", "secrets/deep/x.txt", "open/x.txt"] {
            std::fs::write(root.join(name), "TOKEN=1").unwrap();
        }
        link(".env", "plain.txt");
        link("secrets", "also");
        link("not there/.env", "dangling.txt");
        link("open", "link");
        let mine = format!("{}/link/x.txt", root.display());
        let privacy = Privacy::new(
            &[".env", "secrets/", &mine],
            Some(Path::new("/home/u")),
            Share::On,
            paths::real_path,
        )
        .unwrap();
        for name in [
            ".env",
            ".ENV",
            "plain.txt",
            "open/../.env",
            "./.env",
            "open//../plain.txt",
            "gone/../.env",
            "gone/../plain.txt",
            "secrets/deep/x.txt",
            "SECRETS/deep/new.txt",
            "also/deep/x.txt",
            "also/new.txt",
            "open/../also/deep/x.txt",
            // Where it leads is not known.
            "dangling.txt",
            // The pattern names the folder by its link, Neovim by where that leads.
            "link/x.txt",
            "open/x.txt",
        ] {
            assert!(excludes(&privacy, root.join(name)), "{name} leaks");
        }
        for name in ["open/y.txt", "open/../open/y.txt", "link/y.txt", "secret.txt"] {
            assert!(!excludes(&privacy, root.join(name)), "{name} is hidden");
        }
    }

    #[test]
    fn a_file_that_may_lead_anywhere_is_private_where_anything_is() {
        let path = Path::new("/p/a");
        assert!(defaults().excludes(path, None));
        assert!(!Privacy::default().excludes(path, None), "nothing is private here");
    }

    fn snapshot(paths: &[PathBuf]) -> Snapshot {
        let file = |path: &PathBuf, active| OpenFile {
            path: path.clone(),
            language: String::new(),
            active,
            visible: true,
            modified: false,
            last_visited: 1,
            cursor: Position::default(),
        };
        let item = |path: &PathBuf| Diagnostic {
            range: Range::default(),
            severity: Severity::Error,
            message: format!("in {}", path.display()),
            source: None,
            code: None,
        };
        Snapshot {
            sharing: true,
            active: paths.first().map(|path| ActiveFile {
                path: path.clone(),
                language: String::new(),
                modified: false,
                cursor: Position::default(),
                selection: None,
            }),
            files: paths.iter().enumerate().map(|(i, p)| file(p, i == 0)).collect(),
            diagnostics: paths
                .iter()
                .map(|p| (p.clone(), Arc::from([item(p)].as_slice())))
                .collect(),
            roots: vec![Root { path: "/p".into(), real: "/p".into() }],
            focused: true,
        }
    }

    #[test]
    fn nothing_but_the_folders_is_left_with_sharing_off() {
        let mut privacy = Privacy { sharing: Share::Off, ..defaults() };
        let full = snapshot(&["/p/a".into()]);
        let left = privacy.filter(&full, paths::real_path);
        assert!(!left.sharing && left.active.is_none());
        assert!(left.files.is_empty() && left.diagnostics.is_empty());
        assert_eq!((&left.roots, left.focused), (&full.roots, true));
        assert!(!privacy.allows(Path::new("/p/a"), Some(Path::new("/p/a"))));
        privacy.sharing = Share::On;
        assert_eq!(privacy.filter(&full, paths::real_path), full);
    }

    #[test]
    fn the_files_of_a_project_that_is_off_are_private_by_all_their_names() {
        let switches =
            Switches::from([("/off".into(), Share::Off), ("/off/but".into(), Share::On)]);
        let privacy = Privacy { switches, ..Privacy::default() };
        let hidden = |path: &str, real| privacy.excludes(Path::new(path), Some(Path::new(real)));
        assert!(
            hidden("/off/a", "/off/a") && hidden("/off/a", "/x") && hidden("/x", "/off/deep/a")
        );
        assert!(!hidden("/off/but/a", "/off/but/a") && !hidden("/offside", "/offside"));
        assert!(privacy.excludes(Path::new("/x"), None), "it may lead there");
        let left = privacy.filter(&snapshot(&["/off/a".into(), "/x".into()]), paths::real_path);
        assert!(left.sharing && left.active.is_none() && left.file(Path::new("/x")).is_some());
        assert_eq!((left.files.len(), left.diagnostics.len()), (1, 1));
    }

    proptest! {
        /// Nothing of an excluded path is anywhere in the filtered value, however it is printed.
        #[test]
        fn an_excluded_file_is_in_no_part(
            dirs in proptest::collection::vec("(/[a-z.]{1,6}){0,3}", 1..8),
            secret_first: bool,
        ) {
            let mut all: Vec<PathBuf> = Vec::new();
            for (index, dir) in dirs.iter().enumerate() {
                let name = if (index % 2 == 0) == secret_first { ".env.SECRET" } else { "open.txt" };
                all.push(format!("/nowhere{dir}/{index}/{name}").into());
            }
            let privacy = Privacy::new(&[".env*"], None, Share::On, paths::real_path).unwrap();
            let filtered = privacy.filter(&snapshot(&all), paths::real_path);
            let printed = format!("{filtered:?}");
            prop_assert!(!printed.contains("SECRET"));
            let open = all.iter().filter(|path| !excludes(&privacy, path)).count();
            prop_assert_eq!(filtered.files.len(), open);
            prop_assert_eq!(filtered.diagnostics.len(), open);
        }
    }
}
