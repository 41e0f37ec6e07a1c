//! Linker arguments of the preloaded library, `libtllmprof.so`.

fn main() {
    // `nodelete`: exit handlers and thunks that callers hold point into the library until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtllmprof.so");
    println!("cargo:rerun-if-changed=build.rs");
}
