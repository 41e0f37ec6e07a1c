//! Runs a command in a pseudo-terminal, and reads the contents of its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::terminal;
use crate::place::wait_until;

const ROWS: u16 = 30;
const COLUMNS: u16 = 120;

pub(crate) struct Terminal {
    master: File,
    /// The command's end of the pseudo-terminal. It stays open so that the terminal can be queried after the command
    /// has ended.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    pub child: Child,
}

impl Terminal {
    /// Starts the command in a new pseudo-terminal.
    pub(crate) fn start(command: &mut Command) -> Self {
        let size = libc::winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (master, slave) = terminal::open(Some(&size));
        let end = || slave.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        let own = || {
            // SAFETY: setsid has no arguments. A process that was just forked does not lead a process group, so the
            // call succeeds.
            let session = unsafe { libc::setsid() };
            // SAFETY: the standard input is a terminal that no session controls.
            match session >= 0 && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } == 0 {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: setsid and ioctl may be called between fork and exec.
        unsafe { command.pre_exec(own) };
        let child = command.env("TERM", "xterm").spawn().unwrap();
        let size = |count| NonZero::new(count).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(ROWS), size(COLUMNS), 0)));
        let (mut reader, to) = (master.try_clone().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self {
            master,
            slave,
            screen,
            child,
        }
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Returns the text of the selected (inverse) line, if there is one.
    pub(crate) fn selected(&self) -> Option<String> {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let row = (0..ROWS).find(|row| screen.cell(*row, 2).is_some_and(|cell| cell.inverse()))?;
        screen.contents_between(row, 0, row, COLUMNS).into()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str) {
        let shown = || self.text().contains(what);
        if std::panic::catch_unwind(|| wait_until(what, shown)).is_err() {
            panic!("{what:?} is not on the screen:\n{}", self.text());
        }
    }

    /// Waits until the command ends. Returns its exit status.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait_until("the end", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// Returns true if the terminal is in a shell's usual mode: lines are edited and echoed, and the cursor and the
    /// main screen are shown.
    pub(crate) fn is_as_before(&self) -> bool {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        terminal::is_as_a_shell_has_it(&self.slave)
            && !screen.alternate_screen()
            && !screen.hide_cursor()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
