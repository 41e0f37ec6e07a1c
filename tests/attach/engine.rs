//! Checks the option `--engine` of `attach` and `detach`, which selects those processes of a server that drive the GPU.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::can_attach;
use crate::common::{built_command, run, shim, skipped, standin, tllmprof};
use crate::host::LINKED;
use crate::place::{Place, Running, TEST_TIMEOUT, wait_until};

/// A tree of processes below a shell. All of them load the driver, and each has a title of its own. Each process writes
/// its process number into a file named after its title.
struct Server {
    place: Place,
    running: Running,
    titles: Vec<String>,
}

impl Server {
    fn start(titles: &[&str]) -> Self {
        let place = Place::new();
        let program = LINKED[0].program().display();
        let mut script = String::new();
        for title in titles {
            // Each program runs in a subshell. There, `sh` prints the process number of its parent, the subshell.
            // Then `exec -a` replaces the subshell by the program, so the number becomes the program's.
            script += &format!(
                "(sh -c 'echo $PPID' > '{title}'; exec -a '{title}' {program} 0 > '{title}.out') &\n"
            );
        }
        script += "echo ready\nwait\n";
        let mut shell = built_command("bash");
        shell
            .args(["-c", &script])
            .env("LD_LIBRARY_PATH", standin())
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("STANDIN_LOG", place.path("calls"))
            .current_dir(place.0.folder());
        let running = place.start(&mut shell);
        let server = Self {
            place,
            running,
            titles: titles.iter().map(|title| (*title).to_owned()).collect(),
        };
        for title in titles {
            wait_until(title, || {
                let out = fs::read_to_string(server.place.path(&format!("{title}.out")));
                out.is_ok_and(|out| out.contains("ready"))
            });
        }
        server
    }

    fn pid(&self, title: &str) -> String {
        let number = fs::read_to_string(self.place.path(title)).unwrap();
        number.trim().to_owned()
    }

    /// Runs `tllmprof` with these arguments, in which `TOP` stands for the shell's process number. Returns its standard
    /// error.
    #[track_caller]
    fn succeeds(&self, arguments: &str) -> String {
        let arguments = arguments.replace("TOP", &self.running.pid().to_string());
        let mut command = self.place.command(&arguments);
        let output = run(command.env("TLLMPROF_LIB", shim()), TEST_TIMEOUT);
        assert!(output.status.success(), "{arguments}: {}", output.err());
        output.err()
    }

    /// Returns the titles of the processes that have loaded the library.
    fn attached(&self) -> Vec<&str> {
        let has = |title: &&str| {
            let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid(title)));
            maps.unwrap().contains("libtllmprof.so")
        };
        self.titles.iter().map(String::as_str).filter(has).collect()
    }

    fn end(mut self) {
        self.running.end();
        for title in &self.titles {
            let out = fs::read_to_string(self.place.path(&format!("{title}.out"))).unwrap();
            assert!(out.contains("bad 0, "), "{title}: {out}");
        }
    }
}

#[test]
fn the_workers_of_an_engine_are_captured_and_no_other_process_of_it() {
    if !can_attach() {
        return;
    }
    let workers = ["VLLM::Worker_TP0", "VLLM::Worker_TP1"];
    let server = Server::start(&["vllm serve", "VLLM::EngineCore", workers[0], workers[1]]);
    let said = server.succeeds("attach --engine TOP --step cudaGraphLaunch --steps 10");
    for worker in workers {
        let named = format!("{} ({worker})", server.pid(worker));
        assert!(said.contains(&named), "{named}: {said}");
    }
    assert_eq!(server.attached(), workers);
    for worker in workers {
        let record = fs::read_dir(server.place.0.folder()).unwrap().flatten();
        let end = format!("-{}.tllmprof", server.pid(worker));
        let record = record
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with(&end))
            .expect(worker);
        let windows = server.running.windows_of(&record);
        let lengths: Vec<_> = windows.iter().map(|(a, b)| b - a + 1).collect();
        assert_eq!(lengths, [10], "{worker}: {windows:?}\n{said}");
    }
    // All these processes already have the library, so this command attaches to none of them again.
    server.succeeds("attach --engine TOP --steps 3");
    let said = server.succeeds("detach --engine TOP");
    for worker in workers {
        let detached = format!("{}: detached", server.pid(worker));
        assert!(said.contains(&detached), "{detached}: {said}");
    }
    server.end();
}

#[test]
fn several_processes_are_attached_by_their_numbers() {
    if !can_attach() {
        return;
    }
    let server = Server::start(&["a", "b", "c"]);
    let (a, b) = (server.pid("a"), server.pid("b"));
    let mut clash = server
        .place
        .command(&format!("attach {a} {b} --trace one.tllmprof"));
    let refused = run(clash.env("TLLMPROF_LIB", shim()), TEST_TIMEOUT);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.err());
    assert!(refused.err().contains("with %p in it"), "{}", refused.err());
    server.succeeds(&format!("attach {a} {b} --step cudaGraphLaunch --steps 5"));
    assert_eq!(server.attached(), ["a", "b"]);
    // The process 4000000 does not exist. The command reports an error for it, but still detaches the library from the
    // other two processes.
    let mut some = server.place.command(&format!("detach {a} 4000000 {b}"));
    let some = run(&mut some, TEST_TIMEOUT);
    assert_eq!(some.status.code(), Some(1), "{}", some.err());
    for line in [
        format!("{a}: detached"),
        format!("{b}: detached"),
        "4000000: there is no such process".to_owned(),
    ] {
        assert!(some.err().contains(&line), "{line}: {}", some.err());
    }
    server.end();
}

#[test]
fn without_a_number_the_only_engine_is_meant() {
    if !can_attach() {
        return;
    }
    let place = Place::new();
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "-c",
                script,
            ])
            .env("PROGRAM", LINKED[0].program())
            .env("TLLMPROF", tllmprof())
            .env("TLLMPROF_LIB", shim())
            .env("LD_LIBRARY_PATH", standin())
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("STANDIN_LOG", place.path("calls"))
            .current_dir(place.0.folder())
            .stdin(Stdio::null())
            .process_group(0);
        run(&mut command, TEST_TIMEOUT)
    };
    let tried = in_namespace("true");
    if !tried.status.success() {
        skipped(&format!(
            "no namespace of processes: {}",
            tried.err().trim()
        ));
        return;
    }
    assert!(Path::new(&tllmprof()).exists());
    let start = |title: &str| {
        format!(
            "bash -c \"exec -a '{title}' $PROGRAM 0\" > '{title}.out' &\n\
             until grep -q ready '{title}.out'; do sleep 0.01; done\n"
        )
    };
    let none = in_namespace("$TLLMPROF attach --engine");
    assert_eq!(none.status.code(), Some(1), "{}", none.err());
    let said = none.err();
    assert!(
        said.contains("no process that this user may trace") && said.lines().count() == 1,
        "{said}"
    );
    let one = in_namespace(&format!(
        "{}$TLLMPROF attach --engine --step cudaGraphLaunch --steps 4; status=$?; touch end; wait; rm end; exit $status",
        start("sglang::scheduler_TP0")
    ));
    assert!(one.status.success(), "{}", one.err());
    assert!(
        one.err().contains("(sglang::scheduler_TP0)"),
        "{}",
        one.err()
    );
    assert!(one.out().contains("4 iterations"), "{}", one.out());
    let two = in_namespace(&format!(
        "{}{}$TLLMPROF attach --engine; status=$?; touch end; wait; exit $status",
        start("one"),
        start("two")
    ));
    let said = two.err();
    assert_eq!(two.status.code(), Some(2), "{said}");
    for line in ["(one)", "(two)", "2 engines run here (wanted: --engine PID"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}
