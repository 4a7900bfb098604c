//! A Neovim with its real terminal UI: a pty, and a terminal that keeps its screen.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Between two looks at a quiet terminal.
const LOOK: Duration = Duration::from_millis(2);

/// What a terminal does beside showing text.
#[derive(Default)]
struct Ears {
    bells: usize,
    /// Operating system commands, such as a desktop notification: "9;text".
    commands: Vec<String>,
}

impl vt100::Callbacks for Ears {
    fn audible_bell(&mut self, _: &mut vt100::Screen) {
        self.bells += 1;
    }

    fn unhandled_osc(&mut self, _: &mut vt100::Screen, params: &[&[u8]]) {
        let params: Vec<_> = params.iter().map(|part| String::from_utf8_lossy(part)).collect();
        self.commands.push(params.join(";"));
    }
}

pub struct Pty {
    screen: Arc<Mutex<vt100::Parser<Ears>>>,
    child: Mutex<Box<dyn Child + Send + Sync>>,
    window: Mutex<Option<Window>>,
    closing: Arc<AtomicBool>,
}

/// All that keeps the terminal open.
struct Window {
    writer: Box<dyn Write + Send>,
    master: Box<dyn MasterPty + Send>,
    reader: JoinHandle<()>,
}

/// One cell of the screen.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub text: String,
    pub foreground: vt100::Color,
    pub background: vt100::Color,
    pub bold: bool,
    pub underline: bool,
    pub inverse: bool,
}

impl Pty {
    pub fn spawn(
        program: &str,
        args: &[OsString],
        cwd: &Path,
        env: &BTreeMap<OsString, OsString>,
        (rows, cols): (u16, u16),
    ) -> Self {
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).expect("a pty");
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(cwd);
        command.env_clear();
        for (key, value) in env {
            command.env(key, value);
        }
        let child = pair
            .slave
            .spawn_command(command)
            .unwrap_or_else(|e| panic!("cannot start {program}: {e}"));
        drop(pair.slave);
        let parser = vt100::Parser::new_with_callbacks(rows, cols, 0, Ears::default());
        let screen = Arc::new(Mutex::new(parser));
        let master = pair.master;
        let mut output = master.try_clone_reader().expect("the pty's output");
        let writer = master.take_writer().expect("the pty's input");
        // A reader that waits for ever could not be told to let go.
        // SAFETY: the master is open, and here for longer than this borrow.
        let fd =
            unsafe { BorrowedFd::borrow_raw(master.as_raw_fd().expect("the pty's descriptor")) };
        fcntl_setfl(fd, fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK).unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let (screen_too, closing_too) = (screen.clone(), closing.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while !closing_too.load(Ordering::Relaxed) {
                match output.read(&mut buffer) {
                    Ok(n @ 1..) => screen_too.lock().unwrap().process(&buffer[..n]),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                    _ => return,
                }
            }
        });
        let window = Mutex::new(Some(Window { writer, master, reader }));
        Self { screen, child: Mutex::new(child), window, closing }
    }

    /// Closes the window: the programs in it are told by the system.
    pub fn hang_up(&self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(Window { writer, master, reader }) = self.window.lock().unwrap().take() {
            let _ = reader.join();
            drop((writer, master));
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().process_id()
    }

    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().ok().flatten()
    }

    pub fn write(&self, bytes: &[u8]) {
        let mut window = self.window.lock().unwrap();
        let writer = &mut window.as_mut().expect("the window is open").writer;
        let mut rest = bytes;
        while !rest.is_empty() {
            match writer.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                Err(e) => panic!("writing to the pty: {e}"),
            }
        }
        let _ = writer.flush();
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(rows, cols);
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        let window = self.window.lock().unwrap();
        window.as_ref().expect("the window is open").master.resize(size).expect("resizing the pty");
    }

    pub fn text(&self) -> String {
        let parser = self.screen.lock().unwrap();
        let (_, cols) = parser.screen().size();
        let rows: Vec<String> =
            parser.screen().rows(0, cols).map(|row| row.trim_end().to_owned()).collect();
        rows.join("\n")
    }

    /// How often the bell rang.
    pub fn bells(&self) -> usize {
        self.screen.lock().unwrap().callbacks().bells
    }

    /// The operating system commands that came, such as "9;text".
    pub fn os_commands(&self) -> Vec<String> {
        self.screen.lock().unwrap().callbacks().commands.clone()
    }

    /// Row and column of the cursor, from 0.
    pub fn cursor(&self) -> (u16, u16) {
        self.screen.lock().unwrap().screen().cursor_position()
    }

    /// The cell at a row and column, from 0.
    pub fn cell(&self, row: u16, col: u16) -> Option<Cell> {
        let parser = self.screen.lock().unwrap();
        let cell = parser.screen().cell(row, col)?;
        Some(Cell {
            text: cell.contents().to_owned(),
            foreground: cell.fgcolor(),
            background: cell.bgcolor(),
            bold: cell.bold(),
            underline: cell.underline(),
            inverse: cell.inverse(),
        })
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.hang_up();
    }
}
