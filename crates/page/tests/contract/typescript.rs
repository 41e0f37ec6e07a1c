//! Writes a schema as types in TypeScript.

use std::fmt::Write;

use crate::schema::{Body, Definition, Type};

pub(crate) fn typescript(all: &[Definition]) -> String {
    let mut text = String::new();
    for definition in all {
        let Definition {
            name,
            description,
            body,
        } = definition;
        write!(text, "\n{}", comment("", description, "")).unwrap();
        match body {
            Body::Object(fields) => {
                writeln!(text, "export interface {name} {{").unwrap();
                for field in fields {
                    text += &comment("    ", &field.description, &field.unit);
                    writeln!(text, "    {}: {};", field.key, kind(&field.kind)).unwrap();
                }
                text += "}\n";
            }
            Body::Words(words) => {
                writeln!(text, "export type {name} =").unwrap();
                for (at, (word, meaning)) in words.iter().enumerate() {
                    let end = if at + 1 == words.len() { ";" } else { "" };
                    writeln!(text, "    /** {meaning} */\n    | {word:?}{end}").unwrap();
                }
            }
        }
    }
    text
}

fn comment(indent: &str, description: &str, unit: &str) -> String {
    match (description, unit) {
        ("", "") => String::new(),
        (_, "") => format!("{indent}/** {description} */\n"),
        _ => format!("{indent}/** {description} Unit: {unit}. */\n"),
    }
}

fn kind(of: &Type) -> String {
    match of {
        Type::Text => "string".to_owned(),
        Type::Integer | Type::Number => "number".to_owned(),
        Type::Flag => "boolean".to_owned(),
        Type::Named(name) => name.clone(),
        Type::Maybe(of) => format!("{} | null", kind(of)),
        Type::List(of) => match **of {
            Type::Maybe(_) => format!("({})[]", kind(of)),
            _ => format!("{}[]", kind(of)),
        },
    }
}
