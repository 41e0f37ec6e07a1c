//! Checks that `docs/diagnosis.md` contains the table of rules.

use std::fmt::Write;

use tllmprof_report::findings::RULES;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/diagnosis.md");
const BEGINS: &str = "<!-- the table: BLESS=1 cargo test -p tllmprof-report page -->\n";
const ENDS: &str = "<!-- its end -->\n";

#[test]
fn the_page_has_the_table() {
    let mut table = String::from(
        "\n| rule | is judged by | says yes where | what to do | where it is unknown |\n",
    );
    table.push_str("|---|---|---|---|---|\n");
    for rule in RULES {
        let (name, evidence, threshold) = (rule.name, rule.evidence, (rule.threshold)());
        let (advice, to_know) = (rule.advice, rule.to_know);
        writeln!(
            table,
            "| `{name}` | {evidence} | {threshold} | {advice} | {to_know} |"
        )
        .unwrap();
    }
    table.push('\n');
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGINS).unwrap();
    let (_, after) = rest.split_once(ENDS).unwrap();
    let expected = format!("{before}{BEGINS}{table}{ENDS}{after}");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, &expected).unwrap();
    } else {
        assert!(page == expected, "{PAGE} is not what it was:\n{table}");
    }
}
