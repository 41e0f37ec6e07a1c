//! Checks records of programs whose first steps run before the process uses CUDA.

use crate::common::run;
use crate::ranges::{Program, TEST_TIMEOUT};

#[test]
fn a_window_that_opens_before_cuda_is_used_is_in_the_record_from_its_first_use_on() {
    let program = Program::new("record/early.c");
    for (windows, wanted) in [("0-", (5, 39)), ("3-20", (5, 20)), ("5-9", (5, 9))] {
        let mut command = program.command("sym:^early_step$", windows, &[], &[]);
        let output = run(&mut command, TEST_TIMEOUT);
        assert_eq!(output.status.code(), Some(7), "{}", output.err());
        let records = program.records();
        let [record] = &records[..] else {
            panic!("{} records: {}", records.len(), output.err());
        };
        assert_eq!(record.windows(), [wanted], "{windows}: {}", output.err());
        let iterations: Vec<_> = (wanted.0..=wanted.1).collect();
        assert_eq!(record.iterations(), iterations, "{windows}");
        program.forget();
    }
}
