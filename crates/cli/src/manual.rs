//! Generates the files that packages ship: shell completions and manual pages, from the command's options.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::output;

#[derive(clap::Args)]
#[command(after_help = "\
  tllmprof completions bash > ~/.local/share/bash-completion/completions/tllmprof
  tllmprof completions zsh > ~/.zfunc/_tllmprof           # a folder of $fpath
  tllmprof completions fish > ~/.config/fish/completions/tllmprof.fish

The packages for Debian and for RPM install them.")]
pub(crate) struct Completions {
    /// Shell to print completions for
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct ManualArguments {
    /// Folder to write to, which is created if it does not exist
    folder: PathBuf,
}

pub(crate) fn completions(arguments: &Completions, mut command: Command) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "tllmprof", &mut text);
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for the command, and one for each subcommand that is not hidden.
pub(crate) fn run(arguments: &ManualArguments, mut command: Command) -> Result<ExitCode> {
    fs::create_dir_all(&arguments.folder)
        .with_context(|| arguments.folder.display().to_string())?;
    // `build` changes the names of subcommands to the names that users type, so it runs before the names are read.
    command.build();
    let verbs: Vec<_> = command.get_subcommands().cloned().collect();
    for (page, of) in std::iter::once(("tllmprof".to_owned(), command)).chain(
        verbs
            .into_iter()
            .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
            .map(|verb| (format!("tllmprof-{}", verb.get_name()), verb)),
    ) {
        let path = arguments.folder.join(format!("{page}.1"));
        let file = File::create(&path).with_context(|| path.display().to_string());
        clap_mangen::Man::new(of.disable_help_subcommand(true))
            .title(page)
            .render(&mut file?)
            .with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
