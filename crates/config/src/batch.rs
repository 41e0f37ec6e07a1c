//! The setting `TLLMPROF_BATCH`: a Python function, and formulas that compute the size of a batch from the function's
//! arguments.
//!
//! ```text
//! MODULE:QUALNAME=NAME:FORMULA,…
//! ```

use std::fmt;

use crate::error::{Problem, quoted, shown};
use crate::formula::Formulas;
use crate::function::PyFunction;

/// Names of the formulas. `requests` is required, and so are exactly two of the other three. The third of these follows
/// from the two: `tokens` is the sum of `prefill_tokens` and `decode_tokens`.
const NAMES: [&str; 4] = ["requests", "tokens", "prefill_tokens", "decode_tokens"];

/// A parsed value of `TLLMPROF_BATCH`, such as
/// `my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchFunction {
    pub function: PyFunction,
    /// Formulas for the numbers of requests, tokens and prefill tokens, in this order.
    pub formulas: Formulas<3>,
    /// The value of the setting as the user typed it, for messages.
    text: String,
}

impl BatchFunction {
    const WANTED: &str = "MODULE:QUALNAME=requests:FORMULA and two of tokens:FORMULA, \
                          prefill_tokens:FORMULA and decode_tokens:FORMULA, separated by commas, such as \
                          my.engine:Runner.step=requests:len(batch.reqs),tokens:batch.total,prefill_tokens:batch.new";

    /// Parses a value of `TLLMPROF_BATCH`.
    ///
    /// # Errors
    /// Returns an error if the function is missing or malformed, a formula does not parse, or a formula is
    /// missing or given twice.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let problem = |what: String| Problem::new(what, Self::WANTED);
        let Some((function, formulas)) = text.split_once('=') else {
            return Err(problem("no \"=\" behind the function".to_owned()));
        };
        let function = PyFunction::parse(function).map_err(|bad| problem(bad.problem))?;
        let mut given = [None; NAMES.len()];
        for part in parts(formulas) {
            let Some((name, formula)) = part.split_once(':') else {
                let part = quoted(part.trim());
                return Err(problem(format!("{part} has no name and \":\" in front")));
            };
            let name = name.trim();
            let Some(place) = NAMES.iter().position(|known| *known == name) else {
                let known = NAMES.join(", ");
                let name = quoted(name);
                return Err(problem(format!("{name} is not known; {known} are")));
            };
            Formulas::parse([formula]).map_err(|bad| problem(format!("{name}: {bad}")))?;
            if given[place].replace(formula).is_some() {
                return Err(problem(format!("{name} is there twice")));
            }
        }
        let [Some(requests), tokens, prefill, decode] = given else {
            return Err(problem("requests is missing".to_owned()));
        };
        let (tokens, prefill) = match (tokens, prefill, decode) {
            (Some(tokens), Some(prefill), None) => (tokens.to_owned(), prefill.to_owned()),
            (Some(tokens), None, Some(decode)) => {
                (tokens.to_owned(), format!("({tokens}) - ({decode})"))
            }
            (None, Some(prefill), Some(decode)) => {
                (format!("({prefill}) + ({decode})"), prefill.to_owned())
            }
            (Some(_), Some(_), Some(_)) => {
                let three = "two of tokens, prefill_tokens and decode_tokens say the third";
                return Err(problem(three.to_owned()));
            }
            _ => {
                let few = "two of tokens, prefill_tokens and decode_tokens are needed";
                return Err(problem(few.to_owned()));
            }
        };
        // Each formula was valid by itself, but the formulas together may use too many arguments.
        let formulas = Formulas::parse([requests, &tokens, &prefill]);
        Ok(Self {
            function,
            formulas: formulas.map_err(|bad| problem(format!("wanted {}", bad.wanted)))?,
            text: shown(text.trim().as_ref()),
        })
    }
}

impl fmt::Display for BatchFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits a text at commas, except commas inside brackets or quotes.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let (mut open, mut is_text) = (0_usize, false);
    text.split(move |c| {
        match c {
            '\'' => is_text = !is_text,
            _ if is_text => (),
            '(' | '[' => open += 1,
            ')' | ']' => open = open.saturating_sub(1),
            _ => (),
        }
        c == ',' && open == 0 && !is_text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> BatchFunction {
        BatchFunction::parse(text).unwrap_or_else(|bad| panic!("{text}: {bad:?}"))
    }

    fn formulas(requests: &str, tokens: &str, prefill: &str) -> Formulas<3> {
        Formulas::parse([requests, tokens, prefill]).unwrap()
    }

    #[test]
    fn a_function_has_formulas_for_requests_and_tokens() {
        let text = " my.engine:Runner.step = requests:len(batch.reqs), prefill_tokens:0, tokens:batch.total ";
        let batch = parse(text);
        assert_eq!(batch.function.to_string(), "my.engine:Runner.step");
        assert_eq!(
            batch.formulas,
            formulas("len(batch.reqs)", "batch.total", "0")
        );
        assert_eq!(batch.to_string(), text.trim());
    }

    #[test]
    fn what_is_not_given_follows_from_the_others() {
        let decode = parse("m:f=requests:1,tokens:n,decode_tokens:1 if d else 0");
        assert_eq!(decode.formulas, formulas("1", "n", "n - (1 if d else 0)"));
        let parts = parse("m:f=requests:1,prefill_tokens:p,decode_tokens:d");
        assert_eq!(parts.formulas, formulas("1", "p + d", "p"));
    }

    #[test]
    fn commas_in_brackets_and_texts_separate_nothing() {
        let sum = "sum(n for r, n in zip(b.r, b['a,b']) if r.mode in ('x', 'y)'))";
        let batch = parse(&format!(
            "m:f=requests:len(b.r),tokens:{sum},decode_tokens:0"
        ));
        assert_eq!(
            batch.formulas.nodes[1],
            formulas("len(b.r)", sum, "0").nodes[1]
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (text, problem) in [
            ("", "no \"=\" behind the function"),
            ("m:f", "no \"=\" behind the function"),
            ("f=requests:1", "\"f\" has no \":\" behind the module"),
            ("m:f=", "\"\" has no name and \":\" in front"),
            ("m:f=len(b)", "\"len(b)\" has no name and \":\" in front"),
            (
                "m:f=request:1",
                "\"request\" is not known; requests, tokens, prefill_tokens, decode_tokens are",
            ),
            ("m:f=requests:len(b", "requests: at character 5: wanted )"),
            ("m:f=requests:1,requests:2", "requests is there twice"),
            ("m:f=tokens:1,decode_tokens:1", "requests is missing"),
            (
                "m:f=requests:1,tokens:2",
                "two of tokens, prefill_tokens and decode_tokens are needed",
            ),
            (
                "m:f=requests:1,tokens:2,decode_tokens:1,prefill_tokens:1",
                "two of tokens, prefill_tokens and decode_tokens say the third",
            ),
            (
                "m:f=requests:a+b,tokens:c+d,prefill_tokens:e",
                "wanted fewer arguments",
            ),
        ] {
            let found = BatchFunction::parse(text).unwrap_err();
            assert_eq!(found.problem, problem, "{text}");
            assert!(found.wanted.contains("decode_tokens"));
        }
    }
}
