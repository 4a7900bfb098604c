//! Where agents look for lock files. Pure but for `is_used`, which looks at the disk; any thread
//! but Neovim's.

use std::path::{Path, PathBuf};

use super::LockError;
use crate::agents::mcp::Family;
use crate::files;

/// The variables that say where lock files are, as Neovim has them now (it can change them while
/// it runs); empty ones count as unset.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// `$PI_IDE_LOCK_DIR`: the directory itself.
    pub pi_lock_dir: Option<PathBuf>,
    /// `$CLAUDE_CONFIG_DIR`: its `ide` is the directory.
    pub claude_config_dir: Option<PathBuf>,
    /// `$QWEN_HOME`, in place of `~/.qwen`.
    pub qwen_home: Option<PathBuf>,
    /// `$COPILOT_HOME`, in place of `~/.copilot`.
    pub copilot_home: Option<PathBuf>,
    /// `$XDG_DATA_HOME`; Amp goes by it on Linux.
    pub xdg_data_home: Option<PathBuf>,
    /// `$TMPDIR`, `$TMP`, `$TEMP`: the first that is set is where Gemini CLI looks.
    pub temporary: [Option<PathBuf>; 3],
    /// What relative values are relative to.
    pub cwd: PathBuf,
    /// The socket file that Copilot CLI is sent to.
    pub socket: Option<PathBuf>,
    /// Families that are published only where their agent has been: its own directory exists.
    pub auto: Vec<Family>,
}

fn set(value: Option<&PathBuf>) -> Option<PathBuf> {
    value.cloned().filter(|value| !value.as_os_str().is_empty())
}

impl Environment {
    /// Where the family's agents look. Values are taken literally but for a leading `~`.
    ///
    /// # Errors
    /// When that needs a home directory and there is none.
    pub fn directory(&self, family: Family) -> Result<PathBuf, LockError> {
        let (variable, path) = self.named(family);
        let below = match family {
            Family::Pi => "",
            Family::Claude | Family::Qwen | Family::Copilot => "ide",
            Family::Gemini => "gemini/ide",
            Family::Amp => "amp/ide",
        };
        let home = set(self.home.as_ref());
        let path = files::expand_home(&path, home.as_deref()).ok_or_else(|| LockError {
            family,
            message: format!(
                "HOME is not set, so {} is nowhere; set HOME or {variable}",
                path.display()
            ),
        })?;
        // Collecting the components cuts trailing slashes.
        Ok(self.cwd.join(path).join(below).components().collect())
    }

    /// The variable that says where the family's directory is, and what it says.
    fn named(&self, family: Family) -> (&'static str, PathBuf) {
        let (variable, value, default) = match family {
            Family::Pi => ("PI_IDE_LOCK_DIR", set(self.pi_lock_dir.as_ref()), "~/.pi/ide"),
            Family::Claude => {
                ("CLAUDE_CONFIG_DIR", set(self.claude_config_dir.as_ref()), "~/.claude")
            }
            Family::Gemini => {
                ("TMPDIR", self.temporary.iter().find_map(|value| set(value.as_ref())), "/tmp")
            }
            Family::Qwen => ("QWEN_HOME", set(self.qwen_home.as_ref()), "~/.qwen"),
            Family::Copilot => ("COPILOT_HOME", set(self.copilot_home.as_ref()), "~/.copilot"),
            Family::Amp if cfg!(target_os = "linux") => {
                ("XDG_DATA_HOME", set(self.xdg_data_home.as_ref()), "~/.local/share")
            }
            Family::Amp => ("XDG_DATA_HOME", None, "~/.local/share"),
        };
        (variable, value.unwrap_or_else(|| default.into()))
    }

    /// The agent of this family has been here: it leaves a directory behind wherever it runs.
    #[must_use]
    pub fn is_used(&self, family: Family) -> bool {
        let own = match family {
            // Its settings are not where it looks for us.
            Family::Gemini => {
                let home = set(self.home.as_ref());
                files::expand_home(Path::new("~/.gemini"), home.as_deref())
            }
            _ => self.directory(family).ok().and_then(|dir| dir.parent().map(Path::to_path_buf)),
        };
        own.is_some_and(|own| own.is_dir())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_taken_literally() {
        let directory = |family, value: &str| {
            let mut environment = Environment {
                home: Some("/home/u".into()),
                cwd: "/work".into(),
                ..Environment::default()
            };
            match family {
                Family::Pi => environment.pi_lock_dir = Some(value.into()),
                _ => environment.claude_config_dir = Some(value.into()),
            }
            environment.directory(family).unwrap().to_str().unwrap().to_owned()
        };
        for (value, expected) in [
            ("/tmp/a b/$x[1]", "/tmp/a b/$x[1]"),
            ("/tmp/slash///", "/tmp/slash"),
            ("~/sub dir", "/home/u/sub dir"),
            ("~", "/home/u"),
            ("rel/dir", "/work/rel/dir"),
            ("~user", "/work/~user"),
        ] {
            assert_eq!(directory(Family::Pi, value), expected);
            assert_eq!(directory(Family::Claude, value), format!("{expected}/ide"));
        }
        assert_eq!(directory(Family::Pi, ""), "/home/u/.pi/ide");
        assert_eq!(directory(Family::Claude, ""), "/home/u/.claude/ide");
    }
}
