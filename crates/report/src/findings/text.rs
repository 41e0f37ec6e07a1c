//! Text of the findings.

use crate::findings::ledger::IDLE_RULE;
use crate::findings::{Finding, Verdict};
use crate::numbers::units::Share;
use crate::print::lines::{Colour, Lines};

/// Maximum number of findings on a screen.
const MAX_FINDINGS: usize = 3;
/// The need of a rule whose data only newer libraries record.
const NEWER: &str = "a newer library";
const KERNELS: &str = "--kernels";
/// Maximum length of the evidence of a finding on a screen, in characters.
const MAX_EVIDENCE: usize = 480;
/// Indentation of evidence and advice, in columns.
const INDENT: usize = 6;

/// Returns the cost of a finding in words. No time counts for two findings.
fn cost(finding: &Finding) -> String {
    match (finding.loss, finding.is_partly_others) {
        (None, _) => String::new(),
        (Some(loss), false) => format!(" (costs {})", Share(loss)),
        (Some(loss), true) => format!(" (costs {} beyond the others)", Share(loss)),
    }
}

/// Adds the findings that hold, the strongest first, and the needs of unknown ones. `is_known` is true if GPU busy time
/// was measured.
pub fn findings(findings: &[Finding], is_known: bool, lines: &mut Lines) {
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
            lines.text(
                match is_foreign {
                    true => "  how long the GPU is busy was not recorded",
                    false => {
                        "  how long the GPU is busy was not measured: run with --kernels, or with no --window"
                    }
                },
                INDENT,
            );
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
        let name = finding.rule.name;
        let evidence = lines.sentence(&finding.evidence, MAX_EVIDENCE);
        let text = format!("  {name}{}: {evidence}", cost(finding));
        lines.coloured_text(&text, INDENT, 2 + name.len(), Colour::Bad);
        if !finding.advice.is_empty() {
            lines.text(&format!("    → {}", finding.advice), INDENT);
        }
    }
    let more = all.saturating_sub(most);
    if more > 0 {
        lines.add(format_args!("  and {more} more (--full has them)"));
    }
    let mut needed: Vec<&str> = Vec::new();
    for finding in are(Verdict::Unknown) {
        let needs = finding.needs;
        if !needs.is_empty() && !needed.contains(&needs) {
            needed.push(needs);
        }
    }
    let by_run = |needs: &&str| needs.starts_with('-') || *needs == NEWER;
    if is_foreign {
        let by_run: Vec<_> = needed.iter().copied().filter(by_run).collect();
        // The kernels of the trace may not have been sufficient.
        let options = by_run
            .iter()
            .filter(|needs| ![NEWER, KERNELS].contains(needs));
        let options = options.copied().collect::<Vec<_>>().join(", ");
        if !options.is_empty() {
            lines.text(&format!("only tllmprof run records {options}"), INDENT);
        }
        needed.retain(|needs| !by_run.contains(needs));
    }
    // Options come first.
    needed.sort_by_key(|needs| !needs.starts_with('-'));
    if !needed.is_empty() {
        lines.text(&format!("not known without {}", needed.join(", ")), INDENT);
    }
}
