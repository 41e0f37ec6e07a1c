//! Checks the command `tllmprof top`, both on a terminal and with its output in a pipe.

use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tllmprof_control::ControlEvent;

use crate::lockstep::ranks;
use crate::place::{Place, of_steps, wait_until};
use crate::terminal::Terminal;

const DOWN: &[u8] = b"\x1b[B";

#[test]
fn top_shows_the_ranks_and_captures_what_is_selected() {
    let place = Place::new();
    let mut ranks = ranks(&place);
    wait_until("the sockets", || place.sockets().len() == 4);
    let mut top = Terminal::start(&mut place.command("top --run r"));
    top.wait_for("4 processes, selected: all");
    assert!(!top.is_as_before());
    // Each row has values for iterations, a rate, times and waits. No row has a value for garbage collections, GIL
    // waits or an engine, because the ranks are C programs.
    wait_until("figures", || {
        let is_full = |row: &str| {
            let cells: Vec<_> = row.split_whitespace().collect();
            cells.len() == 14
                && cells[2] == "armed"
                && cells[3..5]
                    .iter()
                    .all(|cell| cell.parse::<f64>().is_ok_and(|n| n > 0.0))
                && [cells[6], cells[8]]
                    .iter()
                    .all(|unit| ["ms", "µs", "us", "s"].contains(unit))
                // GPU times are measured only in windows, and no window has opened yet.
                && cells[9] == "-"
                && cells[10].parse::<f64>().is_ok_and(|n| n > 0.0)
                && cells[11..] == ["-"; 3]
        };
        let text = top.text();
        ranks.iter().enumerate().all(|(rank, process)| {
            let begin = format!("{}     {rank}  ", process.pid());
            let row = text
                .lines()
                .find(|line| line.trim_start().starts_with(&begin));
            row.is_some_and(is_full)
        })
    });
    top.press(DOWN);
    top.press(DOWN);
    let second = ranks[1].pid();
    top.wait_for(&format!("selected: {second}"));
    wait_until("the row", || {
        top.selected()
            .is_some_and(|row| row.trim_start().starts_with(&second.to_string()))
    });
    top.press(b"c");
    top.wait_for("Captured: shares of the time of iterations");
    let taken: Vec<_> = ranks.iter().map(|rank| rank.windows()).collect();
    assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0, 0]);
    let (first, last) = taken[1][0];
    assert_eq!(last - first, 49);
    top.wait_for(&format!("{second}     1  {first}-{last}  "));
    // Only rank 1 has captured a window. So only its row shows which share of the window's time the GPU was busy.
    let has_share = |rank: usize| {
        let begin = format!("{}     {rank}  armed", ranks[rank].pid());
        let text = top.text();
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with(&begin));
        row.is_some_and(|row| row.split_whitespace().nth(9) != Some("-"))
    };
    wait_until("the share", || has_share(1));
    assert_eq!([0, 2, 3].map(has_share), [false; 3]);
    // ESC selects all processes. A capture of all processes takes the same iterations in each.
    top.press(b"\x1b");
    top.wait_for("selected: all");
    top.press(b"c");
    wait_until("the windows", || {
        let all: Vec<_> = ranks.iter().map(|rank| rank.windows()).collect();
        all.iter().all(|of| {
            of.last() == all[0].last() && of.last().is_some_and(|one| one.1 - one.0 == 49)
        })
    });
    top.press(b"q");
    assert!(top.end().success());
    wait_until("the terminal", || top.is_as_before());
    ranks.iter_mut().for_each(|rank| drop(rank.end()));
}

#[test]
fn top_stops_windows_notices_processes_that_come_and_go_and_gives_the_terminal_back() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    let mut peer = server.connect();
    let mut top = Terminal::start(&mut place.command("top"));
    let pid = server.pid().to_string();
    top.wait_for(&pid);
    assert!(matches!(
        peer.ask(&of_steps(1_000_000)),
        ControlEvent::Accepted { .. }
    ));
    wait_until("the window", || top.text().contains("open"));
    // Other tests' processes may be listed, too, so the test presses DOWN until its own process is selected. It presses
    // the key again only when the screen shows the effect of the last time, or has not changed for long.
    let selection = |text: &str| {
        let selected = text.split_once("selected: ");
        selected.map(|(_, rest)| rest.lines().next().unwrap_or("").to_owned())
    };
    let selected = format!("selected: {pid}");
    for _ in 0..30 {
        let before = top.text();
        if before.contains(&selected) {
            break;
        }
        top.press(DOWN);
        let since = Instant::now();
        while selection(&top.text()) == selection(&before)
            && since.elapsed() < Duration::from_secs(5)
        {
            sleep(Duration::from_millis(10));
        }
    }
    top.wait_for(&selected);
    top.press(b"s");
    wait_until("the end of the window", || !peer.status_or_event());
    top.wait_for("the window closed with iterations");
    let mut other = place.start(&mut place.server("500"));
    top.wait_for(&other.pid().to_string());
    server.kill();
    wait_until("its row to go", || !top.text().contains(&format!("{pid} ")));
    // A process that does not answer for a while stays in the list. Its row is updated once it
    // answers again.
    let signal = |signal| {
        // SAFETY: kill takes no pointer. The process is a child that has not been waited for.
        unsafe { libc::kill(other.pid().cast_signed(), signal) };
    };
    let row = |text: String| {
        let of_other = |line: &&str| line.contains(&other.pid().to_string());
        text.lines().find(of_other).map(str::to_owned)
    };
    signal(libc::SIGSTOP);
    sleep(Duration::from_secs(4));
    let stopped = row(top.text());
    signal(libc::SIGCONT);
    assert!(stopped.is_some(), "{}", top.text());
    wait_until("iterations", || row(top.text()) != stopped);
    // SAFETY: kill takes no pointer. The process is a child that has not been waited for.
    unsafe { libc::kill(top.child.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(top.end().signal(), Some(libc::SIGTERM));
    wait_until("the terminal", || top.is_as_before());
    other.end();
}

#[test]
fn top_prints_a_table_into_a_pipe_and_names_a_process_that_is_not_there() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    server.connect();
    let pid = server.pid();
    let tables = place.tllmprof(&format!("top -n 2 {pid}"));
    assert!(tables.status.success(), "{}", tables.err());
    let out = tables.out();
    assert!(!out.contains('\x1b'), "{out:?}");
    let rows: Vec<_> = out
        .lines()
        .filter(|line| line.trim_start().starts_with(&pid.to_string()))
        .collect();
    assert_eq!(
        (rows.len(), out.matches("STEPS/S").count()),
        (2, 2),
        "{out}"
    );
    server.end();
    let refused = place.tllmprof(&format!("top {pid}"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        refused.err().contains("there is no such process"),
        "{}",
        refused.err()
    );
}
