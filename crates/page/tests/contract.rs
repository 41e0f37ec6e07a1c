//! Checks the JSON of the report and of the page against their schemas. Also checks that the files
//! generated from the schemas are up to date: the types of the page's script, and the documentation
//! of `report --json`.

mod common;
#[path = "common/engine/mod.rs"]
mod engine;
#[path = "contract/markdown.rs"]
mod markdown;
#[path = "contract/schema.rs"]
mod schema;
#[path = "contract/typescript.rs"]
mod typescript;

use std::fs;

use common::{TestPage, damaged, element, engine, repo};
use schema::{Definition, Type, definitions, wrong};
use serde_json::{Value, json};
use tllmprof_report::Report;

const BLESS: &str = "BLESS=1 cargo test -p tllmprof-page --test contract";

/// Checks that a generated text is the same as a file of the repository. With `BLESS=1`, writes the
/// text to the file first.
fn check_generated(path: &str, made: &str) {
    let path = repo().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, made, "{} is stale: run {BLESS}", path.display());
}

#[test]
fn the_types_of_the_pages_script_are_those_of_its_data() {
    let made = typescript::typescript(&definitions(&tllmprof_page::schema()));
    let head = format!(
        "// The data of the page. Made from `crates/page/src/data.rs` and `crates/report/src`:\n// {BLESS}\n"
    );
    check_generated("crates/page/web/src/contract.ts", &(head + &made));
}

#[test]
fn the_documentation_of_the_json_is_that_of_its_types() {
    let made = markdown::markdown(&definitions(&Report::schema()));
    let head = format!(
        "# The JSON of `tllmprof report`\n\n<!-- made from crates/report/src: {BLESS} -->\n\n"
    );
    check_generated("docs/report-json.md", &(head + &made));
}

#[test]
fn what_is_written_is_as_the_schemas_say() {
    let mut ranks: Vec<_> = (0..3).map(engine).collect();
    for rank in &mut ranks {
        rank.windows = vec![(100, 150), (400, 409)];
        rank.experts = 16;
    }
    let mut pages = vec![
        TestPage::from_engines(&ranks, 1000),
        TestPage::from_engines(&[engine(0)], 1000),
    ];
    pages.extend((0..20).map(|seed| TestPage::from_records(&[damaged(seed)], 4000)));
    let schemas = [Report::schema(), tllmprof_page::schema()];
    let [report, data] = schemas.map(|schema| definitions(&schema));
    for shown in &pages {
        let mut written = Vec::new();
        shown.report.json(&mut written).unwrap();
        fits(&report, &written);
        let html = String::from_utf8(shown.html()).unwrap();
        fits(&data, element(&html, "data").as_bytes());
    }
}

fn fits(all: &[Definition], json: &[u8]) {
    let value: Value = serde_json::from_slice(json).unwrap();
    let root = Type::Named(all[0].name.clone());
    assert_eq!(wrong(all, &root, &value, "$"), Vec::<String>::new());
}

/// Returns the definitions of a small test schema, in which each kind of type occurs once.
fn one_of_each() -> Vec<Definition> {
    definitions(&json!({
        "title": "Root", "description": "A root\nof two lines.", "type": "object",
        "properties": {
            "a": { "type": ["integer", "null"], "unit": "ns", "description": "A | b." },
            "z": { "type": "array", "items": { "anyOf": [{ "$ref": "#/$defs/Word" }, { "type": "null" }] } },
            "b": { "type": "boolean" },
            "n": { "type": "number" },
        },
        "required": ["z", "a", "b", "n"],
        "$defs": { "Word": { "oneOf": [
            { "const": "one", "description": "First." }, { "const": "two", "description": "Second." },
        ] } },
    }))
}

#[test]
fn a_schema_gives_types_and_tables_in_its_order() {
    let types = "\n/** A root of two lines. */\nexport interface Root {\n    z: (Word | null)[];\n    \
                 /** A | b. Unit: ns. */\n    a: number | null;\n    b: boolean;\n    n: number;\n}\n\
                 \nexport type Word =\n    /** First. */\n    | \"one\"\n    /** Second. */\n    | \"two\";\n";
    assert_eq!(typescript::typescript(&one_of_each()), types);
    let tables = "A root of two lines.\n\n| key | type | unit | meaning |\n|---|---|---|---|\n\
                  | `z` | list of [Word](#word) or null |  |  |\n| `a` | integer or null | ns | A \\| b. |\n\
                  | `b` | boolean |  |  |\n| `n` | number |  |  |\n\
                  \n## Word\n\n\n\n| value | meaning |\n|---|---|\n| `\"one\"` | First. |\n| `\"two\"` | Second. |\n";
    assert_eq!(markdown::markdown(&one_of_each()), tables);
}

#[test]
fn what_is_not_as_a_schema_says_is_named() {
    let all = one_of_each();
    let root = Type::Named("Root".to_owned());
    let good = json!({ "z": ["one", null], "a": null, "b": true, "n": 0.5 });
    assert!(wrong(&all, &root, &good, "$").is_empty());
    let bad = json!({ "z": ["three"], "a": 0.5, "n": 1, "m": 1 });
    let found = wrong(&all, &root, &bad, "$");
    let places: Vec<_> = found
        .iter()
        .map(|text| text.split(':').next().unwrap())
        .collect();
    assert_eq!(places, ["$.m", "$.z[0]", "$.a", "$.b"], "{found:?}");
}
