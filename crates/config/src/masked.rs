//! Masks secrets in command lines.
//!
//! A command line goes into the record, and from there into reports, pages and exports that people send to each
//! other. So each value that looks like a secret is replaced by `***` before the command line is written. A value
//! looks like a secret because of its own form, or because of the name before it, such as `--api-key`. A name that
//! stands for a number, a file or tokens of a text, such as `--max-tokens`, does not make its value a secret.

use std::mem;

const MASK: &str = "***";

/// Parts of the names of options and variables. If a name contains such a part, its value is a secret, unless the name
/// ends with a word from [`OTHERS`].
const SECRET: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "credential",
    "apikey",
];
/// Words in the names of options and variables. If a name contains such a word, its value is a secret, unless the
/// value is a number or one of [`SWITCHES`], or unless another word of the name is an exception ([`OTHERS`],
/// [`UNLIKELY`]).
const LIKELY: &[&str] = &[
    "key",
    "keys",
    "token",
    "tokens",
    "auth",
    "oauth",
    "authorization",
    "pwd",
];
/// Words in the names of options and variables. If a name ends with such a word, its value is not a secret.
const OTHERS: &[&str] = &[
    "file", "path", "dir", "folder", "env", "type", "mode", "method", "name", "format", "backend",
    "len", "length", "size", "limit", "count", "budget", "id", "ids", "timeout", "ttl",
];
/// Words in the names of options and variables. If a name with a word from [`LIKELY`] also contains a word from this
/// list, its value is not masked. It is probably, for example, a number of tokens or a special token of a model.
/// A name with a part from [`SECRET`] is not affected: its value stays a secret.
const UNLIKELY: &[&str] = &[
    "num", "max", "min", "per", "batched", "no", "disable", "enable", "eos", "bos", "pad", "unk",
    "sep", "cls", "stop", "start", "end", "special", "image", "value", "sort",
];
/// Values, such as `true`, that are not masked after a name from [`LIKELY`].
const SWITCHES: &[&str] = &[
    "", "true", "false", "yes", "no", "on", "off", "none", "null", "auto",
];
/// Authentication schemes, which precede the secret in an `Authorization` header.
const SCHEMES: &[&str] = &["bearer", "basic", "digest", "token"];
/// Prefixes of well-known access tokens, each with the minimum number of letters and digits that follow.
const SHAPES: &[(&str, usize)] = &[
    ("sk-", 16),
    ("hf_", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("nvapi-", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("eyJ", 40),
];

/// Returns a command line, with its arguments separated by spaces and its secrets replaced by `***`.
///
/// The function masks the value `V` in `--api-key=V`, `--hf-token V`, `-e NAME_KEY=V`, `https://user:V@host` and
/// `Authorization: Bearer V`. It also masks access tokens of a known form, such as `sk-…`. All of these are masked both
/// in separate arguments and inside the text of a shell's `-c`. The values of `--tokenizer V` and `--max-tokens 100`
/// stay as they are.
#[must_use]
pub fn command_line<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    let mut masking = Masking::default();
    for (place, argument) in arguments.into_iter().enumerate() {
        if place > 0 {
            masking.line.push(' ');
        }
        masking.argument(argument);
    }
    masking.line
}

/// Returns a text in which passwords in URLs, and access tokens of a known form, are replaced by `***`.
#[must_use]
pub fn text(text: &str) -> String {
    let mut masked = String::new();
    shapes(text, &mut masked);
    masked
}

/// The class of a name whose value is a secret, or is likely to be a secret.
#[derive(Clone, Copy)]
enum Secrecy {
    Secret,
    Likely,
}

impl Secrecy {
    /// Classifies a name. Returns `None` if the value after the name is not a secret.
    fn classify(name: &str) -> Option<Self> {
        let mut words = vec![String::new()];
        let mut was_small = false;
        for c in name.chars() {
            if !c.is_ascii_alphanumeric() || was_small && c.is_ascii_uppercase() {
                words.push(String::new());
            }
            if c.is_ascii_alphanumeric()
                && let Some(word) = words.last_mut()
            {
                word.push(c.to_ascii_lowercase());
            }
            was_small = c.is_ascii_lowercase();
        }
        if words
            .last()
            .is_some_and(|last| OTHERS.contains(&last.as_str()))
        {
            return None;
        }
        let whole = words.concat();
        if SECRET.iter().any(|part| whole.contains(part)) {
            return Some(Self::Secret);
        }
        let is_any = |of: &[&str]| words.iter().any(|word| of.contains(&word.as_str()));
        let is_likely = is_any(LIKELY) || words.iter().any(|word| word.ends_with("token"));
        (is_likely && !is_any(UNLIKELY)).then_some(Self::Likely)
    }

    /// Returns true if `value` is a secret when it belongs to a name of this class.
    fn hides(self, value: &str) -> bool {
        match self {
            Self::Secret => !value.is_empty(),
            Self::Likely => {
                let is = |switch: &&str| value.eq_ignore_ascii_case(switch);
                !SWITCHES.iter().any(is) && value.parse::<f64>().is_err()
            }
        }
    }
}

/// The meaning of the next word of a command line, as far as the words before it determine it.
#[derive(Clone, Copy, Default)]
enum Next {
    #[default]
    Anything,
    /// The next word is the value that belongs to a name of this class.
    Value(Secrecy),
    /// The next word belongs to a quoted secret, which ends where this quote character occurs again.
    Until(char),
}

#[derive(Default)]
struct Masking {
    line: String,
    next: Next,
}

impl Masking {
    fn argument(&mut self, argument: &str) {
        if let Next::Value(name) = self.next
            && !argument.starts_with('-')
            && !is_scheme(argument)
        {
            // The whole argument, including its spaces, is the value for the name in the argument before it.
            self.next = Next::Anything;
            return self.add_value(name, argument);
        }
        if let Some((before, value)) = argument.split_once('=')
            && !before.contains(char::is_whitespace)
            && let Some(name) = Secrecy::classify(before)
        {
            self.next = Next::Anything;
            self.line.push_str(before);
            self.line.push('=');
            return self.add_value(name, value);
        }
        for word in argument.split_inclusive(char::is_whitespace) {
            let end = word.trim_end().len();
            self.word(&word[..end]);
            if !matches!(self.next, Next::Until(_)) {
                self.line.push_str(&word[end..]);
            }
        }
        // If a quote is still open at the end of an argument, it was not the start of a quoted text but an ordinary
        // character.
        if matches!(self.next, Next::Until(_)) {
            self.next = Next::Anything;
        }
    }

    /// Appends a value to the masked command line. The value is masked if it is a secret.
    fn add_value(&mut self, name: Secrecy, value: &str) {
        if name.hides(value) {
            self.line.push_str(MASK);
        } else {
            shapes(value, &mut self.line);
        }
    }

    /// Appends one word of an argument. An argument may consist of several words, for example if it is a shell command
    /// or an HTTP header.
    fn word(&mut self, word: &str) {
        if word.is_empty() {
            return;
        }
        match mem::take(&mut self.next) {
            Next::Until(quote) => match word.split_once(quote) {
                Some((_, behind)) => {
                    self.line.push(quote);
                    self.pairs(behind);
                }
                None => self.next = Next::Until(quote),
            },
            Next::Value(_) if is_scheme(word) => {
                self.line.push_str(word);
                self.next = Next::Value(Secrecy::Secret);
            }
            Next::Value(name) if !word.starts_with('-') => self.value(name, word),
            Next::Value(_) | Next::Anything => self.pairs(word),
        }
    }

    /// Appends a word to the masked command line. The word begins with the value for `name`.
    fn value(&mut self, name: Secrecy, word: &str) {
        let quote = word.chars().next().filter(|c| matches!(c, '"' | '\''));
        let inside = &word[quote.map_or(0, char::len_utf8)..];
        self.line.extend(quote);
        let end = match quote {
            Some(quote) => inside.find(quote),
            None => inside.find(['&', ',', ';', '"', '\'', '}', ']', ')']),
        };
        let (value, behind) = inside.split_at(end.unwrap_or(inside.len()));
        self.add_value(name, value);
        if let (Some(quote), None) = (quote, end)
            && name.hides(value)
        {
            self.next = Next::Until(quote);
        }
        // The character that ends the value, such as a quote, is appended unchanged.
        let mut behind = behind.chars();
        self.line.extend(behind.next());
        self.pairs(behind.as_str());
    }

    /// Appends a word to the masked command line. The word may contain names with values.
    fn pairs(&mut self, word: &str) {
        for (at, _) in word.match_indices(['=', ':']) {
            let (before, behind) = (&word[..at], &word[at + 1..]);
            let name = before.trim_end_matches(['"', '\'']);
            let start = name.rfind(|c: char| !is_of_name(c));
            let name = &name[start.map_or(0, |at| name.ceil_char_boundary(at + 1))..];
            if behind.starts_with("//") {
                continue;
            }
            if let Some(name) = Secrecy::classify(name) {
                shapes(before, &mut self.line);
                self.line.push_str(&word[at..=at]);
                if behind.is_empty() {
                    self.next = Next::Value(name);
                } else {
                    self.value(name, behind);
                }
                return;
            }
        }
        if word.eq_ignore_ascii_case("bearer") {
            self.next = Next::Value(Secrecy::Secret);
        } else if word.starts_with('-') && !word.contains('=') {
            self.next = Secrecy::classify(word).map_or(Next::Anything, Next::Value);
        }
        shapes(word, &mut self.line);
    }
}

fn is_scheme(word: &str) -> bool {
    SCHEMES
        .iter()
        .any(|scheme| word.eq_ignore_ascii_case(scheme))
}

const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Appends a text to `to`, with passwords in URLs and access tokens of a known form masked.
fn shapes(text: &str, to: &mut String) {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        to.push_str(if is_token(word) { MASK } else { word });
        let Some(address) = behind.strip_prefix("://") else {
            let mut behind = behind.chars();
            to.extend(behind.next());
            rest = behind.as_str();
            continue;
        };
        to.push_str("://");
        let host = address.find(['/', '?', '#', '"', '\'']);
        let host = &address[..host.unwrap_or(address.len())];
        rest = address;
        if let Some((user, _)) = host.rsplit_once('@')
            && let Some((name, _)) = user.split_once(':')
        {
            to.push_str(if is_token(name) { MASK } else { name });
            to.push(':');
            to.push_str(MASK);
            rest = &address[user.len()..];
        }
    }
}

fn is_token(word: &str) -> bool {
    SHAPES.iter().any(|(start, least)| {
        // An access token has one long part. The parts of an ordinary name, such as `hf_hub_download_dir`, are short.
        let longest = |rest: &str| rest.split(['_', '.', '-']).map(str::len).max().unwrap_or(0);
        word.strip_prefix(start)
            .is_some_and(|rest| longest(rest) >= *least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(line: &[&str]) -> String {
        command_line(line.iter().copied())
    }

    #[test]
    fn secrets_are_masked() {
        for (line, wanted) in [
            (&["serve", "--api-key=SECRET123"][..], "serve --api-key=***"),
            (
                &["serve", "--api-key", "SECRET123", "-v"],
                "serve --api-key *** -v",
            ),
            (&["--apiKey", "S"], "--apiKey ***"),
            (&["--hf-token", "S", "m"], "--hf-token *** m"),
            (&["--hftoken=S"], "--hftoken=***"),
            (&["--db_password", "12345"], "--db_password ***"),
            (&["--passwd=two words, all"], "--passwd=***"),
            (&["--client-secret", "S"], "--client-secret ***"),
            (&["--aws.credentials=S"], "--aws.credentials=***"),
            (&["--auth", "user:S"], "--auth ***"),
            (
                &["docker", "run", "-e", "OPENAI_API_KEY=S", "i"],
                "docker run -e OPENAI_API_KEY=*** i",
            ),
            (&["run", "--env=HF_TOKEN=S"], "run --env=HF_TOKEN=***"),
            (
                &["env", "AWS_SECRET_ACCESS_KEY=a/b+c=", "x"],
                "env AWS_SECRET_ACCESS_KEY=*** x",
            ),
            (&["IMAGE_PULL_SECRET=S"], "IMAGE_PULL_SECRET=***"),
            (&["https://user:S@host:80/p"], "https://user:***@host:80/p"),
            (&["--proxy=http://u:p:q@h"], "--proxy=http://u:***@h"),
            (
                &["https://h/p?a=1&api_key=S&b=2"],
                "https://h/p?a=1&api_key=***&b=2",
            ),
            (&["sk-proj-abcdefghijklmnop1234"], "***"),
            (&["--x=hf_abcdefghijklmnopqrst"], "--x=***"),
            (
                &["https://ghp_abcdefghijklmnopqrst:x@h"],
                "https://***:***@h",
            ),
            (&["AKIAIOSFODNN7EXAMPLE"], "***"),
            (
                &["-H", "Authorization: Bearer abc.def"],
                "-H Authorization: Bearer ***",
            ),
            (&["-H", "X-Api-Key: S"], "-H X-Api-Key: ***"),
            (&["Bearer", "S"], "Bearer ***"),
            (
                &["--config", r#"{"api_key": "S T", "n": 1}"#],
                r#"--config {"api_key": "***", "n": 1}"#,
            ),
            (
                &["--config", r#"{"password":"S","n":1}"#],
                r#"--config {"password":"***","n":1}"#,
            ),
            (
                &[
                    "bash",
                    "-c",
                    "export HF_TOKEN=S; serve --api-key 'S T' --port 80",
                ],
                "bash -c export HF_TOKEN=***; serve --api-key '***' --port 80",
            ),
        ] {
            assert_eq!(masked(line), wanted);
            assert_eq!(masked(&[&masked(line)]), wanted, "once is enough");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for line in [
            "python -m vllm.entrypoints.openai.api_server --tokenizer /models/key --port 8000",
            "serve --max-tokens 100 --max-num-batched-tokens=8192 --tokens 5 --token-budget lots",
            "serve --ssl-keyfile /etc/key.pem --key-file k --password-file p --api-key-path p",
            "serve --num-key-value-heads 8 --eos-token </s> --sort-key time --auth none --auth-type basic",
            "serve --skip-tokenizer-init --tokenizer-mode auto --monkey-patch a --author me --keyword b",
            "serve --api-key --port 80 --no-auth model",
            "git clone ssh://git@github.com/a/b https://host:80/a@b C:token://x hf_hub_download_dir sk-learn",
            "",
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(masked(&words), line);
        }
    }

    #[test]
    fn a_setting_loses_what_is_known_by_its_shape_alone() {
        assert_eq!(text("nvtx:token:decode@D"), "nvtx:token:decode@D");
        assert_eq!(text("/t/hf_abcdefghijklmnopqrst"), "/t/***");
        assert_eq!(text("ftp://u:S@h/%p"), "ftp://u:***@h/%p");
    }

    #[test]
    fn between_masks_all_stays_as_it_was() {
        const PIECES: &[&str] = &[
            "--key", "=", ":", " ", "\"", "'", "é", "@", "://", "a", "-", "&", "token", "Bearer",
            ",", "password",
        ];
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            // Pseudo-random numbers (xorshift64)
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize % below
        };
        for _ in 0..20_000 {
            let mut arguments = vec![String::new()];
            for _ in 0..next(14) {
                match PIECES.get(next(PIECES.len() + 1)) {
                    Some(piece) => arguments.last_mut().unwrap().push_str(piece),
                    None => arguments.push(String::new()),
                }
            }
            let line = masked(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            let whole = arguments.join(" ");
            let mut rest = &whole[..];
            for part in line.split(MASK) {
                let at = rest
                    .find(part)
                    .unwrap_or_else(|| panic!("{whole:?}: {line:?}"));
                rest = &rest[at + part.len()..];
            }
        }
    }
}
