//! The rows in `docs/harmless.md`.

use std::fs;

use crate::common::{repo, skipped};
use crate::situations::ALL;

const BEGINS: &str = "<!-- situations: BLESS=1 cargo test --test odd page -->\n";
const ENDS: &str = "<!-- end of situations -->\n";

/// What cannot be made on the machines that the tests run on, and what stands in for it.
const NOT_HERE: [(&str, &str); 3] = [
    (
        "a checkpoint and a restore by CRIU, whose packages do not know the kernel",
        "an image by `gcore`, and a time namespace as after a restore",
    ),
    (
        "`vm.overcommit_memory=2`, a clock that is set, suspend",
        "they are the whole machine's",
    ),
    (
        "NFS",
        "a file system without `fallocate`, and one in user space without shared mappings",
    ),
];

fn table() -> String {
    let mut page = String::from(BEGINS);
    page += "| kind | what happens | what then is so | from |\n|---|---|---|---|\n";
    for row in ALL {
        let name = row.report.trim_start_matches("https://github.com/");
        let name = name.replace("/issues/", " #").replace("/pull/", " #");
        page += &format!(
            "| {} | {} | {} | [{name}]({}) |\n",
            row.kind, row.happens, row.then, row.report
        );
    }
    page += "\nNot made, and why, or what stands in for it:\n\n";
    for (what, instead) in NOT_HERE {
        page += &format!("- {what}: {instead}\n");
    }
    page + ENDS
}

#[test]
fn the_page_has_the_situations() {
    let path = repo().join("docs/harmless.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGINS).expect("the table's beginning");
    let (_, after) = rest.split_once(ENDS).expect("the table's end");
    let made = format!("{before}{}{after}", table());
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        made,
        "BLESS=1 cargo test --test odd page"
    );
}

#[test]
fn there_are_more_than_twenty_of_eight_kinds() {
    let kinds: std::collections::BTreeSet<_> = ALL.iter().map(|row| row.kind).collect();
    assert!(
        ALL.len() >= 20 && kinds.len() >= 8,
        "{} of {kinds:?}",
        ALL.len()
    );
}

#[test]
fn what_is_not_made_here_is_named() {
    for (what, instead) in NOT_HERE {
        skipped(&format!("{what} ({instead})"));
    }
}
