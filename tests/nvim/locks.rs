//! Lock files: private, whole, where the agents look, true to what goes on, and gone afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::*;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn l01_lock_files_are_private_from_the_first_instant() {
    for (umask, existing) in [(0o000, false), (0o022, true), (0o022, false), (0o077, true)] {
        let builder = Nvim::builder().umask(umask);
        let home = tempfile::tempdir().unwrap();
        let dirs = [".pi/ide", ".claude/ide"].map(|dir| home.path().join(dir));
        if existing {
            for dir in &dirs {
                std::fs::create_dir_all(dir).unwrap();
                std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        // Everything that is there at any instant of the start.
        let done = AtomicBool::new(false);
        let (nvim, seen) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
                while !done.load(Ordering::Relaxed) {
                    for dir in &dirs {
                        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                            let Ok(meta) = entry.path().symlink_metadata() else { continue };
                            let name = entry.file_name().to_string_lossy().into_owned();
                            seen.entry(name).or_default().insert(meta.permissions().mode() & 0o777);
                        }
                    }
                }
                seen
            });
            let nvim = builder.home(home.path()).start();
            nvim.lock(Dialect::Pi);
            nvim.lock(Dialect::Claude);
            done.store(true, Ordering::Relaxed);
            (nvim, watcher.join().unwrap())
        });
        for (name, modes) in &seen {
            assert!(
                modes.iter().all(|mode| mode & 0o177 == 0),
                "umask {umask:03o}: {name}: {modes:?}"
            );
        }
        for dialect in [Dialect::Pi, Dialect::Claude] {
            let lock = nvim.lock(dialect);
            let dir = lock.path.parent().unwrap();
            assert_eq!((mode(&lock.path), mode(dir)), (0o600, 0o700), "umask {umask:03o}");
            assert_eq!(names(dir).len(), 1, "left behind: {:?}", names(dir));
        }
        nvim.quit("qa!");
    }
}

#[test]
fn l03_what_killed_neovims_left_is_removed_by_the_next_and_nothing_else_is() {
    let home = tempfile::tempdir().unwrap();
    let (mut left, mut dead_pid) = (Vec::new(), None);
    for _ in 0..5 {
        let dead = Nvim::builder().home(home.path()).start();
        left.extend([dead.lock(Dialect::Pi).path, dead.lock(Dialect::Claude).path]);
        dead.kill(Signal::KILL);
        dead_pid = Some(dead.pid());
    }
    let living = Nvim::builder().home(home.path()).start();
    let kept = living.lock(Dialect::Pi);
    let dir = kept.path.parent().unwrap();
    let other = json!({ "pid": 999_999, "workspaceFolders": ["/x"], "ideName": "Visual Studio Code",
        "transport": "ws", "authToken": "t" });
    let strangers = [
        ("1.lock", other.to_string()),
        ("2.lock", "not json".to_owned()),
        ("note.txt", "x".to_owned()),
    ];
    for (name, text) in &strangers {
        std::fs::write(dir.join(name), text).unwrap();
    }
    // Cut off in the middle of a write: the process is gone, and its unfinished file with it.
    let unfinished = format!(".gangway-{}-3.tmp", dead_pid.unwrap());
    std::fs::write(dir.join(unfinished), "{").unwrap();
    let next = Nvim::builder().home(home.path()).start();
    let own = next.lock(Dialect::Pi);
    next.lock(Dialect::Claude);
    for path in left.iter().filter(|path| **path != own.path && **path != kept.path) {
        assert!(
            !path.exists()
                || Lock::read(path).unwrap().json["pid"] == json!(next.pid())
                || Lock::read(path).unwrap().json["pid"] == json!(living.pid()),
            "{} is left",
            path.display()
        );
    }
    let mut there = names(dir);
    there.sort();
    let mut wanted: Vec<String> = strangers.iter().map(|(name, _)| (*name).to_owned()).collect();
    for lock in [&own, &kept] {
        wanted.push(lock.path.file_name().unwrap().to_string_lossy().into_owned());
    }
    wanted.sort();
    assert_eq!(there, wanted);
    Client::connect(&living, Dialect::Pi).ping();
}

#[test]
fn l05_the_agents_own_directories_are_taken_literally() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let cases = [
        (at("a b/$x[1]"), at("a b/$x[1]")),
        (at("slash/"), at("slash")),
        (at("$HOME/%x"), at("$HOME/%x")),
        ("~/sub dir".to_owned(), at("home/sub dir")),
        ("relative".to_owned(), at("work/relative")),
    ];
    for (value, wanted) in cases {
        let (home, cwd) = (folder.path().join("home"), folder.path().join("work"));
        std::fs::create_dir_all(&cwd).unwrap();
        let nvim = Nvim::builder()
            .home(&home)
            .cwd(&cwd)
            .env("PI_IDE_LOCK_DIR", &value)
            .env("CLAUDE_CONFIG_DIR", &value)
            .start();
        let dirs = [Path::new(&wanted).to_owned(), Path::new(&wanted).join("ide")];
        let locks: Vec<Lock> = dirs
            .iter()
            .map(|dir| {
                nvim.wait_for(&format!("a lock file in {}, for {value:?}", dir.display()), || {
                    let entries = std::fs::read_dir(dir).ok()?.flatten();
                    entries.into_iter().find_map(|entry| Lock::read(&entry.path()))
                })
            })
            .collect();
        assert!(locks.iter().all(|lock| lock.json["pid"] == json!(nvim.pid())));
        nvim.quit("qa!");
        assert!(locks.iter().all(|lock| !lock.path.exists()), "{value:?}");
    }
    // An empty one counts as unset, and so does one that came too late for this start.
    let nvim = Nvim::builder().env("PI_IDE_LOCK_DIR", "").start();
    let dir = nvim.home.join(".pi/ide");
    nvim.wait_until("the usual place", || names(&dir).len() == 1);
    let later = at("later");
    nvim.lua::<Value>("vim.env.PI_IDE_LOCK_DIR = ...", (&later,));
    nvim.cmd("IdeStop");
    nvim.cmd("IdeStart");
    nvim.wait_until("the new place", || names(Path::new(&later)).len() == 1);
    assert!(names(&dir).is_empty(), "the old one is left");
    nvim.quit("qa!");
    assert!(names(Path::new(&later)).is_empty());
}

#[test]
fn l05_without_a_home_it_says_so_and_neovim_goes_on() {
    let nvim = Nvim::builder().unset("HOME").unset("CLAUDE_CONFIG_DIR").start();
    nvim.wait_until("a word about it", || {
        nvim.notifications().iter().any(|text| text.contains("HOME is not set"))
    });
    assert!(nvim.status()["running"] == json!(true));
    nvim.cmd("IdeStop");
}

#[test]
fn l07_two_neovims_of_one_project_are_told_apart_and_keep_their_own_agents() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (home.path().join("projA"), home.path().join("projB"));
    for dir in [&one, &two] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("a.txt"), "one\n").unwrap();
    }
    let nvims = [&one, &two, &one].map(|cwd| Nvim::builder().home(home.path()).cwd(cwd).start());
    for dialect in [Dialect::Pi, Dialect::Claude] {
        let locks = nvims.each_ref().map(|nvim| nvim.lock(dialect));
        let distinct =
            |part: fn(&Lock) -> String| locks.iter().map(part).collect::<BTreeSet<String>>().len();
        assert_eq!(distinct(|lock| lock.port.to_string()), 3);
        assert_eq!(distinct(|lock| lock.token.clone()), 3);
        assert_eq!(distinct(|lock| lock.json["ideName"].to_string()), 3, "{locks:?}");
        for (lock, cwd) in locks.iter().zip([&one, &two, &one]) {
            assert_eq!(lock.json["workspaceFolders"][0], json!(cwd));
            let name = lock.json["ideName"].as_str().unwrap();
            assert!(name.contains(&*cwd.file_name().unwrap().to_string_lossy()), "{name}");
        }
    }
    let agent = Client::connect(&nvims[2], Dialect::Pi);
    let pending = agent.open_diff(one.join("a.txt"), "two\n");
    let review = nvims[2].shown(&pending);
    assert!(nvims[0].panes().is_empty() && nvims[1].panes().is_empty(), "in another one");
    nvims[2].reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
}

#[test]
fn l09_a_thousand_directory_changes_never_leave_half_a_lock_file_or_none() {
    let nvim = Nvim::start();
    let dirs: Vec<_> = (0..20).map(|i| nvim.path(format!("d{i}"))).collect();
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let lock = nvim.lock(Dialect::Pi);
    let (done, reads) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                let bytes = std::fs::read(&lock.path).expect("the lock file is missing");
                let json: Value = serde_json::from_slice(&bytes)
                    .unwrap_or_else(|e| panic!("half a lock file ({e}): {bytes:?}"));
                assert_eq!(json["authToken"], json!(lock.token));
                let folders = json["workspaceFolders"].as_array().unwrap();
                assert!(folders.contains(&json!(nvim.cwd)), "the initial root: {folders:?}");
                seen.insert(json["workspaceFolders"].to_string());
                reads.fetch_add(1, Ordering::Relaxed);
            }
            seen
        });
        nvim.lua::<Value>(
            "local dirs, n = ..., 0
             local timer = assert(vim.uv.new_timer())
             timer:start(0, 3, vim.schedule_wrap(function()
               if n == 1000 then return end
               n = n + 1
               _G.changes = n
               vim.cmd.cd(dirs[n % #dirs + 1])
             end))",
            json!([dirs]),
        );
        let changes = || nvim.try_lua("return _G.changes", ()).ok();
        let all = poll(Duration::from_secs(60), || (changes() == Some(json!(1000))).then_some(()));
        std::thread::sleep(Duration::from_millis(600));
        done.store(true, Ordering::Relaxed);
        assert!(all.is_some(), "{:?} changes", changes());
        reader.join().unwrap()
    });
    let reads = reads.into_inner();
    println!("{reads} reads saw {} different, whole lock files", seen.len());
    assert!(seen.len() > 3, "{seen:?}");
    let now = nvim.lock(Dialect::Pi);
    assert_eq!((now.port, &now.token), (lock.port, &lock.token));
    let last = json!(dirs[1000 % dirs.len()]);
    assert!(now.json["workspaceFolders"].as_array().unwrap().contains(&last), "{:?}", now.json);
}

#[test]
fn l11_a_lock_file_that_somebody_removes_is_put_back_and_anothers_is_left_alone() {
    for how in ["the file", "the directory", "replaced"] {
        let nvim = Nvim::start();
        let lock = nvim.lock(Dialect::Pi);
        match how {
            "the file" => std::fs::remove_file(&lock.path).unwrap(),
            "the directory" => std::fs::remove_dir_all(lock.path.parent().unwrap()).unwrap(),
            _ => {
                let mut json = lock.json.clone();
                json["pid"] = json!(std::process::id());
                json["authToken"] = json!("another");
                std::fs::write(&lock.path, json.to_string()).unwrap();
            }
        }
        nvim.lua::<Value>("vim.api.nvim_exec_autocmds('FocusGained', {})", ());
        let agent = if how == "replaced" {
            nvim.settle(Duration::from_millis(300));
            let there = Lock::read(&lock.path).unwrap();
            assert_eq!(there.token, "another", "another instance's was overwritten");
            Client::to(lock.port, &lock.token, Dialect::Pi).connect()
        } else {
            let again = nvim.lock(Dialect::Pi);
            assert_eq!((again.port, &again.token), (lock.port, &lock.token), "{how}");
            assert_eq!(
                (mode(&again.path), mode(again.path.parent().unwrap())),
                (0o600, 0o700),
                "{how}"
            );
            Client::connect(&nvim, Dialect::Pi)
        };
        agent.ping();
        let exit = nvim.quit("qa");
        assert_eq!((exit.code, exit.signal), (Some(0), None), "{how}");
        assert_eq!(lock.path.exists(), how == "replaced", "{how}");
    }
    // Without the focus it takes the timer's five seconds.
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Claude);
    std::fs::remove_file(&lock.path).unwrap();
    nvim.lock(Dialect::Claude);
}

#[test]
fn l13_both_kinds_of_lock_file_come_and_go_together() {
    let nvim = Nvim::start();
    let first = nvim.lock(Dialect::Pi);
    nvim.cmd("IdeStop");
    nvim.wait_no_locks();
    assert_eq!(nvim.status()["running"], json!(false));
    nvim.cmd("IdeStart");
    let again = nvim.lock(Dialect::Pi);
    assert_eq!(nvim.lock(Dialect::Claude).port, again.port);
    assert_eq!(
        (again.port, again.token),
        (first.port, first.token),
        "agents find a restarted server again"
    );
}

#[test]
fn l13_one_directory_that_cannot_be_used_does_not_undo_the_other() {
    for (broken, works) in [(".pi", Dialect::Claude), (".claude", Dialect::Pi)] {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(broken), "a file").unwrap();
        let nvim = Nvim::builder().home(home.path()).start();
        Client::connect(&nvim, works).ping();
        nvim.wait_until("a word about it", || {
            nvim.notifications().iter().any(|text| text.contains(broken))
        });
        nvim.quit("qa!");
        assert!(names(&nvim.lock_dir(works)).is_empty());
    }
}

#[test]
fn thirty_neovims_start_and_leave_at_once_in_one_home() {
    const ALL: usize = 30;
    let home = tempfile::tempdir().unwrap();
    let dirs = [".pi/ide", ".claude/ide"].map(|dir| home.path().join(dir));
    // A Neovim under test ends with the thread that has started it.
    let (up, told_apart) = (std::sync::Barrier::new(ALL), std::sync::Barrier::new(ALL));
    let life = || {
        let nvim = Nvim::builder().home(home.path()).start();
        let port = nvim.lock(Dialect::Pi).port;
        Client::connect(&nvim, Dialect::Claude).ping();
        up.wait();
        // Names that collided in the rush are told apart at the next look.
        let told = poll(Duration::from_secs(30), || {
            let entries = std::fs::read_dir(&dirs[0]).ok()?.flatten();
            let names: BTreeSet<String> = entries
                .filter_map(|entry| Some(Lock::read(&entry.path())?.json["ideName"].to_string()))
                .collect();
            (names.len() == ALL).then_some(())
        });
        told_apart.wait();
        assert!(told.is_some(), "two have one name");
        assert_eq!(nvim.quit("qa!").code, Some(0));
        port
    };
    let ports: BTreeSet<u16> = std::thread::scope(|scope| {
        let lives: Vec<_> = (0..ALL).map(|_| scope.spawn(life)).collect();
        lives.into_iter().map(|life| life.join().unwrap()).collect()
    });
    assert_eq!(ports.len(), ALL);
    for dir in &dirs {
        assert_eq!(names(dir), Vec::<String>::new());
    }
}

#[test]
fn what_a_killed_neovim_left_unfinished_goes_from_every_directory_we_write_to() {
    let home = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let dead = Nvim::builder().home(home.path()).start();
    let name = format!(".gangway-{}-3.tmp", dead.pid());
    dead.lock(Dialect::Pi);
    dead.kill(Signal::KILL);
    let state = home.path().join("state/aivyx-coder");
    let places = [
        home.path().join(".pi/ide"),
        home.path().join(".claude/ide"),
        state.join("editor-context"),
        state.join("editor-approval"),
        work.path().join(".rivumi/ide"),
    ];
    for dir in &places {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(dir.join(&name), "{").unwrap();
    }
    let builder = Nvim::builder().home(home.path()).cwd(work.path());
    let next = builder.file("a.txt", "one\n").start();
    let left = || -> Vec<_> { places.iter().filter(|dir| dir.join(&name).exists()).collect() };
    let gone = poll(PATIENCE, || left().is_empty().then_some(()));
    assert!(gone.is_some(), "left in {:?}; {:?}", left(), next.status());
}
