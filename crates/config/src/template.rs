//! Path templates for settings: paths with placeholders for properties of the process, such as its rank and host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::control::Control;
use crate::error::{Problem, shown};

#[derive(Clone, PartialEq, Eq, Debug)]
enum TemplatePart {
    Text(Vec<u8>),
    Pid,
    Rank,
    Host,
    Variable(String),
}

/// A path template with the placeholders `%p` (process id), `%r` (rank), `%h` (host), `%q{NAME}` (environment
/// variable) and `%%` (percent sign).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathTemplate(Vec<TemplatePart>);

/// The values, for one process, of the placeholders in a path template.
#[derive(Clone, Copy, Debug)]
pub struct Placeholders<'a> {
    pub pid: u32,
    /// The rank of the process. If it is `None`, the placeholder is replaced by 0.
    pub rank: Option<u64>,
    pub host: &'a OsStr,
}

/// Maximum length, in bytes, of a placeholder's value in a file name. File systems allow 255 bytes for the whole
/// name.
const LONGEST_VALUE: usize = 96;

/// Text before and after the process id in the name of a record whose template yields an empty name.
const NAMELESS: (&str, &str) = ("tllmprof-", ".tllmprof");

const WANTED: &str = "a path with %p, %r, %h, %q{NAME} or %%";

impl PathTemplate {
    /// Returns the template for the record of a process that listens for requests, if the user has not named a record.
    /// The record is in the working folder. If the user named a folder for the control socket, the record is in that
    /// folder. Returns `None` if the process does not listen.
    pub fn on_demand(control: &Control) -> Option<Self> {
        let name = [
            TemplatePart::Text(b"tllmprof-".to_vec()),
            TemplatePart::Host,
            TemplatePart::Text(b"-".to_vec()),
            TemplatePart::Rank,
            TemplatePart::Text(b"-".to_vec()),
            TemplatePart::Pid,
            TemplatePart::Text(b".tllmprof".to_vec()),
        ];
        let mut pieces = match control {
            Control::Off => return None,
            Control::On => Vec::new(),
            Control::Folder(folder) => {
                let folder = folder.as_os_str().as_bytes();
                vec![TemplatePart::Text([folder, b"/"].concat())]
            }
        };
        pieces.extend(name);
        Some(Self(pieces))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// Returns an error if the path is empty or `-`, or if a `%` is not followed by a known placeholder.
    pub fn parse(text: &OsStr) -> Result<Self, Problem> {
        let mut rest = text.as_bytes();
        if rest.is_empty() {
            return Err(Problem::new("it is empty", WANTED));
        }
        if rest == b"-" {
            return Err(Problem::new(
                "a record cannot go to standard output",
                WANTED,
            ));
        }
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'%' {
                literal.push(byte);
                continue;
            }
            let (piece, length) = match rest {
                [b'%', ..] => {
                    literal.push(b'%');
                    rest = &rest[1..];
                    continue;
                }
                [b'p', ..] => (TemplatePart::Pid, 1),
                [b'r', ..] => (TemplatePart::Rank, 1),
                [b'h', ..] => (TemplatePart::Host, 1),
                [b'q', b'{', name @ ..] => {
                    let Some(end) = name.iter().position(|b| *b == b'}') else {
                        return Err(Problem::new("%q{ has no } behind it", WANTED));
                    };
                    let name = str::from_utf8(&name[..end]).unwrap_or_default();
                    if name.is_empty() || name.contains('=') {
                        return Err(Problem::new("%q{…} does not name a variable", WANTED));
                    }
                    (TemplatePart::Variable(name.to_owned()), name.len() + 3)
                }
                [b'q', ..] => return Err(Problem::new("%q has no {NAME} behind it", WANTED)),
                [] => return Err(Problem::new("it ends with a single %", WANTED)),
                [..] => {
                    // Shows the whole character after the percent sign, even if that character is longer than a byte.
                    let unknown = shown(OsStr::from_bytes(rest)).chars().next().unwrap_or('?');
                    return Err(Problem::new(format!("%{unknown} means nothing"), WANTED));
                }
            };
            if !literal.is_empty() {
                pieces.push(TemplatePart::Text(std::mem::take(&mut literal)));
            }
            pieces.push(piece);
            rest = &rest[length..];
        }
        if !literal.is_empty() {
            pieces.push(TemplatePart::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Returns the path for one process. A variable that is not set is replaced by an empty text. A variable at the
    /// beginning of the template may contain an absolute path, which then is the folder. All other values become part
    /// of a single file name, with unsuitable characters replaced.
    pub fn fill(
        &self,
        place: &Placeholders<'_>,
        get: impl Fn(&str) -> Option<OsString>,
    ) -> PathBuf {
        let mut path = Vec::new();
        for (index, piece) in self.0.iter().enumerate() {
            match piece {
                TemplatePart::Text(text) => path.extend_from_slice(text),
                TemplatePart::Pid => path.extend_from_slice(place.pid.to_string().as_bytes()),
                TemplatePart::Rank => {
                    path.extend_from_slice(place.rank.unwrap_or(0).to_string().as_bytes());
                }
                TemplatePart::Host => path.extend_from_slice(&part_of_name(place.host)),
                TemplatePart::Variable(name) => {
                    let value = get(name).unwrap_or_default();
                    match index == 0 && value.as_bytes().starts_with(b"/") {
                        true => path.extend_from_slice(value.as_bytes()),
                        false => path.extend_from_slice(&part_of_name(&value)),
                    }
                }
            }
        }
        // The file name is empty if it consists only of placeholders with empty values.
        if path.last().is_none_or(|byte| *byte == b'/') {
            path.extend_from_slice(format!("{}{}{}", NAMELESS.0, place.pid, NAMELESS.1).as_bytes());
        }
        PathBuf::from(OsString::from_vec(path))
    }

    /// Returns the folder that is the same for all processes: the text before the template's first placeholder, up to
    /// the last `/` of this text. The result is empty if this text has no `/`.
    pub fn folder(&self) -> PathBuf {
        let Some(TemplatePart::Text(text)) = self.0.first() else {
            return PathBuf::new();
        };
        let end = text.iter().rposition(|byte| *byte == b'/');
        PathBuf::from(OsStr::from_bytes(end.map_or(&[], |end| &text[..=end])))
    }

    /// Returns the depth of subfolders that the template adds to [`PathTemplate::folder`]: the number of slashes in the
    /// rest of the template.
    pub fn depth(&self) -> usize {
        let slashes = |piece: &TemplatePart| match piece {
            TemplatePart::Text(text) => text.iter().filter(|byte| **byte == b'/').count(),
            _ => 0,
        };
        let in_folder = self.folder().as_os_str().as_bytes().to_vec();
        self.0.iter().map(slashes).sum::<usize>()
            - in_folder.iter().filter(|byte| **byte == b'/').count()
    }

    /// Returns true if `path` can be the result of this template for some process. A path that begins with an absolute
    /// path from an environment variable is not recognized.
    pub fn is_of_some_process(&self, path: &OsStr) -> bool {
        let path = path.as_bytes();
        let nameless = || {
            let stem = path.strip_suffix(NAMELESS.1.as_bytes())?;
            let digits = stem.iter().rev().take_while(|byte| byte.is_ascii_digit());
            let (folder, digits) = stem.split_at(stem.len() - digits.count());
            let folder = folder.strip_suffix(NAMELESS.0.as_bytes())?;
            let is_folder = folder.last().is_none_or(|byte| *byte == b'/');
            (is_folder && !digits.is_empty()).then_some(folder)
        };
        fits(&self.0, path) || nameless().is_some_and(|folder| fits(&self.0, folder))
    }
}

/// Returns a value in a form that fits into a file name. Characters that would end the name or lead to another folder
/// become `_`. A long value is cut, and a hash of the whole value is appended.
fn part_of_name(value: &OsStr) -> Vec<u8> {
    let bytes = value.as_bytes();
    let is_dots = bytes.iter().all(|byte| *byte == b'.');
    let plain = |byte: &u8| match byte {
        b'/' | 0..=0x1f | 0x7f => b'_',
        b'.' if is_dots => b'_',
        byte => *byte,
    };
    let mut name: Vec<u8> = bytes.iter().map(plain).collect();
    if name.len() > LONGEST_VALUE {
        // The hash is FNV-1a. It makes the names of two long values different, even if the values begin with the same
        // text.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let is_inside = |byte: &u8| *byte & 0xc0 == 0x80;
        let mut end = LONGEST_VALUE - 17;
        while end > 0 && is_inside(&name[end]) {
            end -= 1;
        }
        name.truncate(end);
        name.extend_from_slice(format!("-{hash:016x}").as_bytes());
    }
    name
}

/// Returns true if the pieces of a template can result in `path` for some values of the placeholders. The function
/// assumes that no value contains a `/`.
fn fits(pieces: &[TemplatePart], path: &[u8]) -> bool {
    let Some((piece, rest)) = pieces.split_first() else {
        return path.is_empty();
    };
    let is_part = |byte: &u8| match piece {
        TemplatePart::Pid | TemplatePart::Rank => byte.is_ascii_digit(),
        _ => *byte != b'/',
    };
    let least = usize::from(matches!(piece, TemplatePart::Pid | TemplatePart::Rank));
    match piece {
        TemplatePart::Text(text) => path
            .strip_prefix(&text[..])
            .is_some_and(|path| fits(rest, path)),
        _ => {
            let most = path.iter().take_while(|byte| is_part(byte)).count();
            (least..=most).any(|length| fits(rest, &path[length..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str) -> String {
        let place = Placeholders {
            pid: 42,
            rank: Some(3),
            host: OsStr::new("node7"),
        };
        let get = |name: &str| (name == "JOB").then(|| OsString::from("j1"));
        let path = PathTemplate::parse(OsStr::new(template))
            .unwrap()
            .fill(&place, get);
        path.into_os_string().into_string().unwrap()
    }

    #[test]
    fn every_field() {
        assert_eq!(
            filled("./tllmprof-%h-%r-%p.tllmprof"),
            "./tllmprof-node7-3-42.tllmprof"
        );
        assert_eq!(filled("/d/%q{JOB}/%q{NONE}x%%p"), "/d/j1/x%p");
        assert_eq!(filled("plain"), "plain");
    }

    #[test]
    fn a_value_is_a_part_of_one_name_whatever_is_in_it() {
        let filled = |template: &str, host: &str, value: &str| {
            let place = Placeholders {
                pid: 42,
                rank: None,
                host: OsStr::new(host),
            };
            let template = PathTemplate::parse(OsStr::new(template)).unwrap();
            let path = template.fill(&place, |_| Some(value.into()));
            // The command that started the process searches for records with the template, so it must recognize the
            // path.
            let is_found = template.is_of_some_process(path.as_os_str());
            (path.into_os_string().into_string().unwrap(), is_found)
        };
        for (template, host, value, path) in [
            ("d/%h-%p", "rack/7", "", "d/rack_7-42"),
            ("d/%h/x", "..", "", "d/__/x"),
            ("d/%q{JOB}/x", "", "..", "d/__/x"),
            ("d/%q{JOB}.x", "", "../../etc/a", "d/.._.._etc_a.x"),
            ("d/%q{JOB}.x", "", "/a", "d/_a.x"),
            ("%q{JOB}.x", "", "a/b", "a_b.x"),
            (
                "d/%q{JOB}.x",
                "",
                "two\nlines\r\t\x7f\x1b[31m",
                "d/two_lines____[31m.x",
            ),
            ("d/%q{JOB}.x", "", "a b.c", "d/a b.c.x"),
            ("d/%q{JOB}.x", "", "", "d/.x"),
        ] {
            let found = filled(template, host, value);
            assert_eq!(
                found,
                (path.to_owned(), true),
                "{template} {host} {value:?}"
            );
        }
        // These are two special cases: a folder that comes from a variable, and a file name whose parts are all empty.
        assert_eq!(
            filled("%q{JOB}/x", "", "/scratch/../a").0,
            "/scratch/../a/x"
        );
        let nameless = |folder: &str| (format!("{folder}tllmprof-42.tllmprof"), true);
        assert_eq!(filled("d/%q{JOB}", "", ""), nameless("d/"));
        assert_eq!(filled("d/", "", ""), nameless("d/"));
        assert_eq!(filled("%q{JOB}", "", ""), nameless(""));
        // Long values must be cut between characters, and two different values must still result in different names.
        let long = |last: &str| filled("d/%q{JOB}.x", "", &("é".repeat(300) + last));
        let (one, other) = (long("1"), long("2"));
        assert_ne!(one, other);
        assert!(one.1 && one.0.len() <= 4 + LONGEST_VALUE && one.0.starts_with("d/éé"));
        assert_eq!(one, long("1"));
    }

    #[test]
    fn the_paths_of_other_processes_are_known() {
        let template = |text: &str| PathTemplate::parse(OsStr::new(text)).unwrap();
        let default = template("/w/50%%/tllmprof-%h-%r-%p.tllmprof");
        assert_eq!(default.folder(), PathBuf::from("/w/50%/"));
        assert_eq!(default.depth(), 0);
        for (path, is_one) in [
            ("/w/50%/tllmprof-a-b-0-77.tllmprof", true),
            ("/w/50%/tllmprof-a-0-.tllmprof", false),
            ("/w/50%/tllmprof-a-0-x.tllmprof", false),
            ("/w/50%/x/tllmprof-a-0-1.tllmprof", false),
            ("/w/50%/tllmprof-a-0-1.tllmprof2", false),
        ] {
            assert_eq!(
                default.is_of_some_process(OsStr::new(path)),
                is_one,
                "{path}"
            );
        }
        let deep = template("/w/%q{JOB}/rank%r/x");
        assert_eq!((deep.folder(), deep.depth()), (PathBuf::from("/w/"), 2));
        assert!(deep.is_of_some_process(OsStr::new("/w//rank0/x")));
        assert!(!deep.is_of_some_process(OsStr::new("/w/a/b/rank0/x")));
        assert_eq!(template("x").folder(), PathBuf::new());
    }

    #[test]
    fn says_what_is_wrong() {
        for (template, problem) in [
            ("", "it is empty"),
            ("a%", "it ends with a single %"),
            ("a%x", "%x means nothing"),
            ("%é", "%é means nothing"),
            ("%q", "%q has no {NAME} behind it"),
            ("%q{A", "%q{ has no } behind it"),
            ("%q{}", "%q{…} does not name a variable"),
        ] {
            let error = PathTemplate::parse(OsStr::new(template)).expect_err(template);
            assert_eq!(error.problem, problem);
        }
    }

    #[test]
    fn a_path_need_not_be_utf8() {
        let template = PathTemplate::parse(OsStr::from_bytes(b"\xff-%p")).unwrap();
        let place = Placeholders {
            pid: 1,
            rank: None,
            host: OsStr::new("h"),
        };
        assert_eq!(
            template.fill(&place, |_| None).as_os_str().as_bytes(),
            b"\xff-1"
        );
        assert!(PathTemplate::parse(OsStr::from_bytes(b"%q{\xff}")).is_err());
        assert!(PathTemplate::parse(OsStr::from_bytes(b"%\xff")).is_err());
    }
}
