//! Tests of `tllmprof streams`, on recorded streams of CUDA calls.

use std::process::{Command, Output};

fn streams(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tllmprof"))
        .arg("streams")
        .args(arguments)
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../learn/tests/streams"
        ))
        .output()
        .unwrap()
}

#[test]
fn a_json_line_for_each_file() {
    let output = streams(&["--json", "engine_full.csv.gz", "llamacpp_nograph.csv.gz"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("{\"file\": \"engine_full.csv.gz\", \"rule\": \"the "));
    for (line, marks) in lines.iter().zip([400, 100]) {
        assert!(
            line.contains(&format!(", \"true\": {marks}, \"share\": ")),
            "{line}"
        );
        let shares = line.split_once("\"share\": ").unwrap().1;
        let share = shares
            .strip_suffix(", \"inner\": null}")
            .unwrap_or_else(|| panic!("{line}"));
        assert!(share.parse::<f64>().unwrap() >= 0.98, "{line}");
    }
}

#[test]
fn passes_within_an_image_are_the_inner_level() {
    let output = streams(&["--json", "nested_passes8.csv.gz"]);
    let line = String::from_utf8(output.stdout).unwrap();
    let inner = line
        .trim_end()
        .split_once("\"inner\": {\"rule\": \"the launch of kernel f")
        .unwrap()
        .1;
    let share = inner
        .rsplit_once("\"share\": ")
        .unwrap()
        .1
        .strip_suffix("}}")
        .unwrap();
    assert!(share.parse::<f64>().unwrap() >= 0.98, "{line}");
    let output = streams(&["nested_passes8.csv.gz"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n  inner: the launch of kernel f"), "{text}");
}

#[test]
fn words_name_the_rule() {
    let output = streams(&["engine_full.csv.gz"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("iterations of 400"), "{text}");
    assert!(
        text.contains("the device-to-host copy after kernel f16 (once every "),
        "{text}"
    );
}

#[test]
fn a_bad_file_is_named_and_the_others_are_replayed() {
    let output = streams(&["--json", "absent.csv.gz", "hf_cb.csv.gz"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("absent.csv.gz"));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    assert_eq!(streams(&[]).status.code(), Some(2));
}
