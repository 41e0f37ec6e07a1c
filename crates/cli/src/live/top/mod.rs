//! `tllmprof top`: shows running processes on the terminal, updated once a second.
//!
//! One thread asks the processes for their state ([`watched`]). Another thread carries out the captures and stops that
//! the user requests with keys ([`orders`]). The main thread reads keys ([`screen`]) and draws ([`view`]).

mod orders;
mod screen;
mod view;
mod watched;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

use super::count;
use super::targets::Targets;
use crate::inherited;
use crate::output::{self, Kept};
use orders::{Captured, Orders};
use screen::{Key, Screen};
use view::View;
use watched::{ProcessRow, WatchedProcesses};

/// Interval at which `top` asks the processes for their state.
const BETWEEN: Duration = Duration::from_secs(1);
/// Interval at which `top` checks for keys and signals. So it responds to a key or a signal after this time at the
/// latest.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = "\
Keys: q quits; the arrows select a process, and ESC selects all; c captures the next 50 iterations of the selected
processes; s closes their open windows. If standard output is not a terminal, a plain table is printed once a second.

  tllmprof top                 all processes here, including those that start later
  tllmprof top -n 1 | cat      one table")]
pub(crate) struct TopArguments {
    #[command(flatten)]
    targets: Targets,
    /// Number of tables to print if standard output is not a terminal [default: print until interrupted]
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    count: Option<u64>,
}

pub(crate) fn run(arguments: &TopArguments) -> Result<ExitCode> {
    let watched = WatchedProcesses::new(&arguments.targets)?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb {
        live(watched)?;
    } else {
        print(watched, arguments.count)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a table each second, until `count` tables are printed or the reader closes the pipe.
fn print(mut watched: WatchedProcesses, count: Option<u64>) -> io::Result<()> {
    let mut printed = 0;
    // A rate is computed from two samples. This call takes the first sample, before the first table.
    watched.look();
    while count.is_none_or(|count| printed < count) {
        thread::sleep(BETWEEN);
        let between = if printed > 0 { "\n" } else { "" };
        let table = format!("{between}{}", view::table(&watched.look()));
        let mut stdout = output::stdout()?.lock();
        let written = stdout.write_all(crate::manners::spelled(&table).as_bytes());
        match written.and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
        printed += 1;
    }
    Ok(())
}

/// A message from another thread to the main thread of `top`, which draws the screen.
enum Update {
    Rows(Vec<ProcessRow>),
    /// An order of the user (a capture or a stop) has been carried out. The value lists the windows (ranges of captured
    /// iterations) that a capture has recorded. The list is empty after a stop, and after an order that failed.
    Done(Vec<Captured>),
}

fn live(watched: WatchedProcesses) -> Result<()> {
    let signal = heard()?;
    let kept = Kept::new();
    let (to, events) = mpsc::channel();
    let orders = Orders::new(to.clone());
    thread::spawn(move || ask(watched, &to));
    let screen = Screen::enter()?;
    let ended = follow(&screen, &events, orders, &kept, &signal);
    drop(screen);
    drop(kept);
    ended?;
    if let Ok(signal @ 1..) = i32::try_from(signal.load(Ordering::Relaxed)) {
        let _ = low_level::emulate_default_handler(signal);
    }
    Ok(())
}

/// Returns a variable that holds the number of the signal that is to end the command, or 0 while no such signal has
/// arrived.
fn heard() -> Result<Arc<AtomicUsize>> {
    let heard = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        if !inherited::is_ignored(signal) {
            flag::register_usize(signal, Arc::clone(&heard), signal as usize)?;
        }
    }
    Ok(heard)
}

/// Asks the processes for their state once per interval, until the main thread drops the receiver.
fn ask(mut watched: WatchedProcesses, to: &Sender<Update>) {
    loop {
        let since = Instant::now();
        if to.send(Update::Rows(watched.look())).is_err() {
            return;
        }
        thread::sleep(BETWEEN.saturating_sub(since.elapsed()));
    }
}

/// The main loop: draws and reads keys until a key or a signal ends the command.
fn follow(
    screen: &Screen,
    events: &Receiver<Update>,
    mut orders: Orders,
    kept: &Kept,
    signal: &AtomicUsize,
) -> Result<()> {
    let mut view = View::default();
    loop {
        screen.draw(&view)?;
        let key = screen.key(POLL_INTERVAL)?;
        if signal.load(Ordering::Relaxed) != 0 || key == Some(Key::Quit) {
            orders.leave();
            return Ok(());
        }
        match key {
            Some(Key::Up) => view.up(),
            Some(Key::Down) => view.down(),
            Some(Key::All) => view.select_all(),
            Some(Key::Capture) => orders.capture(view.selected()),
            Some(Key::Stop) => orders.stop(view.selected()),
            Some(Key::Quit) | None => {}
        }
        kept.take().into_iter().for_each(|line| view.say(line));
        loop {
            match events.try_recv() {
                Ok(Update::Rows(rows)) => view.show(rows),
                Ok(Update::Done(captured)) => {
                    orders.are_done();
                    view.finish_order(captured);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(anyhow!("the processes are no longer asked"));
                }
            }
        }
    }
}
