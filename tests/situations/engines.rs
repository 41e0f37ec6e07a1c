//! Checks engines that start and stop the profiler themselves.

use super::twice::{Both, Situation, start, stop};
use crate::common::standin;

fn with_libraries(files: &[&str], variable: &str) -> Both {
    let situation = Situation::new("steps_static")
        .env(variable, "5-9")
        .env("TLLMPROF_STEP", "cudaGraphLaunch");
    let preload = |situation: Situation, file: &&str| {
        let library = standin().join("bin").join(file);
        situation.preload_after_shim(library.display().to_string())
    };
    files.iter().fold(situation, preload).run()
}

#[test]
fn tensorrt_llm_gates_the_profiler_itself_by_its_own_variable() {
    let native = &["libtensorrt_llm.so"][..];
    let python = &["libtensorrt_llm.so", "libth_common.so"][..];
    for (files, variable) in [
        (native, "TLLM_PROFILE_START_STOP"),
        (native, "TLLM_GPTM_PROFILE_START_STOP"),
        (python, "TLLM_PROFILE_START_STOP"),
    ] {
        let both = with_libraries(files, variable);
        assert_eq!(both.switches(), [], "{files:?} {variable}");
        both.assert_same_calls();
        let words = ["TensorRT-LLM", variable, "TLLMPROF_START_STOP"];
        let said = both.said();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(words.iter().all(|word| said[0].contains(word)), "{said:?}");
        let end = "left to TensorRT-LLM: 40 iterations by cudaGraphLaunch";
        assert!(said[1].contains(end), "{said:?}");
    }
}

#[test]
fn a_variable_that_the_engine_does_not_read_is_ours() {
    for (files, variable) in [
        (&["libtensorrt_llm.so"][..], "TLLMPROF_START_STOP"),
        (&["libth_common.so"], "TLLM_PROFILE_START_STOP"),
        (
            &["libtensorrt_llm.so", "libth_common.so"],
            "TLLM_GPTM_PROFILE_START_STOP",
        ),
    ] {
        let both = with_libraries(files, variable);
        let expected = [start(5, 5), stop(10, 10)];
        assert_eq!(both.switches(), expected, "{files:?} {variable}");
        both.assert_same_calls();
    }
}
