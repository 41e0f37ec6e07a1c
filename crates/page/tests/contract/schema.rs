//! Reads a JSON schema in the form that schemars generates from Rust types: definitions, and their
//! fields in order.

use std::collections::VecDeque;

use serde_json::{Map, Value};

/// The type of a field in the JSON schema.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Type {
    Text,
    Integer,
    Number,
    Flag,
    List(Box<Type>),
    /// A type whose values may also be `null`.
    Maybe(Box<Type>),
    Named(String),
}

pub(crate) struct Definition {
    pub name: String,
    pub description: String,
    pub body: Body,
}

pub(crate) enum Body {
    Object(Vec<Field>),
    /// An enumeration: the allowed words, each with its description.
    Words(Vec<(String, String)>),
}

pub(crate) struct Field {
    pub key: String,
    pub kind: Type,
    /// The unit of the field's value; empty if it has none.
    pub unit: String,
    pub description: String,
}

/// Returns the definitions in a schema: first the root, then the other definitions in the order in which fields refer
/// to them.
pub(crate) fn definitions(schema: &Value) -> Vec<Definition> {
    let root = text(schema, "title");
    let mut names = VecDeque::from([root.clone()]);
    let mut found: Vec<Definition> = Vec::new();
    while let Some(name) = names.pop_front() {
        if found.iter().any(|other| other.name == name) {
            continue;
        }
        let own = if name == root {
            schema
        } else {
            &schema["$defs"][&name]
        };
        let body = body(own);
        if let Body::Object(fields) = &body {
            names.extend(fields.iter().filter_map(|field| named(&field.kind)));
        }
        let description = text(own, "description");
        found.push(Definition {
            name,
            description,
            body,
        });
    }
    found
}

fn body(schema: &Value) -> Body {
    if let Some(words) = schema["oneOf"].as_array() {
        let word = |one: &Value| (text(one, "const"), text(one, "description"));
        return Body::Words(words.iter().map(word).collect());
    }
    assert_eq!(schema["type"], "object", "{schema:#}");
    let properties = schema["properties"].as_object().unwrap();
    let required: Vec<_> = schema["required"].as_array().unwrap().iter().collect();
    assert_eq!(
        required.len(),
        properties.len(),
        "a key may be missing: {schema:#}"
    );
    let field = |key: &Value| {
        let key = key.as_str().unwrap();
        let own = &properties[key];
        Field {
            key: key.to_owned(),
            kind: kind(own),
            unit: text(own, "unit"),
            description: text(own, "description"),
        }
    };
    Body::Object(required.into_iter().map(field).collect())
}

fn kind(schema: &Value) -> Type {
    let maybe = |kind| Type::Maybe(Box::new(kind));
    if let Some(path) = schema["$ref"].as_str() {
        return Type::Named(path.strip_prefix("#/$defs/").unwrap().to_owned());
    }
    if let Some([one, null]) = schema["anyOf"].as_array().map(Vec::as_slice) {
        assert_eq!(null["type"], "null", "{schema:#}");
        return maybe(kind(one));
    }
    match &schema["type"] {
        Value::Array(both) => {
            assert_eq!(both[1..], ["null"], "{schema:#}");
            let mut one: Map<String, Value> = schema.as_object().unwrap().clone();
            one.insert("type".to_owned(), both[0].clone());
            maybe(kind(&Value::Object(one)))
        }
        Value::String(name) => match name.as_str() {
            "string" => Type::Text,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Flag,
            "array" => Type::List(Box::new(kind(&schema["items"]))),
            _ => panic!("{schema:#}"),
        },
        _ => panic!("{schema:#}"),
    }
}

/// Returns the name of the definition that a type refers to; `None` if the type refers to no
/// definition.
fn named(kind: &Type) -> Option<String> {
    match kind {
        Type::List(of) | Type::Maybe(of) => named(of),
        Type::Named(name) => Some(name.clone()),
        Type::Text | Type::Integer | Type::Number | Type::Flag => None,
    }
}

/// Returns the text for a key of a schema, with line breaks replaced by spaces; empty if there is
/// no such key.
fn text(schema: &Value, key: &str) -> String {
    let text = schema[key].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the errors of a JSON value that does not match a type, each with the path of the part
/// that is wrong. `place` is the path of the value.
pub(crate) fn wrong(all: &[Definition], kind: &Type, value: &Value, place: &str) -> Vec<String> {
    let is = |fits: bool| match fits {
        true => Vec::new(),
        false => vec![format!("{place}: {value} is no {kind:?}")],
    };
    match kind {
        Type::Text => is(value.is_string()),
        Type::Integer => is(value.is_u64() || value.is_i64()),
        Type::Number => is(value.is_number()),
        Type::Flag => is(value.is_boolean()),
        Type::Maybe(_) if value.is_null() => Vec::new(),
        Type::Maybe(of) => wrong(all, of, value, place),
        Type::List(of) => match value.as_array() {
            Some(values) => (0..)
                .zip(values)
                .flat_map(|(at, value): (usize, _)| {
                    wrong(all, of, value, &format!("{place}[{at}]"))
                })
                .collect(),
            None => is(false),
        },
        Type::Named(name) => {
            let definition = all.iter().find(|other| other.name == *name).unwrap();
            match (&definition.body, value) {
                (Body::Words(words), Value::String(word)) => {
                    is(words.iter().any(|(known, _)| known == word))
                }
                (Body::Object(fields), Value::Object(values)) => {
                    let mut found = Vec::new();
                    for key in values.keys() {
                        if !fields.iter().any(|field| field.key == *key) {
                            found.push(format!("{place}.{key}: not in the schema"));
                        }
                    }
                    for field in fields {
                        let place = format!("{place}.{}", field.key);
                        match values.get(&field.key) {
                            Some(value) => found.extend(wrong(all, &field.kind, value, &place)),
                            None => found.push(format!("{place}: missing")),
                        }
                    }
                    found
                }
                _ => is(false),
            }
        }
    }
}
