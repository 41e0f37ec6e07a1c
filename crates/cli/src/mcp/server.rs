//! The server of `tllmprof mcp`. It answers requests of the Model Context Protocol by calling the tools.

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::{ServerHandler, ServiceExt};

use super::answer;
use super::input::{Input, Interrupts};
use super::reports::Reports;
use super::shared::Shared;
use super::tools::{self, Tool};
use crate::failure;
use crate::output::Kept;

const INSTRUCTIONS: &str = "tllmprof says why a step of a CUDA inference process takes as long as it does. Call runs to find \
     records, then brief of one; finding and table have the details. An answer has at most 8000 characters: next_offset is the \
     offset of the rows after it.";

struct Server {
    allow_capture: bool,
    shared: Arc<Mutex<Shared>>,
    interrupts: Interrupts,
}

/// Answers requests until standard input ends.
///
/// # Errors
/// The first message is not a request of the Model Context Protocol.
pub(crate) async fn serve(allow_capture: bool) -> Result<(), String> {
    let interrupts = Interrupts::default();
    let shared = Arc::new(Mutex::new(Shared {
        reports: Reports::default(),
        messages: Kept::new(),
        interrupts: interrupts.clone(),
    }));
    let server = Server {
        allow_capture,
        shared: Arc::clone(&shared),
        interrupts: interrupts.clone(),
    };
    match server
        .serve((Input::new(interrupts), tokio::io::stdout()))
        .await
    {
        Ok(running) => {
            // An error here means that a task panicked. The panic has already been reported.
            let _ = running.waiting().await;
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(failure::worded(&error.to_string())),
    }
    // Waits until the running tool, which holds the lock, has finished. So a capture that was stopped can still close
    // its windows (ranges of captured iterations). Other tools need only a short time.
    drop(shared.lock());
    Ok(())
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("tllmprof", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = tools::offered(self.allow_capture).map(described).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut tools = tools::offered(self.allow_capture);
        let Some(tool) = tools.find(|tool| tool.name == request.name) else {
            let names: Vec<_> = tools::offered(self.allow_capture)
                .map(|tool| tool.name)
                .collect();
            let why = format!(
                "{:?}: there is no such tool (wanted: {})",
                request.name,
                names.join(", ")
            );
            return Err(ErrorData::invalid_params(why, None));
        };
        let (interrupts, cancelled) = (self.interrupts.clone(), context.ct.clone());
        let watch = tokio::spawn(async move {
            cancelled.cancelled().await;
            interrupts.stop();
        });
        let shared = Arc::clone(&self.shared);
        let arguments = request.arguments.unwrap_or_default();
        let result = tokio::task::spawn_blocking(move || call(tool, arguments, &shared)).await;
        watch.abort();
        result
            .map(Into::into)
            .map_err(|_| ErrorData::internal_error(format!("{}: internal error", tool.name), None))
    }
}

/// Returns the description of a tool, in the form that the protocol requires.
fn described(tool: &Tool) -> rmcp::model::Tool {
    let annotations = ToolAnnotations::new()
        .read_only(tool.is_read_only)
        .destructive(false)
        .open_world(false);
    rmcp::model::Tool::new(tool.name, tool.about, tool.schema()).with_annotations(annotations)
}

/// Calls a tool. Messages that the tool logged are appended to its answer.
fn call(tool: &Tool, arguments: JsonObject, shared: &Mutex<Shared>) -> CallToolResult {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let result = tool.call(arguments, &mut shared);
    let messages = shared.messages.take();
    match result {
        Ok(text) => {
            let mut content = vec![ContentBlock::text(text)];
            content.extend(answer::messages(&messages).map(ContentBlock::text));
            CallToolResult::success(content)
        }
        Err(error) => {
            // The first message is usually the cause of the error, so the message is added to the error's text.
            let mut text = failure::text(&error);
            if let Some(message) = messages.first() {
                text = format!("{text}: {message}");
            }
            CallToolResult::error(vec![ContentBlock::text(answer::error(&text))])
        }
    }
}
