//! Tests what happens if a Python signal handler of the program runs while the library executes Python code, and raises
//! an exception: the library's code ends, and the exception is raised again in the program's own code.

use super::hosted::in_few;
use crate::later::call_for_program;

#[test]
fn what_a_handler_raises_is_raised_in_the_program() {
    in_few(&[], |host| {
        host.run("def raises(): raise KeyboardInterrupt\ndef answers(): return 3");
        host.with(|py| {
            let main = py.imported(c"__main__").unwrap();
            let call = |name| call_for_program(py, &main.attr(name).unwrap(), &[]);
            assert_eq!(call(c"answers").unwrap().as_int(), Some(3));
            assert!(call(c"raises").is_none());
            assert!(!py.has_raised());
        });
        assert!(!host.try_run("for _ in range(1000000): pass"));
        assert!(host.try_run("for _ in range(1000000): pass"));
    });
}
