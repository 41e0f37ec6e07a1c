//! The text output of findings.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::findings::ledger::IDLE_RULE;
use crate::findings::{Confidence, Finding, LedgerSide, Verdict};
use crate::numbers::units::{Share, Time};
use crate::print::lines::{Colour, Lines};
use crate::print::quote;
use crate::process::Process;

/// Maximum number of findings in a short report.
const MAX_FINDINGS: usize = 3;
/// Name for missing data that only a newer version of tllmprof's library records.
const NEWER: &str = "a newer library";
const KERNELS: &str = "--kernels";
/// Maximum length of a finding's evidence in a short report, in characters.
const MAX_EVIDENCE: usize = 480;
/// Indentation of a finding's evidence and advice, in columns.
const INDENT: usize = 6;
/// Maximum number of ledger rows (causes of time) that are listed as explained by one finding.
const MAX_CLAIMS: usize = 10;
/// Maximum number of files in a suggested command. For more files, the command names their folder.
const MAX_FILES: usize = 3;

impl Confidence {
    const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Returns words for the confidence in a finding; empty if its verdict is unknown.
fn confidence(finding: &Finding) -> String {
    let confidence = finding.confidence;
    confidence.map_or_else(String::new, |confidence| {
        format!(", confidence {}", confidence.name())
    })
}

/// Returns the command line that prints the details of a finding.
fn command(finding: &Finding, processes: &[Process]) -> String {
    // Several processes may come from the same trace file, so list each file only once.
    let mut files: Vec<&Path> = Vec::new();
    for process in processes {
        if !files.contains(&&*process.file) {
            files.push(&process.file);
        }
    }
    let folder = files.first().and_then(|file| file.parent());
    let is_one_folder = files.iter().all(|file| file.parent() == folder);
    let files = match folder {
        Some(folder) if files.len() > MAX_FILES && is_one_folder => match folder.as_os_str() {
            here if here.is_empty() => vec![Path::new(".")],
            _ => vec![folder],
        },
        _ => files,
    };
    let mut line = format!("tllmprof report --finding {}", finding.id);
    for file in files {
        line.push(' ');
        let word = quote::word(file.as_os_str().as_bytes());
        line.push_str(&String::from_utf8_lossy(&word));
    }
    line
}

/// Adds all details of a finding to the text: verdict, evidence, advice, and the ledger rows whose
/// time it explains. The times of these rows are totals over all iterations. `names` are the names
/// of the processes.
pub fn finding(finding: &Finding, names: &[String], lines: &mut Lines) {
    let id = finding.id;
    let verdict = finding.verdict.name();
    let text = format!("{id}: {verdict}{}{}", confidence(finding), cost(finding));
    lines.heading(format_args!("{text}"));
    lines.text(&format!("  {}", finding.evidence), INDENT);
    if !finding.advice.is_empty() {
        lines.text(&format!("  → {}", finding.advice), INDENT);
    }
    let most = lines.rows(MAX_CLAIMS);
    for row in finding.claims.iter().take(most) {
        let of = match (names, row.ledger) {
            ([_], LedgerSide::Host) => "host".to_owned(),
            ([_], LedgerSide::Gpu) => "GPU".to_owned(),
            (_, LedgerSide::Host) => format!("{}, host", names[row.process]),
            (_, LedgerSide::Gpu) => format!("{}, GPU", names[row.process]),
        };
        let cause = lines.name(&row.cause, lines.width().saturating_sub(30));
        let time = Time(row.ns).to_string();
        lines.add(format_args!("{time:>11}  {of}: {cause}"));
    }
    let more = finding.claims.len().saturating_sub(most);
    if more > 0 {
        lines.add(format_args!(
            "{:>11}  {more} more rows (--json has them)",
            ""
        ));
    }
}

/// Returns words for the time that a finding costs, without the time that the losses of other findings contain; empty
/// if the cost is not known.
fn cost(finding: &Finding) -> String {
    let Some(loss) = finding.loss else {
        return String::new();
    };
    let bound = match (finding.loss_is_at_most, finding.loss_is_at_least) {
        (true, _) => "at most ",
        (_, true) => "at least ",
        _ => "",
    };
    let beyond = match finding.is_partly_others {
        true => " beyond the others",
        false => "",
    };
    format!(" (costs {bound}{}{beyond})", Share(loss))
}

/// Adds a finding that holds, with its advice, to the text. In a brief report, one more line has
/// the finding's identifier and the command that prints its details.
fn cause(finding: &Finding, processes: &[Process], lines: &mut Lines) {
    let name = finding.rule.name;
    let evidence = lines.sentence(&finding.evidence, MAX_EVIDENCE);
    let text = format!("  {name}{}: {evidence}", cost(finding));
    lines.coloured_text(&text, INDENT, 2 + name.len(), Colour::Bad);
    if !finding.advice.is_empty() {
        lines.text(&format!("    → {}", finding.advice), INDENT);
    }
    if lines.is_brief() {
        let (id, sure) = (finding.id, confidence(finding));
        let more = command(finding, processes);
        lines.text(&format!("    id {id}{sure}; more: {more}"), INDENT);
    }
}

/// Returns the end of a sentence that says that the GPU's busy time was not measured: the reason,
/// or the option that measures it.
fn not_measured(processes: &[Process]) -> &'static str {
    if processes.iter().any(|one| one.kernels.window.is_some()) {
        "measured: the kernels that were recorded have no times"
    } else if processes.iter().any(Process::lacks_kernel_window) {
        "measured: kernels were asked for, and are recorded in windows, none of which opened"
    } else if processes.iter().any(Process::asked_for_kernels) {
        "measured: kernels were asked for, and the record has none"
    } else {
        "measured: run with --kernels, or with no --window"
    }
}

/// Returns why kernels are missing although they were asked for, and what to do, as the end of a sentence. Returns `None`
/// if no process was asked for kernels, so that the option `--kernels` helps, or if kernels were recorded.
fn kernels_not_recorded(processes: &[Process]) -> Option<&'static str> {
    let mut asked = processes.iter().filter(|one| one.asked_for_kernels());
    asked.clone().next()?;
    let is_cut = |one: &Process| {
        let last = one.windows.last();
        last.is_some_and(|window| window.cut || window.iterations.last().is_some_and(|it| it.cut))
    };
    if has_kernels(processes) {
        None
    } else if asked.clone().any(Process::lacks_kernel_window) {
        Some(
            "which were asked for, and are recorded in windows: none opened before the program ended; run it for longer, or \
             with --window N-M --kernels",
        )
    } else if asked.any(is_cut) {
        Some(
            "which were asked for, and are recorded in the last iterations of a window: the program ended before them; run it \
             for longer, or with --window N-M --kernels",
        )
    } else {
        Some("which were asked for, and could not be recorded: a line of the log says why")
    }
}

/// Returns true if kernels were recorded in at least one iteration of a process.
fn has_kernels(processes: &[Process]) -> bool {
    let mut windows = processes
        .iter()
        .filter_map(|one| one.kernels.window.as_ref());
    windows.any(|window| window.iterations > 0)
}

/// Adds the findings that hold to the text, in the order of `findings`, and the data that
/// are missing for unknown findings.
pub fn findings(findings: &[Finding], processes: &[Process], lines: &mut Lines) {
    let is_known = processes.iter().any(|process| process.gpu.share.is_some());
    if findings.is_empty() {
        return;
    }
    let are = |verdict| {
        findings
            .iter()
            .filter(move |finding| finding.verdict == verdict)
    };
    let is_foreign = findings.iter().any(|finding| finding.is_foreign);
    let all = are(Verdict::Yes).count();
    let idle = are(Verdict::Unknown).find(|finding| finding.rule.name == IDLE_RULE);
    match (all, is_known) {
        (0, true) => match idle {
            Some(idle) => {
                lines.heading(format_args!("no cause can be named"));
                let evidence = lines.sentence(&idle.evidence, MAX_EVIDENCE);
                lines.text(&format!("  {evidence}"), INDENT);
            }
            None => lines.heading(format_args!("nothing stands out")),
        },
        (0, false) => {
            lines.heading(format_args!("no cause can be named"));
            let why = if is_foreign {
                "recorded"
            } else {
                not_measured(processes)
            };
            lines.text(&format!("  how long the GPU is busy was not {why}"), INDENT);
        }
        _ if are(Verdict::Yes).any(|finding| finding.loss.is_some()) => {
            lines.heading(format_args!(
                "what stands out, and how much of the time it costs"
            ));
        }
        _ => lines.heading(format_args!("what stands out")),
    }
    let most = lines.rows(MAX_FINDINGS).max(1);
    for finding in are(Verdict::Yes).take(most) {
        cause(finding, processes, lines);
    }
    let more = all.saturating_sub(most);
    if more > 0 {
        lines.add(format_args!("  and {more} more (--full has them)"));
    }
    not_known(findings, processes, lines);
}

/// Adds the data that are missing for unknown findings, and the options that record them.
fn not_known(findings: &[Finding], processes: &[Process], lines: &mut Lines) {
    let is_foreign = findings.iter().any(|finding| finding.is_foreign);
    let unknown = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Unknown);
    let mut needed: Vec<&str> = Vec::new();
    for finding in unknown {
        let needs = finding.needs;
        if !needs.is_empty() && !needed.contains(&needs) {
            needed.push(needs);
        }
    }
    let by_run = |needs: &&str| needs.starts_with('-') || *needs == NEWER;
    if is_foreign {
        let by_run: Vec<_> = needed.iter().copied().filter(by_run).collect();
        // Do not say that only tllmprof records kernels: the other profiler records them, too, but this trace has too
        // few of them.
        let options = by_run
            .iter()
            .filter(|needs| ![NEWER, KERNELS].contains(needs));
        let options = options.copied().collect::<Vec<_>>().join(", ");
        if !options.is_empty() {
            lines.text(&format!("only tllmprof run records {options}"), INDENT);
        }
        needed.retain(|needs| !by_run.contains(needs));
    }
    if !is_foreign && needed.contains(&KERNELS) {
        let missing = kernels_not_recorded(processes);
        if let Some(why) = missing {
            lines.text(&format!("not known without kernels, {why}"), INDENT);
        }
        // If there are kernels, the findings lack something else.
        if missing.is_some() || has_kernels(processes) {
            needed.retain(|needs| *needs != KERNELS);
        }
    }
    // List command-line options before other missing data.
    needed.sort_by_key(|needs| !needs.starts_with('-'));
    if !needed.is_empty() {
        lines.text(&format!("not known without {}", needed.join(", ")), INDENT);
    }
}
