//! The terminal as a full screen: sets the screen up, draws on it, and restores the terminal when the command ends,
//! also after an error or a panic.

use std::cell::RefCell;
use std::io::{self, Write};
use std::panic;
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};

use super::view::View;
use crate::manners::spelled;

#[cfg(test)]
#[path = "../../../../../tests/common/terminal.rs"]
mod terminal;

/// The terminal while this command uses it. Dropping this value restores the terminal. A panic also restores it, before
/// the panic's message is printed.
pub(crate) struct Screen {
    /// The size of the screen when it was last drawn, and the bytes that were written to draw it.
    drawn: RefCell<((u16, u16), Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Quit,
    Up,
    Down,
    All,
    Capture,
    Stop,
}

impl Screen {
    /// Switches the terminal to a full screen that reads single keys.
    ///
    /// # Errors
    /// Standard output is not a terminal, or its mode cannot be set.
    pub(crate) fn enter() -> io::Result<Self> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            report(info);
        }));
        enable_raw_mode()?;
        let screen = Self {
            drawn: RefCell::default(),
        };
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Waits up to `within` for a key that the user presses. Returns `None` if the key has no meaning, the time is
    /// over, or the screen's size changed.
    ///
    /// # Errors
    /// The terminal no longer exists.
    pub(crate) fn key(&self, within: Duration) -> io::Result<Option<Key>> {
        if !event::poll(within)? {
            return Ok(None);
        }
        let Event::Key(key) = event::read()? else {
            return Ok(None);
        };
        if key.kind == KeyEventKind::Release {
            return Ok(None);
        }
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        Ok(match key.code {
            KeyCode::Char('c' | 'd' | '\\') if has_control => Some(Key::Quit),
            KeyCode::Char('q') => Some(Key::Quit),
            KeyCode::Char('c') => Some(Key::Capture),
            KeyCode::Char('s') => Some(Key::Stop),
            KeyCode::Up => Some(Key::Up),
            KeyCode::Down => Some(Key::Down),
            KeyCode::Esc => Some(Key::All),
            _ => None,
        })
    }

    /// Draws the screen if its contents have changed.
    ///
    /// # Errors
    /// The terminal no longer exists.
    pub(crate) fn draw(&self, view: &View) -> io::Result<()> {
        let (width, height) = size()?;
        let mut out = Vec::new();
        for (at, (line, stands_out)) in (0..height).zip(view.lines(height.into())) {
            let line: String = spelled(&line).chars().take(width.into()).collect();
            queue!(out, MoveTo(0, at))?;
            if stands_out {
                queue!(out, SetAttribute(Attribute::Reverse))?;
            }
            queue!(
                out,
                Print(line),
                SetAttribute(Attribute::Reset),
                Clear(ClearType::UntilNewLine)
            )?;
        }
        let new = ((width, height), out);
        let mut drawn = self.drawn.borrow_mut();
        if *drawn == new {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(&new.1)?;
        *drawn = new;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's mode and contents. A second call is harmless.
fn restore() {
    // An error means that the terminal no longer exists, so there is nothing to restore.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::Read;
    use std::process::Command;

    use super::*;

    const NAME: &str =
        "live::top::screen::tests::a_panic_is_reported_on_the_terminal_as_it_was_before";
    const IN_CHILD: &str = "TEST_OF_SCREEN";

    #[test]
    fn a_panic_is_reported_on_the_terminal_as_it_was_before() {
        if env::var_os(IN_CHILD).is_some() {
            let _screen = Screen::enter().unwrap();
            panic!("as planned");
        }
        let (mut master, slave) = terminal::open(None);
        let end = || slave.try_clone().unwrap();
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(IN_CHILD, "1")
            .env("RUST_BACKTRACE", "0")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .status()
            .unwrap();
        assert!(!status.success());
        assert!(terminal::is_as_a_shell_has_it(&slave));
        drop(slave);
        let mut written = Vec::new();
        // In this test, reading from the master of the pseudo-terminal ends with an error instead of an end of file,
        // because its slave side is closed.
        let _ = master.read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let place = |what: &str| written.find(what).unwrap_or_else(|| panic!("{written:?}"));
        let (taken, given, said) = (
            place("\x1b[?1049h"),
            place("\x1b[?1049l"),
            place("as planned"),
        );
        assert!(taken < given && given < said, "{written:?}");
    }
}
