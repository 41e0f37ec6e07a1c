//! Prints the variables of the tllmprof library as lines of a shell, or as words of a launcher's command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tllmprof_report::{shell_quoted, shell_word};

use super::Variables;
use super::files::RECORDS;

fn assignment(name: &str, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes()].concat()
}

fn line(words: &[Vec<u8>]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
    [words.join(&b' '), b"\n".to_vec()].concat()
}

pub(crate) fn shell(library: &Path, variables: &Variables) -> Vec<u8> {
    let mut out = b"export LD_PRELOAD=".to_vec();
    out.extend(shell_quoted(library.as_os_str().as_bytes()));
    out.extend_from_slice(b"\"${LD_PRELOAD:+:$LD_PRELOAD}\"\n");
    for (name, value) in variables {
        out.extend_from_slice(format!("export {name}=").as_bytes());
        out.extend(shell_quoted(value.as_bytes()));
        out.push(b'\n');
    }
    out
}

/// Returns the lines that undo the settings: `LD_PRELOAD` becomes `preload`, and the variables `names` are unset.
pub(crate) fn unset(preload: &OsStr, names: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    if preload.is_empty() {
        out.extend_from_slice(b"unset LD_PRELOAD\n");
    } else {
        out.extend_from_slice(b"export LD_PRELOAD=");
        out.extend(shell_quoted(preload.as_bytes()));
        out.push(b'\n');
    }
    for name in names {
        out.extend_from_slice(format!("unset {name}\n").as_bytes());
    }
    out
}

/// Returns the arguments of `docker run`. `records` is the folder on this machine for records, which the container sees
/// under another path.
pub(crate) fn docker(library: &Path, records: Option<&Path>, variables: &Variables) -> Vec<u8> {
    let library = library.as_os_str();
    let mount = [library.as_bytes(), b":", library.as_bytes(), b":ro"].concat();
    let mut words = vec![
        b"-v".to_vec(),
        mount,
        b"-e".to_vec(),
        assignment("LD_PRELOAD", library),
    ];
    if let Some(folder) = records {
        let mount = [folder.as_os_str().as_bytes(), b":", RECORDS.as_bytes()].concat();
        words.extend([b"-v".to_vec(), mount]);
    }
    for (name, value) in variables {
        words.extend([b"-e".to_vec(), assignment(name, value)]);
    }
    line(&words)
}

pub(crate) fn mpirun(preload: &OsStr, variables: &Variables) -> Vec<u8> {
    let mut words = vec![b"-x".to_vec(), assignment("LD_PRELOAD", preload)];
    for (name, value) in variables {
        words.extend([b"-x".to_vec(), assignment(name, value)]);
    }
    line(&words)
}

/// Returns the arguments with which a launcher starts env(1), which sets the variables and starts the program. So the
/// launcher itself and its helper programs do not get the library. `option` is an option of the launcher; it comes
/// first.
pub(crate) fn by_env(option: &str, preload: &OsStr, variables: &Variables) -> Vec<u8> {
    let mut words = vec![
        option.into(),
        b"env".to_vec(),
        assignment("LD_PRELOAD", preload),
    ];
    words.extend(
        variables
            .iter()
            .map(|(name, value)| assignment(name, value)),
    );
    line(&words)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LIBRARY, some};
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn docker_mounts_the_library() {
        assert_eq!(
            text(docker(Path::new(LIBRARY), None, &some())),
            "-v /opt/t/libtllmprof.so:/opt/t/libtllmprof.so:ro -e LD_PRELOAD=/opt/t/libtllmprof.so \
             -e TLLMPROF_START_STOP=2-3,7,30- -e 'TLLMPROF_NVTX_NAME=it'\\''s {n} $(X) 5%'\n"
        );
        let words = text(docker(
            Path::new(LIBRARY),
            Some(Path::new("/a b/r")),
            &Variables::new(),
        ));
        assert!(
            words.ends_with(" -v '/a b/r:/tllmprof-records'\n"),
            "{words}"
        );
    }

    #[test]
    fn launchers_start_env() {
        assert_eq!(
            text(by_env("--export=ALL", "/a b.so".as_ref(), &some())),
            "--export=ALL env 'LD_PRELOAD=/a b.so' TLLMPROF_START_STOP=2-3,7,30- \
             'TLLMPROF_NVTX_NAME=it'\\''s {n} $(X) 5%'\n"
        );
    }

    #[test]
    fn what_else_is_preloaded_stays() {
        assert_eq!(text(unset("".as_ref(), &[])), "unset LD_PRELOAD\n");
        assert_eq!(
            text(unset("/a.so".as_ref(), &["TLLMPROF_STEP"])),
            "export LD_PRELOAD='/a.so'\nunset TLLMPROF_STEP\n"
        );
    }
}
