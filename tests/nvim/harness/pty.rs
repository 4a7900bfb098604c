//! A Neovim with its real terminal UI: a pty, and a terminal that keeps its screen.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};

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
    writer: Mutex<Box<dyn Write + Send>>,
    child: Mutex<Box<dyn Child + Send + Sync>>,
    master: Mutex<Box<dyn MasterPty + Send>>,
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
        let mut reader = pair.master.try_clone_reader().expect("the pty's output");
        let screen_too = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                screen_too.lock().unwrap().process(&buffer[..n]);
            }
        });
        Self {
            screen,
            writer: Mutex::new(pair.master.take_writer().expect("the pty's input")),
            child: Mutex::new(child),
            master: Mutex::new(pair.master),
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().process_id()
    }

    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().ok().flatten()
    }

    pub fn write(&self, bytes: &[u8]) {
        let mut writer = self.writer.lock().unwrap();
        writer.write_all(bytes).and_then(|()| writer.flush()).expect("writing to the pty");
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(rows, cols);
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        self.master.lock().unwrap().resize(size).expect("resizing the pty");
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
