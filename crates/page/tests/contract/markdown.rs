//! Writes a schema as tables in Markdown.

use std::fmt::Write;

use crate::schema::{Body, Definition, Type};

pub(crate) fn markdown(all: &[Definition]) -> String {
    let mut text = String::new();
    for (at, definition) in all.iter().enumerate() {
        let Definition {
            name,
            description,
            body,
        } = definition;
        // The first definition describes the whole document and needs no heading.
        if at > 0 {
            writeln!(text, "\n## {name}\n").unwrap();
        }
        writeln!(text, "{description}\n").unwrap();
        match body {
            Body::Object(fields) => {
                text += "| key | type | unit | meaning |\n|---|---|---|---|\n";
                for field in fields {
                    let (key, unit) = (&field.key, &field.unit);
                    let (kind, meaning) = (kind(&field.kind), cell(&field.description));
                    writeln!(text, "| `{key}` | {kind} | {unit} | {meaning} |").unwrap();
                }
            }
            Body::Words(words) => {
                text += "| value | meaning |\n|---|---|\n";
                for (word, meaning) in words {
                    writeln!(text, "| `{word:?}` | {} |", cell(meaning)).unwrap();
                }
            }
        }
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn kind(of: &Type) -> String {
    match of {
        Type::Text => "string".to_owned(),
        Type::Integer => "integer".to_owned(),
        Type::Number => "number".to_owned(),
        Type::Flag => "boolean".to_owned(),
        Type::Named(name) => format!("[{name}](#{})", name.to_lowercase()),
        Type::Maybe(of) => format!("{} or null", kind(of)),
        Type::List(of) => format!("list of {}", kind(of)),
    }
}
