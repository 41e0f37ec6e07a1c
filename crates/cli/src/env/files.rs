//! Generates files with which launchers set the variables of the tllmprof library: YAML, JSON, and a drop-in for a
//! systemd unit.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;
use tllmprof_config::printable::is_hidden;
use tllmprof_config::variable;

use super::{Variables, text};
use crate::failure::usage;
use crate::output::json;

/// The default folder of records for containers, as a path in the container.
pub(crate) const RECORDS: &str = "/tllmprof-records";
/// The default folder of records for a systemd unit. The unit creates it (`LogsDirectory=`).
pub(crate) const LOGS: &str = "/var/log/tllmprof";
/// The folder of a pod into which an init container copies the library.
const MOUNT: &str = "/tllmprof";

/// Returns true if the variables direct records into `folder`.
pub(crate) fn is_recorded_in(folder: &str, variables: &Variables) -> bool {
    let is_in = |value: &OsStr| Path::new(value).starts_with(folder);
    variables
        .iter()
        .any(|(name, value)| *name == variable::trace && is_in(value))
}

/// Returns a strategic-merge patch for any Kubernetes object that has a pod template. The patch adds an init container,
/// which copies the library from `image` into the pod. For the container `container`, the patch sets `LD_PRELOAD` and
/// the variables.
pub(crate) fn k8s(container: &str, image: &str, variables: &Variables) -> Result<Vec<u8>> {
    let name = scalar(container);
    let image = scalar(image);
    let mut out = format!(
        "# kubectl patch deployment NAME --patch-file FILE    (or statefulset, daemonset, ...)\n\
         # To remove it: kubectl rollout undo deployment NAME\n\
         spec:\n  \
           template:\n    \
             spec:\n      \
               initContainers:\n      \
               - name: tllmprof\n        \
                 image: {image}\n        \
                 args: [\"{MOUNT}\"]\n        \
                 resources:\n          \
                   requests: {{cpu: 10m, memory: 16Mi}}\n          \
                   limits: {{cpu: 500m, memory: 64Mi}}\n        \
                 securityContext:\n          \
                   allowPrivilegeEscalation: false\n          \
                   capabilities: {{drop: [ALL]}}\n          \
                   readOnlyRootFilesystem: true\n          \
                   runAsNonRoot: true\n          \
                   seccompProfile: {{type: RuntimeDefault}}\n        \
                 volumeMounts:\n        \
                 - name: tllmprof\n          \
                   mountPath: {MOUNT}\n      \
               containers:\n      \
               - name: {name}\n        \
                 env:\n        \
                 - name: LD_PRELOAD\n          \
                   value: \"{MOUNT}/libtllmprof.so\"\n"
    );
    for (name, value) in variables {
        // Kubernetes expands `$(NAME)` in values. Each dollar sign is doubled, because `$$` stands for a single dollar
        // sign.
        let value = scalar(text(name, value)?).replace('$', "$$");
        out.push_str(&format!(
            "        - name: {name}\n          value: {value}\n"
        ));
    }
    out.push_str(&format!(
        "        volumeMounts:\n        - name: tllmprof\n          mountPath: {MOUNT}\n          readOnly: true\n"
    ));
    let is_recorded = is_recorded_in(RECORDS, variables);
    if is_recorded {
        out.push_str(&format!(
            "        - name: tllmprof-records\n          mountPath: {RECORDS}\n"
        ));
    }
    out.push_str("      volumes:\n      - name: tllmprof\n        emptyDir: {}\n");
    if is_recorded {
        out.push_str(&format!(
            "      - name: tllmprof-records\n        emptyDir: {{}}\n\
             # Read the records in the pod, or copy them (the container needs tar for that). They go with the pod.\n\
             #   kubectl exec POD -c {container} -- {MOUNT}/tllmprof report {RECORDS}\n\
             #   kubectl cp -c {container} POD:{RECORDS} records\n",
            container = container.escape_default()
        ));
    }
    Ok(out.into_bytes())
}

/// Returns an override file for docker compose, with the variables for the service `service`.
pub(crate) fn compose(service: &str, library: &Path, variables: &Variables) -> Result<Vec<u8>> {
    let service = scalar(service);
    let library = scalar(text("LD_PRELOAD", library.as_os_str())?).replace('$', "$$");
    let is_recorded = is_recorded_in(RECORDS, variables);
    let mut out = String::from("# docker compose -f compose.yaml -f FILE up -d\n");
    if is_recorded {
        out.push_str(
            "# Before that, as the user of the container writes there: mkdir -m 1777 tllmprof-records\n",
        );
    }
    out.push_str(&format!(
        "services:\n  {service}:\n    environment:\n      LD_PRELOAD: {library}\n"
    ));
    for (name, value) in variables {
        let value = scalar(text(name, value)?).replace('$', "$$");
        out.push_str(&format!("      {name}: {value}\n"));
    }
    out.push_str(&format!(
        "    volumes:\n    - type: bind\n      source: {library}\n      target: {library}\n      read_only: true\n"
    ));
    if is_recorded {
        out.push_str(&format!(
            "    - type: bind\n      source: ./tllmprof-records\n      target: {RECORDS}\n"
        ));
    }
    Ok(out.into_bytes())
}

/// Returns a drop-in file for a systemd unit, with the variables for the unit's program.
pub(crate) fn systemd(library: &Path, variables: &Variables) -> Result<Vec<u8>> {
    let mut out = String::from(
        "# /etc/systemd/system/NAME.service.d/tllmprof.conf, then: systemctl daemon-reload && systemctl restart NAME\n\
         # All programs of the unit get the library. To remove it: delete this file, and the same again.\n\
         [Service]\n",
    );
    if is_recorded_in(LOGS, variables) {
        out.push_str("LogsDirectory=tllmprof\n");
    }
    let library = ("LD_PRELOAD", library.as_os_str());
    let variables = variables
        .iter()
        .map(|(name, value)| (*name, value.as_os_str()));
    for (name, value) in std::iter::once(library).chain(variables) {
        // systemd understands the escapes that `scalar` writes. In addition, systemd expands specifiers that begin with
        // `%`, so each `%` is doubled.
        let both = scalar(&format!("{name}={}", text(name, value)?)).replace('%', "%%");
        out.push_str(&format!("Environment={both}\n"));
    }
    Ok(out.into_bytes())
}

/// Returns a runtime environment, as JSON. Ray applies it to the workers of a job or an actor.
pub(crate) fn ray(preload: &OsStr, variables: &Variables) -> Result<Vec<u8>> {
    let variables = variables
        .iter()
        .map(|(name, value)| (*name, value.as_os_str()));
    let pairs: Vec<_> = std::iter::once(("LD_PRELOAD", preload))
        .chain(variables)
        .map(|(name, value)| {
            let value = text(name, value)?;
            if names_variable(value) {
                return Err(usage(format_args!(
                    "{name}=\"{value}\": Ray replaces $NAME and ${{NAME}} by variables of its workers (wanted: a value \
                     without them)"
                )));
            }
            Ok(format!("\"{name}\": {}", json(value)))
        })
        .collect::<Result<_>>()?;
    Ok(format!("{{\"env_vars\": {{{}}}}}\n", pairs.join(", ")).into_bytes())
}

/// Returns true if the value contains a variable such as `$NAME` or `${NAME}`, which Ray would replace.
fn names_variable(value: &str) -> bool {
    let begins = |c: char| c == '{' || c == '_' || c.is_ascii_alphanumeric();
    value
        .split('$')
        .skip(1)
        .any(|rest| rest.starts_with(begins))
}

/// Returns a text as a double-quoted YAML scalar.
fn scalar(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{10000}'.. if is_hidden(c) => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c if is_hidden(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::super::tests::{LIBRARY, some};
    use super::*;

    fn shown(bytes: Result<Vec<u8>>) -> String {
        String::from_utf8(bytes.unwrap()).unwrap()
    }

    #[test]
    fn kubernetes_gets_strings_and_no_expansion() {
        let yaml = shown(k8s("engine", "i:1", &some()));
        assert!(
            yaml.contains("- name: TLLMPROF_START_STOP\n          value: \"2-3,7,30-\"\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("          value: \"it's {n} $$(X) 5%\"\n"),
            "{yaml}"
        );
        // If no variable sends records to the container's folder for records, no volume is mounted for records.
        assert!(!yaml.contains(RECORDS), "{yaml}");
        assert_eq!(scalar("a\"\\\n\u{1}"), "\"a\\\"\\\\\\u000a\\u0001\"");
        let bad = vec![("X", OsStr::from_bytes(b"\xff").to_owned())];
        assert!(k8s("engine", "i:1", &bad).is_err());
    }

    #[test]
    fn a_unit_gets_no_specifiers() {
        let unit = shown(systemd(Path::new(LIBRARY), &some()));
        assert!(
            unit.ends_with(
                "[Service]\nEnvironment=\"LD_PRELOAD=/opt/t/libtllmprof.so\"\n\
                 Environment=\"TLLMPROF_START_STOP=2-3,7,30-\"\n\
                 Environment=\"TLLMPROF_NVTX_NAME=it's {n} $(X) 5%%\"\n"
            ),
            "{unit}"
        );
    }

    #[test]
    fn ray_gets_no_variables() {
        assert!(ray("/l.so".as_ref(), &vec![("TLLMPROF_STEP", "sym:^f$".into())]).is_ok());
        for bad in ["$HOME", "a${B}", "$$_"] {
            let error = ray("/l.so".as_ref(), &vec![("X", bad.into())]).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn records_have_a_folder_where_they_go_to_it() {
        let with = |path: &str| vec![(variable::trace, path.into())];
        let unit = |path| shown(systemd(Path::new(LIBRARY), &with(path)));
        assert!(unit("/var/log/tllmprof/%p").contains("LogsDirectory=tllmprof\n"));
        assert!(!unit("/var/log/other/%p").contains("LogsDirectory"));
        let compose = |path| shown(compose("s", Path::new(LIBRARY), &with(path)));
        assert!(compose("/tllmprof-records/%p").contains("source: ./tllmprof-records\n"));
        assert!(!compose("/out/%p").contains("tllmprof-records"));
    }
}
