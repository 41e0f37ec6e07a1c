//! The list of the tools that `tllmprof mcp` offers, and the check of their arguments.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::shared::Shared;
use super::{comparison, files, live, reading};

/// A tool that an assistant can call: its name, its description, the schema of its arguments, and its function.
pub(crate) struct Tool {
    pub name: &'static str,
    /// The description of the tool. An assistant reads it to decide whether to use the tool.
    pub about: &'static str,
    /// True if the tool changes nothing, neither files nor processes.
    pub is_read_only: bool,
    schema: fn() -> Result<Arc<JsonObject>, String>,
    call: fn(Value, &mut Shared) -> Result<String>,
}

/// Defines a tool that reads data and changes neither files nor processes.
macro_rules! reads {
    ($name:literal, $module:ident::$call:ident, $arguments:ident, $about:literal) => {
        Tool {
            name: $name,
            about: $about,
            is_read_only: true,
            schema: schema_for_input::<$module::$arguments>,
            call: |arguments, shared| $module::$call(&parsed(arguments)?, shared),
        }
    };
}

/// All tools. The last tool captures windows, so it is offered only with `--allow-capture`.
const TOOLS: [Tool; 9] = [
    reads!(
        "runs",
        files::runs,
        Runs,
        "Lists the folders with records of tllmprof, nsys exports and PyTorch traces below a folder, the newest first."
    ),
    reads!(
        "brief",
        reading::brief,
        Brief,
        "Says what was measured in a run, how long iterations take, why, and where the time goes. Start here."
    ),
    reads!(
        "finding",
        reading::finding,
        Finding,
        "Returns a finding with its evidence, advice, loss (part of the time) and the rows of the ledgers that it claims; without id, all findings: verdict yes, no or unknown."
    ),
    reads!(
        "table",
        reading::table,
        TableRequest,
        "Returns rows of a table of a run. host and gpu are the ledgers, which say where the time of iterations goes. Times are in nanoseconds, shares are parts of 1."
    ),
    reads!(
        "compare",
        comparison::compare,
        Compare,
        "Compares runs: faster, slower, equal or cannot tell, with 95 % intervals, and what differs."
    ),
    reads!(
        "layer",
        reading::layer,
        Layer,
        "Returns the GPU time of a layer of the model and of the layers within it; the run needs --layers."
    ),
    reads!(
        "slow_iterations",
        reading::slow_iterations,
        SlowIterations,
        "Returns the slowest iterations, each with the causes that made it longer than others."
    ),
    reads!(
        "live_processes",
        live::live_processes,
        LiveProcesses,
        "Lists the processes on this machine that run under tllmprof and can be captured."
    ),
    Tool {
        is_read_only: false,
        ..reads!(
            "capture",
            live::capture,
            Capture,
            "Records the next iterations of processes that run, and returns the brief of them. Waits until they are over."
        )
    },
];

/// Returns the tools that are offered to the assistant. The tool that captures windows is among them only if
/// `allow_capture` is true.
pub(crate) fn offered(allow_capture: bool) -> impl Iterator<Item = &'static Tool> {
    TOOLS
        .iter()
        .filter(move |tool| allow_capture || tool.is_read_only)
}

impl Tool {
    /// Returns the JSON schema of the tool's arguments. Unknown arguments are not accepted.
    pub(crate) fn schema(&self) -> Arc<JsonObject> {
        let mut schema = (self.schema)().unwrap_or_default();
        let object = Arc::make_mut(&mut schema);
        object.insert("additionalProperties".to_owned(), Value::Bool(false));
        let properties = object.get_mut("properties").and_then(Value::as_object_mut);
        let properties = properties.into_iter().flatten();
        for property in properties.filter_map(|(_, property)| property.as_object_mut()) {
            // The schema generator gives optional arguments the default null. Null is not a value of the argument's
            // type, so the default is removed.
            if property.get("default") == Some(&Value::Null) {
                property.remove("default");
            }
        }
        schema
    }

    /// Calls the tool with these arguments. Returns the text of its answer.
    ///
    /// # Errors
    /// The arguments are wrong, or the tool's work failed.
    pub(crate) fn call(&self, arguments: JsonObject, shared: &mut Shared) -> Result<String> {
        self.check(&arguments)?;
        (self.call)(Value::Object(arguments), shared)
    }

    /// Checks the names and types of arguments, for clearer errors than those of the JSON parser.
    fn check(&self, arguments: &JsonObject) -> Result<()> {
        let schema = self.schema();
        let properties = schema.get("properties").and_then(Value::as_object);
        let property = |name: &str| properties.and_then(|properties| properties.get(name));
        for (name, value) in arguments {
            let Some(property) = property(name) else {
                let known = properties
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                bail!(
                    "{name}: {} has no such argument (wanted: {known})",
                    self.name
                );
            };
            let wanted = property
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if !is_of_type(value, wanted) {
                bail!("{name} {value}: wanted: {}", described(wanted));
            }
        }
        let required = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut missing = required
            .filter_map(Value::as_str)
            .filter(|name| !arguments.contains_key(*name));
        match missing.next() {
            Some(name) => bail!("{name}: it is missing (wanted: it, for {})", self.name),
            None => Ok(()),
        }
    }
}

/// Returns true if a value has the type `name` of JSON schemas. Only the types that arguments use are known; any name
/// other than `integer` and `array` is taken for `string`.
fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_u64(),
        "array" => value
            .as_array()
            .is_some_and(|values| values.iter().all(Value::is_string)),
        _ => value.is_string(),
    }
}

/// Returns the name of a JSON schema's type in words, for messages.
fn described(name: &str) -> &'static str {
    match name {
        "integer" => "a whole number",
        "array" => "a list of texts",
        _ => "a text",
    }
}

/// Parses a tool's arguments into the type `T` of these arguments.
fn parsed<T: DeserializeOwned + JsonSchema>(arguments: Value) -> Result<T> {
    let given = arguments.to_string();
    serde_json::from_value(arguments).map_err(|why| anyhow!("arguments {given}: {why}"))
}
