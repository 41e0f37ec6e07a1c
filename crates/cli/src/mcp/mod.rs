//! `tllmprof mcp`: offers the results of other commands to assistants, as tools of the Model Context Protocol over
//! standard input and output.

mod answer;
mod comparison;
mod files;
mod input;
mod live;
mod reading;
mod reports;
mod server;
mod shared;
mod tools;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::output;

#[derive(Args)]
#[command(
    after_help = "An MCP client starts this command and sends requests to its standard input. docs/mcp.md lists the tools and shows how to register the command."
)]
pub(crate) struct McpArguments {
    /// Also offer the tool that captures windows of running processes
    #[arg(long)]
    allow_capture: bool,
    /// Folder that relative file names refer to [default: the working directory]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn run(arguments: &McpArguments) -> Result<ExitCode> {
    if let Some(folder) = &arguments.folder {
        env::set_current_dir(folder).with_context(|| folder.display().to_string())?;
    }
    // Standard output must be open. Otherwise a file that is opened later would get the descriptor of standard output,
    // and the protocol's messages would go to that file.
    let _ = output::stdout()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .context("no thread can be started to answer requests")?;
    let served = runtime.block_on(server::serve(arguments.allow_capture));
    // This call does not wait for the thread that reads standard input, because the read may block forever.
    runtime.shutdown_background();
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(why) => bail!("standard input: {why} (wanted: a client of the Model Context Protocol)"),
    }
}
